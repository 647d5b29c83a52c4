/*
 * A host in C: it sends messages, takes prestaged decisions and transactions, and answers them.
 * host FILE CAPACITY COUNT: the file has the queue of messages, that of transactions, that of outcomes, and a slot.
 * Prints the sum of the threads' ids that it was told to run. Ends with an error after 60 s.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "softdpu_offload.h"

static void must(bool what, const char *why) {
    if (!what) {
        fprintf(stderr, "host: %s\n", why);
        exit(1);
    }
}

int main(int count, char **arguments) {
    must(count == 4, "expected FILE CAPACITY COUNT");
    uint64_t capacity = strtoull(arguments[2], NULL, 10), threads = strtoull(arguments[3], NULL, 10);
    int file = open(arguments[1], O_RDWR);
    must(file >= 0, "the file cannot be opened");
    size_t lines = 3 * (capacity + 1) + SOFTDPU_SLOT_LINES;
    softdpu_word *words = mmap(NULL, lines * 64, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    must(words != MAP_FAILED, "the file cannot be mapped");
    size_t queue = (capacity + 1) * SOFTDPU_WORDS_PER_LINE;
    struct softdpu_producer messages = {.words = words, .capacity = capacity};
    struct softdpu_consumer transactions = {.words = words + queue, .capacity = capacity};
    struct softdpu_producer outcomes = {.words = words + 2 * queue, .capacity = capacity};
    struct softdpu_slot slot = {.words = words + 3 * queue};
    uint64_t sent = 0, answered = 0, sum = 0, staged = 0;
    time_t end = time(NULL) + 60;
    while (answered < threads) {
        must(time(NULL) < end, "60 s are over");
        softdpu_prefetch(&slot);
        if (sent < threads) {
            struct softdpu_message message = {
                .thread = (uint32_t)sent, .core = 3, .sequence = sent + 1, .event = SOFTDPU_WAKEUP, .slo_class = 2};
            int result = softdpu_send_message(&messages, &message);
            must(result >= 0, "the agent broke the queue of messages");
            sent += (uint64_t)result;
        }
        struct softdpu_transaction transaction;
        int found = softdpu_take(&slot, &transaction);
        staged += (uint64_t)found;
        if (!found)
            found = softdpu_poll_transaction(&transactions, &transaction);
        must(found >= 0, "the agent broke the queue of transactions");
        if (!found) {
            sched_yield();
            continue;
        }
        must(transaction.core == 3 && !transaction.preempts, "another core, or a preemption");
        must(transaction.sequence == (uint64_t)transaction.thread + 1, "another sequence");
        sum += transaction.thread;
        answered++;
        int result;
        while ((result = softdpu_send_outcome(&outcomes, &transaction, SOFTDPU_COMMITTED)) == 0) {
            must(time(NULL) < end, "60 s are over");
            sched_yield();
        }
        must(result > 0, "the agent broke the queue of outcomes");
    }
    printf("%llu %llu\n", (unsigned long long)sum, (unsigned long long)staged);
    return 0;
}
