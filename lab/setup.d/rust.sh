# Rust: asked for before anything is installed or downloaded, since a build that cannot succeed should say so at once.

# version_at_least HAVE WANT: whether HAVE (1.88.0, 1.90.0-nightly) is WANT (1.88) or later, by major and minor number.
version_at_least() {
    local have_major have_minor want_major want_minor
    IFS=. read -r have_major have_minor _ <<<"$1"
    IFS=. read -r want_major want_minor _ <<<"$2"
    # Anything but numbers is a version nobody can judge.
    case ${have_major:-x}${have_minor:-x} in *[!0-9]*) return 1 ;; esac
    [ "$have_major" -gt "$want_major" ] || { [ "$have_major" -eq "$want_major" ] && [ "$have_minor" -ge "$want_minor" ]; }
}

# The Rust that the workspace says it needs.
wanted_rust() { sed -n 's/^rust-version = "\([0-9.]*\)"$/\1/p' "$ROOT/Cargo.toml"; }

check_rust() {
    local cargo wanted found advice
    wanted=$(wanted_rust)
    [ -n "$wanted" ] || die "Cargo.toml names no rust-version"
    advice="softdpu needs Rust $wanted or later: install rustup (https://rustup.rs), then run \`rustup toolchain install stable\`"
    # The same one that the Makefile takes.
    cargo=${CARGO:-$(command -v cargo || echo "${HOME:-/root}/.cargo/bin/cargo")}
    command -v "$cargo" >/dev/null 2>&1 || die "there is no cargo here. $advice"
    # In the checkout: rustup may choose a toolchain by folder.
    found=$(cd "$ROOT" && "$cargo" --version 2>/dev/null | sed -n 's/^cargo \([^ ]*\).*/\1/p') || true
    version_at_least "$found" "$wanted" || die "$cargo is ${found:-of no known version}, which is too old. $advice"
}
