#!/bin/bash
# Instructions per frame and per disk request, counted by callgrind in one core without a thread, against stored ones.
#
#   lab/instructions.sh               count all cases, compare with lab/instructions.baseline
#   lab/instructions.sh CASE...       some of them
#   lab/instructions.sh --write       count, and make the counts the baseline
#   lab/instructions.sh --where CASE  which functions they are in
#
#   INSTRUCTIONS_TOLERANCE   per cent above the baseline that count as a regression (5)
#   INSTRUCTIONS_LINES       functions that --where shows (40)
#
# A count is the same within a per cent in each run of a program and hardly depends on what else the machine does. It says nothing of caches
# and branches: what it catches is work that a change has added to the path of a frame. Another compiler, C library or
# kind of processor (whose copy loops differ) counts otherwise: renew the baseline then, in a change of its own.
#
# Exit code: 0 without a regression, 1 with one, 2 where nothing can be counted.
set -euo pipefail
cd "$(dirname "$0")/.."
CARGO=${CARGO:-$(command -v cargo || echo "$HOME/.cargo/bin/cargo")}
PATH=$(dirname "$CARGO"):$PATH
baseline=lab/instructions.baseline
tolerance=${INSTRUCTIONS_TOLERANCE:-5}

if ! command -v valgrind >/dev/null; then
    echo "instructions: valgrind is not installed (Debian: valgrind)" >&2
    exit 2
fi

# As users' programs are built, whatever the environment says of profiles; in a folder of its own.
unset "${!CARGO_PROFILE_@}" CARGO_INCREMENTAL RUSTFLAGS
target=${CARGO_TARGET_DIR:-target}/instructions
"$CARGO" build --release --locked -p softdpu-engine --example instructions --target-dir "$target"
program=$target/release/examples/instructions

count() { # CASE [FILE]: instructions of the measured rounds, per frame or request
    local output=${2:-/dev/null} log units collected
    log=$(valgrind --tool=callgrind --callgrind-out-file="$output" --toggle-collect='*measured_round*' "$program" "$1" 2>&1) ||
        { printf '%s\n' "$log" >&2; return 1; }
    units=$(sed -n 's/^units //p' <<<"$log")
    collected=$(sed -n 's/^==[0-9]*== Collected : //p' <<<"$log")
    [ -n "$units" ] && [ "${collected:-0}" -gt 0 ] || { printf '%s\n' "$log" >&2; return 1; }
    awk -v collected="$collected" -v units="$units" 'BEGIN { printf "%.1f", collected / units }'
}

if [ "${1:-}" = --where ]; then
    profile=$(mktemp)
    trap 'rm -f "$profile"' EXIT
    each=$(count "${2:?usage: lab/instructions.sh --where CASE}" "$profile")
    echo "$2: $each per frame or request"
    # annotate OPTION...: "COUNT FILE:FUNCTION" lines, the total first.
    annotate() {
        callgrind_annotate --auto=no --threshold=100 "$@" "$profile" 2>/dev/null |
            sed -nE 's/^ *([0-9,]+) +\( *[0-9.]+%\) +/\1 /p' |
            awk '{ gsub(/,/, "", $1) } 1' |
            sed -E 's/ \[[^]]*\]$//; s#^([0-9]+) (/rustc/[0-9a-f]*/library|'"$PWD"'|[^ ]*/registry/src/[^/]*)/#\1 #'
    }
    # Per frame, the largest first; lines of one name are added up, or (-v most=1) the largest stands for all.
    each() {
        awk -v each="$each" "$@" '{ own = $1 + 0; sub(/^[^ ]* /, "") }
            NR == 1 { total = own; next }
            own < total { sum[$0] = most ? (own > sum[$0] ? own : sum[$0]) : sum[$0] + own }
            END { for (name in sum) printf "%9.1f  %s\n", sum[name] / total * each, name }' |
            sort -rn | head -n "${INSTRUCTIONS_LINES:-40}"
    }
    printf '\nby source file, inlined code included:\n'
    annotate | sed -E '2,$s/^([^ ]+ [^:]*):.*/\1/' | each
    printf '\nfunctions with what they call:\n'
    annotate --inclusive=yes | sed -E '2,$s/^([^ ]+) [^:]*:(.*)/\1 \2/' | each -v most=1
    printf '\nfunctions themselves, inlined code by the file it is from:\n'
    annotate | each
    exit
fi

write=
if [ "${1:-}" = --write ]; then
    write=yes
    shift
fi
if [ $# -eq 0 ]; then mapfile -t cases < <("$program"); else cases=("$@"); fi

made_with="$(rustc --version | cut -d' ' -f1,2), $(valgrind --version), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)"
before=$(sed -n 's/^# made with //p' "$baseline" 2>/dev/null || true)
if [ -z "$write" ] && [ "$before" != "$made_with" ]; then
    echo "instructions: the baseline was made with ${before:-nothing}; here are $made_with: counts may differ for that" >&2
fi

regressions=0
lines=()
printf '%-26s %10s %10s\n' "" baseline now
for case in "${cases[@]}"; do
    now=$(count "$case") || exit 2
    lines+=("$(printf '%-26s %10s' "$case" "$now")")
    was=$(awk -v name="$case" '$1 == name { print $2 }' "$baseline" 2>/dev/null || true)
    verdict=$(awk -v was="${was:-0}" -v now="$now" -v tolerance="$tolerance" 'BEGIN {
        if (was == 0) { print "new"; exit }
        change = (now / was - 1) * 100
        printf "%+.1f%%%s", change, change > tolerance ? "   REGRESSION" : ""
    }')
    printf '%-26s %10s %10s   %s\n' "$case" "${was:--}" "$now" "$verdict"
    case $verdict in *REGRESSION) regressions=$((regressions + 1)) ;; esac
done

if [ -n "$write" ]; then
    # Cases that were not counted keep what they had.
    {
        echo "# Instructions per frame or disk request: lab/instructions.sh --write"
        echo "# made with $made_with"
        {
            printf '%s\n' "${lines[@]}"
            grep -v '^#' "$baseline" 2>/dev/null || true
        } | awk '!seen[$1]++'
    } >"$baseline.new"
    mv "$baseline.new" "$baseline"
    exit 0
fi
if [ "$regressions" -gt 0 ]; then
    echo "instructions: $regressions case(s) take more than $tolerance% more than $baseline; where: lab/instructions.sh --where CASE" >&2
    exit 1
fi
