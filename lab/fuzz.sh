#!/usr/bin/env bash
# Runs every target in fuzz/fuzz_targets for a number of seconds each.
#
#   lab/fuzz.sh [SECONDS] [TARGET…]      60 seconds and all targets unless told otherwise
#
# Exit code 0: nothing found. 1: a target failed; its input and how to run it again are printed. 2: something is missing.
# FUZZ_ARGS holds further arguments for libFuzzer. What the fuzzer learnt stays in fuzz/corpus for the next run.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
missing() { printf 'fuzz: %s\n      %s\n' "$1" "$2" >&2; exit 2; }

seconds=${1:-60}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || usage
shift || true

cargo +nightly --version >/dev/null 2>&1 ||
    missing 'no nightly toolchain; cargo-fuzz needs its sanitizer flags' 'rustup toolchain install nightly --profile minimal'
cargo +nightly fuzz --version >/dev/null 2>&1 ||
    missing 'cargo-fuzz is not installed' 'cargo install cargo-fuzz --locked'
command -v c++ >/dev/null ||
    missing 'no C++ compiler; libFuzzer is built from source' 'apt-get install g++'

targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    for file in fuzz/fuzz_targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
fi
for target in "${targets[@]}"; do
    [ -f "fuzz/fuzz_targets/$target.rs" ] || missing "there is no target $target" "see fuzz/fuzz_targets"
done

printf 'fuzz: building %d target(s)\n' "${#targets[@]}"
for target in "${targets[@]}"; do cargo +nightly fuzz build "$target" >&2; done

log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=()
for target in "${targets[@]}"; do
    mkdir -p "fuzz/corpus/$target"
    printf 'fuzz: %-24s %s s … ' "$target" "$seconds"
    # shellcheck disable=SC2086  # FUZZ_ARGS is a list
    if cargo +nightly fuzz run "$target" -- -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -print_final_stats=1 ${FUZZ_ARGS:-} >"$log" 2>&1; then
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
        edges=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -1)
        printf 'ok: %s runs, %s edges\n' "${runs:-?}" "${edges:-?}"
    else
        printf 'FAILED\n'
        # What was wrong, then where: the panic and the input; where there is neither, the end of the output.
        grep -aA3 -E 'panicked at|ERROR: (libFuzzer|AddressSanitizer)|^\s*fuzz/artifacts/' "$log" | grep -av '^--$' |
            sed 's/^/      /' || tail -n 30 "$log" | sed 's/^/      /'
        failed+=("$target")
    fi
done

if [ ${#failed[@]} -gt 0 ]; then
    printf 'fuzz: failed: %s (inputs in fuzz/artifacts; cargo +nightly fuzz run TARGET FILE runs one again)\n' "${failed[*]}"
    exit 1
fi
printf 'fuzz: nothing found\n'
