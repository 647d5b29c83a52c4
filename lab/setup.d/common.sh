# Messages, progress and stamps for lab/setup.sh.

say() { printf 'setup: %s\n' "$*" >&2; }
die() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

# run_step LABEL FUNCTION ARGUMENTS...: runs a long step with its output in a log file and a ticking clock on the
# terminal. On failure the end of the log is shown. The step is a process of its own, because bash forgets `set -e`
# inside a function whose result somebody looks at.
run_step() {
    local label=$1 log start pid rc=0
    shift
    log=$CACHE/setup-$(printf '%s' "$label" | tr -cs 'a-zA-Z0-9' '-').log
    start=$SECONDS
    say "$label ..."
    "$LAB/setup.sh" --step "$@" >"$log" 2>&1 9>&- &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        if [ -t 2 ]; then printf '\r  %3d s  %.70s\033[K' $((SECONDS - start)) "$(tail -c 200 "$log" | tr '\r' '\n' | grep -v '^$' | tail -n 1 || true)" >&2; fi
        sleep 0.2
    done
    wait "$pid" || rc=$?
    [ ! -t 2 ] || printf '\r\033[K' >&2
    if [ "$rc" != 0 ]; then
        tail -n 25 "$log" >&2
        say "$label: failed after $((SECONDS - start)) s (whole log: $log)"
        return "$rc"
    fi
    say "$label: done in $((SECONDS - start)) s"
}

# inputs FILE... [TEXT...]: a digest of the files' contents and the words: what a step depends on.
inputs() {
    local item
    for item; do if [ -f "$item" ]; then cat "$item"; else printf '%s\n' "$item"; fi; done | sha256sum | cut -d ' ' -f 1
}

# stamped NAME DIGEST: whether the step was done from these very inputs.
stamped() { [ "$(cat "$CACHE/stamps/$1" 2>/dev/null || true)" = "$2" ]; }
stamp() { printf '%s\n' "$2" >"$CACHE/stamps/$1"; }
