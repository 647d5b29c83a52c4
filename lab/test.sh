#!/usr/bin/env bash
# Runs the tests and ends with one plain line, "N passed, N failed", after listing what was skipped and why.
#
#   lab/test.sh unit     the crates' own tests
#   lab/test.sh loom     every interleaving of the lock-free parts (crates/*/tests/loom.rs)
#   lab/test.sh miri     memory and ring under Miri, where nightly has it
#   lab/test.sh e2e      guests and clients against the optimised softdpu (lab/setup.sh has to have run)
#
# All of them run even when some fail. Exit code 0 only if none failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
CARGO=${CARGO:-$(command -v cargo || echo "$HOME/.cargo/bin/cargo")}
PATH=$(dirname "$CARGO"):$PATH

mkdir -p .cache
log=$PWD/.cache/test.log
export SOFTDPU_SKIPS=$PWD/.cache/skipped
export SOFTDPU_BIN=${SOFTDPU_BIN:-${CARGO_TARGET_DIR:-$PWD/target}/release/softdpu}
: >"$log"
: >"$SOFTDPU_SKIPS"
broken=0
missing=0

# End-to-end tests that take longest, which start first, and those that have the machine to themselves: they compare times,
# or fill both CPUs of a small machine.
LONGEST=(network zero_copy tunnel harness kill ecmp two_hosts encrypted guest_io)
ALONE=tenants,recording,testpmd,gateway_loss,meters,faults,hostile,hostile_net,wires,scale

# A command that fails without a test having failed (it did not compile, say) counts as one failure.
run() {
    local before after
    before=$(grep -c '^test result: FAILED' "$log")
    printf '\n== %s\n' "$*"
    if ! "$@" 2>&1 | tee -a "$log"; then
        after=$(grep -c '^test result: FAILED' "$log")
        if [ "$after" = "$before" ]; then broken=$((broken + 1)); fi
    fi
}

for part in "${@:-unit}"; do
    case $part in
        unit)
            run "$CARGO" test --workspace --exclude softdpu-tests --locked --no-fail-fast
            ;;
        loom)
            for tests in crates/*/tests/loom.rs; do
                [ -f "$tests" ] || continue
                crate=${tests%/tests/loom.rs}
                # Optimised: loom tries every interleaving. In a folder of its own, or everything else would be built again. Across
                # crates it is not: that takes longer than it saves.
                run env RUSTFLAGS="${RUSTFLAGS:-} --cfg loom" CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 "$CARGO" test --release --locked --no-fail-fast \
                    --target-dir "${CARGO_TARGET_DIR:-$PWD/target}/loom" -p "softdpu-${crate#crates/}" --test loom
            done
            ;;
        miri)
            if "$CARGO" +nightly miri --version >/dev/null 2>&1; then
                run env MIRIFLAGS="${MIRIFLAGS:--Zmiri-disable-weak-memory-emulation -Zmiri-disable-isolation}" "$CARGO" +nightly miri test --locked --no-fail-fast \
                    --target-dir "${CARGO_TARGET_DIR:-$PWD/target}/miri" -p softdpu-memory -p softdpu-ring --lib
            else
                echo "SKIPPED miri: it needs \`rustup toolchain install nightly --component miri\`" | tee -a "$SOFTDPU_SKIPS"
                missing=$((missing + 1))
            fi
            ;;
        e2e)
            run "$CARGO" build --release --locked -p softdpu
            # The program under test is optimised as for its users; the tests beside it need not be, and take a quarter of the
            # time to build.
            # A program with other formats of the supervisor's state, for upgrades from one release to another and back.
            run "$CARGO" build --locked -p softdpu --features next-release
            export SOFTDPU_NEXT_BIN=${CARGO_TARGET_DIR:-$PWD/target}/debug/softdpu-next
            cp -f "${SOFTDPU_NEXT_BIN%-next}" "$SOFTDPU_NEXT_BIN"
            run "$CARGO" build --locked -p softdpu-tests --bin suite
            run "$CARGO" test -p softdpu-tests --locked --no-run
            # "  Executable tests/network.rs (target/debug/deps/network-0a1b2c)"
            programs=$(sed -n 's/^ *Executable .*(\(.*\))$/\1/p' "$log")
            programs=$(for first in "${LONGEST[@]}"; do grep "/$first-[^/]*$" <<<"$programs"; done
                grep -v "/\($(IFS='|'; sed 's/|/\\|/g' <<<"${LONGEST[*]}")\)-[^/]*$" <<<"$programs")
            # shellcheck disable=SC2086
            run "${CARGO_TARGET_DIR:-target}/debug/suite" --logs .cache/e2e --folder tests --alone "$ALONE" $programs
            ;;
        *)
            echo "test: there is no part $part: unit, loom, miri, e2e" >&2
            exit 2
            ;;
    esac
done

count() { sed -n "s/^test result: .* \([0-9][0-9]*\) $1;.*/\1/p" "$log" | awk '{ sum += $1 } END { print sum + 0 }'; }
passed=$(count passed)
failed=$(($(count failed) + broken))
ignored=$(count ignored)
skipped=$(wc -l <"$SOFTDPU_SKIPS")
echo
# A test that was skipped has counted as passed in its program; a part that was left out has not counted at all.
if [ "$skipped" -gt 0 ]; then
    passed=$((passed - skipped + missing))
    echo "$skipped skipped:"
    sed 's/^SKIPPED /  /' "$SOFTDPU_SKIPS"
fi
# They count as failed. What ran beside them is where to look for the cause.
if grep -q '^alone: ' "$log"; then
    echo "failed, and passed when run alone:"
    sed -n 's/^alone: \([^:]* [^ ]*\): .*/  \1/p' "$log"
fi
[ "$ignored" = 0 ] || echo "$ignored ignored"
[ "$broken" = 0 ] || echo "$broken command(s) failed before their tests ran: see $log"
echo "$passed passed, $failed failed" | tee .cache/tally
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
