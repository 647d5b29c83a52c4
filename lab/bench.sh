#!/bin/bash
# Measures disks, frames, tenants, the gateway and guests, beside qemu-storage-daemon, DPDK's testpmd and tables, and QEMU's own networking, and ends
# with a verdict for each bar.
#
# usage: lab/bench.sh [FOLDER]      raw results go to FOLDER (results/) as JSON lines, plots as SVG
#
#   BENCH_TOPICS     what is measured (disks net tenants vpc gateway interrupt idle guests: all of it)
#   SOFTDPU_BIN      the program (target/release/softdpu)
#   BENCH_SECONDS    length of a measurement (0.5)
#   BENCH_ROUNDS     measurements of each case and subject, taking turns (3)
#   BENCH_PACKETS    frames of which the gateway's losses are counted (10000000)
#
# Tenants have over a hundred cases. Each scheduler is measured in turn for an eighth of BENCH_SECONDS (0.1 at least), in twice as many rounds. Trust
# the range after such a short figure, not its digits.
#
# The bar of frames is for frames of 64 bytes between guests with a polling client. Other ratios are printed without a bar.
#
# `make figures FROM=FOLDER RUNS="whole-run disks frames decision tables"` puts these figures into README and docs/: docs/results/README.md.
#
# Exit code: 0 if every bar was met, 1 if one was missed, 2 if none was missed but something was not measured, for example without a peer. The verdict
# covers this run, not what an earlier one left in FOLDER.
set -euo pipefail
cd "$(dirname "$0")/.."

softdpu=${SOFTDPU_BIN:-${CARGO_TARGET_DIR:-target}/release/softdpu}
results=${1:-results}
seconds=${BENCH_SECONDS:-0.5}
rounds=${BENCH_ROUNDS:-3}
packets=${BENCH_PACKETS:-10000000}
all_topics="disks net tenants vpc gateway interrupt idle guests"
topics=${BENCH_TOPICS:-$all_topics}

asked() { # TOPIC: whether it is to be measured
    case " $topics " in
    *" $1 "*) return 0 ;;
    *) return 1 ;;
    esac
}

for topic in $topics; do
    case " $all_topics " in
    *" $topic "*) ;;
    *)
        echo "bench: BENCH_TOPICS: there is no topic \"$topic\"; there are: $all_topics" >&2
        exit 2
        ;;
    esac
done

if [ ! -x "$softdpu" ]; then
    echo "bench: $softdpu is not there; run \`make build\`" >&2
    exit 2
fi
if [ "$(nproc)" -lt 2 ]; then
    echo "bench: client and server need a CPU each; this machine has $(nproc)" >&2
    exit 2
fi
mkdir -p "$results"
# Where and how this was measured, for the tables that `make figures` writes.
printf '{"about":"`BENCH_SECONDS=%s BENCH_ROUNDS=%s BENCH_PACKETS=%s make bench` on %s CPUs, %s"}\n' \
    "$seconds" "$rounds" "$packets" "$(nproc)" \
    "$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1 | tr -d '"\\')" >"$results/bench-run.jsonl"

raw=() # this run's files of raw results
failed=

raw_file() { # NAME: begins a file of raw results, and sets `out` to it
    echo "bench: $1" >&2
    out=$results/bench-$1.jsonl
    : >"$out"
    raw+=("$out")
}

measured() { # WHAT COMMAND...: adds to the file; a failure is reported, and the rest goes on
    local what=$1
    shift
    "$@" >>"$out" || {
        echo "bench: $what: not measured, it ended with $?" >&2
        failed=yes
    }
}

measure() { # NAME block|net ARGUMENTS...
    local name=$1 what=$2
    shift 2
    raw_file "$name"
    measured "$name" "$softdpu" bench "$what" --json --rounds "$rounds" --seconds "$seconds" --plot "$results/bench-$name.svg" "$@"
}

measure_disks() {
    local depths=1,2,4,8,16,32,64,128
    measure null-polling block --volume null --client polling --depth $depths
    measure null-blocking block --volume null --client blocking --depth $depths
    measure file block --volume file --client polling --depth $depths
    measure file-writes block --volume file --rw randwrite --client polling --depth $depths
}

measure_net() {
    measure net net --route guest --format both --client polling
    measure net-blocking net --route guest --client blocking
    measure net-underlay net --route underlay --client both
}

measure_tenants() {
    raw_file tenants
    measured tenants "$softdpu" bench tenants --json --load block,net,mixed,functions --rounds $((2 * rounds)) \
        --seconds "$(awk -v seconds="$seconds" 'BEGIN { print seconds < 0.8 ? 0.1 : seconds / 8 }')" --plot "$results/bench-tenants.svg"
    raw_file decision
    measured decisions "$softdpu" bench tenants --json --topic decision --tenants 1,4,1024
}

# Tables in memory.
measure_vpc() {
    raw_file vpc
    measured tables "$softdpu" bench vpc --json --rounds "$rounds"
}

# Losses.
measure_gateway() {
    raw_file gateway
    measured "losses between guests" "$softdpu" bench gateway --json --packets "$packets"
    measured "losses between sites" "$softdpu" bench gateway --json --packets "$packets" --between sites
}

measure_interrupt() {
    raw_file interrupt
    measured interrupts "$softdpu" bench interrupt --json --rounds "$rounds" --seconds "$seconds"
}

measure_idle() {
    raw_file idle
    measured idle "$softdpu" bench idle --json --devices 8 --seconds 10
}

