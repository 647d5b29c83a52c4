/*
 * The host's side of softdpu's agent queues, for programs in C11 on little-endian machines.
 *
 * The memory of a queue is an array of lines of 64 bytes, zero at first (crates/offload/src/queue.rs):
 *
 *   line 0        word 0: how many entries the consumer has taken
 *   line 1 + n    words 0 to 2: the entry; word 7: the flag, the round of the queue that wrote it, from 1
 *
 * and of a prestaged slot two lines (crates/offload/src/prestage.rs). Both sides map the same memory.
 * One thread at a time uses an end. No function blocks, allocates or fails otherwise than it says.
 */
#ifndef SOFTDPU_OFFLOAD_H
#define SOFTDPU_OFFLOAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SOFTDPU_WORDS_PER_LINE 8
#define SOFTDPU_FLAG 7
#define SOFTDPU_SLOT_LINES 2

typedef _Atomic uint64_t softdpu_word;

/* What happened to a thread. */
enum softdpu_event {
    SOFTDPU_CREATED = 1,
    SOFTDPU_WAKEUP = 2,
    SOFTDPU_BLOCKED = 3,
    SOFTDPU_YIELD = 4,
    SOFTDPU_PREEMPTED = 5,
    SOFTDPU_AFFINITY = 6,
    SOFTDPU_DEPARTED = 7,
};

/* What the host made of a transaction. */
enum softdpu_outcome {
    SOFTDPU_COMMITTED = 1,
    SOFTDPU_STALE = 2,
    SOFTDPU_CORE_BUSY = 3,
    SOFTDPU_NOT_OWNED = 4,
    SOFTDPU_GROUP_REFUSED = 5,
};

struct softdpu_message {
    uint32_t thread;
    uint32_t core;
    uint64_t sequence; /* the thread's number of changes, with this one */
    uint8_t event;     /* enum softdpu_event */
    uint8_t slo_class;
};

struct softdpu_transaction {
    uint32_t thread;
    uint32_t core;
    uint64_t sequence; /* refuse it if the thread's is another by now */
    uint32_t number;
    bool preempts;
};

/* The end of a queue that sends. Zero all but `words` and `capacity` (1 to 65536; capacity + 1 lines). */
struct softdpu_producer {
    softdpu_word *words;
    uint64_t capacity;
    uint64_t sent;
    uint64_t taken;
};

/* The end of a queue that takes. Zero all but `words` and `capacity`. */
struct softdpu_consumer {
    softdpu_word *words;
    uint64_t capacity;
    uint64_t taken;
    uint64_t told;
};

/* The host's side of a prestaged slot. `words` is its first word. Zero `taken`. */
struct softdpu_slot {
    softdpu_word *words;
    uint64_t taken;
};

static inline softdpu_word *softdpu_line_(softdpu_word *words, uint64_t capacity, uint64_t number) {
    return words + (1 + number % capacity) * SOFTDPU_WORDS_PER_LINE;
}

/* Sends one entry of three words. 1: sent; 0: the queue is full; -1: the other side broke the queue. */
static inline int softdpu_send_(struct softdpu_producer *end, const uint64_t entry[3]) {
    if (end->sent - end->taken >= end->capacity) {
        uint64_t taken = atomic_load_explicit(&end->words[0], memory_order_acquire);
        if (taken > end->sent || taken < end->taken)
            return -1;
        end->taken = taken;
        if (end->sent - end->taken >= end->capacity)
            return 0;
    }
    softdpu_word *line = softdpu_line_(end->words, end->capacity, end->sent);
    for (size_t word = 0; word < 3; word++)
        atomic_store_explicit(&line[word], entry[word], memory_order_relaxed);
    /* The flag is written last. */
    atomic_store_explicit(&line[SOFTDPU_FLAG], end->sent / end->capacity + 1, memory_order_release);
    end->sent++;
    return 1;
}

/* Takes one entry of three words. 1: taken; 0: there is none. */
static inline int softdpu_poll_(struct softdpu_consumer *end, uint64_t entry[3]) {
    softdpu_word *line = softdpu_line_(end->words, end->capacity, end->taken);
    uint64_t flag = atomic_load_explicit(&line[SOFTDPU_FLAG], memory_order_acquire);
    bool is_there = flag == end->taken / end->capacity + 1;
    if (is_there) {
        for (size_t word = 0; word < 3; word++)
            entry[word] = atomic_load_explicit(&line[word], memory_order_relaxed);
        end->taken++;
    }
    uint64_t quarter = end->capacity / 4 ? end->capacity / 4 : 1;
    if (end->taken - end->told >= quarter) {
        end->told = end->taken;
        atomic_store_explicit(&end->words[0], end->taken, memory_order_release);
    }
    return is_there;
}

/* 1 if the words are a transaction. */
static inline int softdpu_decode_(const uint64_t entry[3], struct softdpu_transaction *to) {
    if (entry[2] >> 33 != 1)
        return 0;
    to->thread = (uint32_t)entry[0];
    to->core = (uint32_t)(entry[0] >> 32);
    to->sequence = entry[1];
    to->number = (uint32_t)entry[2];
    to->preempts = (entry[2] >> 32 & 1) != 0;
    return 1;
}

/* SEND_MESSAGES. 1: sent; 0: the queue is full; -1: the agent broke the queue. */
static inline int softdpu_send_message(struct softdpu_producer *end, const struct softdpu_message *message) {
    const uint64_t entry[3] = {
        message->thread | (uint64_t)message->core << 32,
        message->sequence,
        message->event | (uint64_t)message->slo_class << 8,
    };
    return softdpu_send_(end, entry);
}

/* POLL_TXNS. 1: there was one; 0: there is none; -1: the agent broke the queue. */
static inline int softdpu_poll_transaction(struct softdpu_consumer *end, struct softdpu_transaction *to) {
    uint64_t entry[3];
    if (!softdpu_poll_(end, entry))
        return 0;
    return softdpu_decode_(entry, to) ? 1 : -1;
}

/* SET_TXNS_OUTCOMES. 1: sent; 0: the queue is full; -1: the agent broke the queue. */
static inline int softdpu_send_outcome(struct softdpu_producer *end, const struct softdpu_transaction *of,
                                       enum softdpu_outcome outcome) {
    const uint64_t entry[3] = {
        of->thread | (uint64_t)of->core << 32,
        of->sequence,
        of->number | (uint64_t)outcome << 32,
    };
    return softdpu_send_(end, entry);
}

/* PREFETCH_TXNS, of a slot: before the state is updated and the message is sent. */
static inline void softdpu_prefetch(const struct softdpu_slot *slot) {
#if defined(__GNUC__)
    __builtin_prefetch((const void *)slot->words);
#else
    (void)slot;
#endif
}

/* Takes the prestaged decision: 1; 0: there is none, wait for the agent's interrupt. */
static inline int softdpu_take(struct softdpu_slot *slot, struct softdpu_transaction *to) {
    uint64_t stage = atomic_load_explicit(&slot->words[7], memory_order_acquire);
    if ((stage & 1) == 0 || stage == slot->taken)
        return 0;
    uint64_t entry[3];
    for (size_t word = 0; word < 3; word++)
        entry[word] = atomic_load_explicit(&slot->words[1 + word], memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&slot->words[0], memory_order_relaxed) != stage)
        return 0;
    slot->taken = stage;
    atomic_store_explicit(&slot->words[SOFTDPU_WORDS_PER_LINE], stage, memory_order_release);
    return softdpu_decode_(entry, to);
}

#endif
