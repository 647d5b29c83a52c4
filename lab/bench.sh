#!/bin/bash
# The measurements that softdpu is held to, beside qemu-storage-daemon, DPDK's testpmd and tables, and QEMU's own networking: disks,
# frames, tenants, the gateway, guests. With a verdict for each bar.
#
# usage: lab/bench.sh [FOLDER]      raw results go to FOLDER (results/) as JSON lines, plots as SVG
#
#   SOFTDPU_BIN      the program (target/release/softdpu)
#   BENCH_SECONDS    length of a measurement (2)
#   BENCH_ROUNDS     measurements of each case and subject, taking turns (5)
#   BENCH_PACKETS    frames of which the gateway's losses are counted (10000000)
#
# Tenants are measured under every scheduler in turn, for an eighth of BENCH_SECONDS each: there are over a hundred cases.
#
# The bar of frames is for those of 64 bytes between guests, with a client that polls; the other ratios are printed as measured.
#
# Exit code: 0 where every bar was met, 1 where one was missed, 2 where none was missed but some were not tried, for want of a peer say.
set -euo pipefail
cd "$(dirname "$0")/.."

softdpu=${SOFTDPU_BIN:-${CARGO_TARGET_DIR:-target}/release/softdpu}
results=${1:-results}
seconds=${BENCH_SECONDS:-2}
rounds=${BENCH_ROUNDS:-5}
packets=${BENCH_PACKETS:-10000000}

if [ ! -x "$softdpu" ]; then
    echo "bench: $softdpu is not there; run \`make build\`" >&2
    exit 2
fi
if [ "$(nproc)" -lt 2 ]; then
    echo "bench: client and server need a CPU each; this machine has $(nproc)" >&2
    exit 2
fi
mkdir -p "$results"

measure() { # NAME block|net ARGUMENTS...
    local name=$1 what=$2
    shift 2
    echo "bench: $name" >&2
    "$softdpu" bench "$what" --json --rounds "$rounds" --seconds "$seconds" --plot "$results/bench-$name.svg" "$@" \
        >"$results/bench-$name.jsonl"
}

measure null-polling block --volume null --client polling --depth 1,2,4,8,16,32,64,128
measure null-blocking block --volume null --client blocking --depth 1,2,4,8,16,32,64,128
measure file block --volume file --client polling --depth 1,2,4,8,16,32,64,128
measure net net --route guest --format both --client polling
measure net-blocking net --route guest --client blocking
measure net-underlay net --route underlay --client both || echo "bench: frames to the underlay were not measured" >&2
echo "bench: tenants" >&2
"$softdpu" bench tenants --json --load block,net,mixed,functions --rounds "$rounds" \
    --seconds "$(awk -v seconds="$seconds" 'BEGIN { print seconds / 8 }')" --plot "$results/bench-tenants.svg" >"$results/bench-tenants.jsonl"
"$softdpu" bench tenants --json --topic decision --tenants 1,1024 >"$results/bench-decision.jsonl"
echo "bench: the gateway's tables" >&2
"$softdpu" bench vpc --json --rounds "$rounds" >"$results/bench-vpc.jsonl"
echo "bench: losses through the gateway" >&2
"$softdpu" bench gateway --json --packets "$packets" >"$results/bench-gateway.jsonl"
"$softdpu" bench gateway --json --packets "$packets" --between sites >>"$results/bench-gateway.jsonl" || echo "bench: losses between sites were not measured" >&2
echo "bench: interrupt" >&2
"$softdpu" bench interrupt --json --rounds "$rounds" --seconds "$seconds" >"$results/bench-interrupt.jsonl"
echo "bench: idle" >&2
"$softdpu" bench idle --json --devices 8 --seconds 10 >"$results/bench-idle.jsonl"

# Real guests: as many rounds, of whole seconds.
guest_network=$(dirname "$softdpu")/guest-network
: >"$results/bench-guest-network.jsonl"
if [ -x "$guest_network" ]; then
    echo "bench: guest-network" >&2
    "$guest_network" --json --rounds "$rounds" --seconds "$(awk -v seconds="$seconds" 'BEGIN { print int(seconds + 0.999) }')" \
        >"$results/bench-guest-network.jsonl" || echo "bench: guests on networks were not measured" >&2
else
    echo "bench: $guest_network is not there (\`make bench\` builds it): guests on networks were not measured" >&2
fi

untried=
tried() { # METRIC FILE WHAT: says that there is nothing to judge a bar by
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
        if ($12 ~ /^null .* blocking qd1$/) bar = 1.5
        if ($12 ~ /^file /) bar = 1
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
    # What judges itself: tenants say bar and figure in the name of the case, the tables have the figure in a line before.
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
' "$results"/bench-null-polling.jsonl "$results"/bench-null-blocking.jsonl "$results"/bench-file.jsonl \
    "$results"/bench-net.jsonl "$results"/bench-net-blocking.jsonl "$results"/bench-net-underlay.jsonl \
    "$results"/bench-guest-network.jsonl "$results"/bench-interrupt.jsonl "$results"/bench-idle.jsonl \
    "$results"/bench-tenants.jsonl "$results"/bench-decision.jsonl "$results"/bench-vpc.jsonl "$results"/bench-gateway.jsonl || missed=$?

tried iops-ratio bench-null-polling "disks beside qemu-storage-daemon"
tried frames-ratio bench-net "frames beside dpdk-testpmd"
tried frames-ratio bench-net-underlay "frames to the underlay beside dpdk-testpmd"
tried throughput-ratio-to- bench-guest-network "guest-guest tcp beside QEMU's networking"
[ "$missed" = 0 ] || exit 1
[ -z "$untried" ] || exit 2