# Real guests: as many rounds, of whole seconds.
measure_guests() {
    local guest_network
    raw_file guest-network
    guest_network=$(dirname "$softdpu")/guest-network
    if [ ! -x "$guest_network" ]; then
        echo "bench: $guest_network is not there (\`make bench\` builds it): guests on networks were not measured" >&2
        return
    fi
    measured guests "$guest_network" --json --rounds "$rounds" \
        --seconds "$(awk -v seconds="$seconds" 'BEGIN { print int(seconds + 0.999) }')"
}

for topic in $topics; do
    "measure_$topic"
done

untried=
tried() { # TOPIC METRIC FILE WHAT: reports a bar without a figure
    asked "$1" || return 0
    shift
    if ! grep -q "\"metric\":\"$1" "$results/$2.jsonl"; then
        untried=yes
        printf '%-44s %-14s %14s   %s\n' "$3" - - "NOT TRIED"
    fi
}

# Case, figure, bar. A line is a flat object whose keys come in one order, so fields between quotes have fixed numbers.
missed=0
awk -F'"' '
    function number(line) { sub(/.*"value":/, "", line); sub(/}.*/, "", line); return line + 0 }
    function verdict(what, bar, measured, met) {
        printf "%-44s %-14s %14s   %s\n", what, bar, measured, met ? "met" : "MISSED"
        if (!met) missed++
    }
    BEGIN { printf "%-44s %-14s %14s   %s\n", "", "bar", "measured", "verdict" }
    $8 == "machine" && $4 != "interrupt" { next }
    $16 == "iops-ratio" && $8 == "softdpu" {
        bar = 0
        if ($12 ~ /^null .* polling qd1$/) bar = 2
        if ($12 ~ /^null .* polling qd(32|128)$/) bar = 1.3
        if ($12 ~ /^null .* blocking /) bar = 1.2
        if ($12 ~ /^null .* blocking qd1$/) bar = 1.5
        if ($12 ~ /^file /) bar = 1.1
        if (bar) verdict($12, sprintf(">= %.1f times", bar), sprintf("%.2f times", number($0)), number($0) >= bar)
    }
    $16 == "frames-ratio" && $8 == "softdpu" && $12 ~ /^guest-guest 64 .*polling$/ {
        verdict($12, ">= 1.0 times", sprintf("%.2f times", number($0)), number($0) >= 1)
        next
    }
    $16 == "frames-ratio" && $8 == "softdpu" {
        printf "%-44s %-14s %14s\n", $12, "-", sprintf("%.2f times", number($0))
    }
    # The better way of a peer counts.
    $16 ~ /^throughput-ratio-to-/ {
        peer = $16
        sub(/^throughput-ratio-to-/, "", peer)
        sub(/-(msix|intx)$/, "", peer)
        if (!(peer in least) || number($0) < least[peer]) least[peer] = number($0)
    }
    $4 == "interrupt" && $16 ~ /^(wake-up-p50|latency-above-polling)$/ {
        printf "%-44s %-14s %14s\n", $12 ", " $16, "-", sprintf("%.2f us", number($0) / 1000)
    }
    $4 == "interrupt" && $16 == "interrupts-per-request" {
        printf "%-44s %-14s %14s\n", $12 ", " $16, "-", sprintf("%.4f", number($0))
    }
    $4 == "idle" && $16 == "resident" {
        mib = number($0) / 1048576
        verdict("idle, " $12 ": resident", "< 30 MiB", sprintf("%.1f MiB", mib), mib < 30)
    }
    $4 == "idle" && $16 == "cpu" {
        verdict("idle, " $12 ": CPU", "< 1% of a core", sprintf("%.3f%%", number($0) * 100), number($0) < 0.01)
    }
    # Benches with their own verdict: tenants have bar and figure in the name of the case, tables have the figure in a line before.
    $4 == "tenants" && $16 == "bar" {
        printf "%s: %s\n", $12, number($0) ? "met" : "MISSED"
        if (!number($0)) missed++
    }
    $4 == "tenants" && $8 == "weighted" && $16 == "decide" && $12 == "1024 tenants" {
        verdict("a decision, " $12, "<= 50 ns", sprintf("%.1f ns", number($0)), number($0) <= 50)
    }
    $4 == "vpc" && $16 ~ /^bar: / {
        metric = substr($16, 6)
        verdict($12 ": " metric, "", figure[$12, metric], number($0) == 1)
        next
    }
    $4 == "vpc" { figure[$12, $16] = sprintf("%.4g %s", number($0), $20 == "1" ? "" : $20) }
    $4 == "gateway" && $12 ~ /^(sites, )?flow-tier$/ && $16 == "lost" {
        verdict("lost through the gateway (" ($12 ~ /^sites/ ? "sites" : "guests") ")", "0", number($0), number($0) == 0)
    }
    END {
        for (peer in least)
            verdict("guest-guest tcp, beside " peer, ">= 2.0 times", sprintf("%.2f times", least[peer]), least[peer] >= 2)
        exit missed > 0
    }
' "${raw[@]}" || missed=$?

tried disks iops-ratio bench-null-polling "disks beside qemu-storage-daemon"
tried net frames-ratio bench-net "frames beside dpdk-testpmd"
tried net frames-ratio bench-net-underlay "frames to the underlay beside dpdk-testpmd"
tried guests throughput-ratio-to- bench-guest-network "guest-guest tcp beside QEMU's networking"
[ "$missed" = 0 ] || exit 1
[ -z "$untried$failed" ] || exit 2
