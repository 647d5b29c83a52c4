# A QEMU in which a vhost-user interface may have MSI-X without KVM, for `make bench`: Debian 12's 7.2 dies of it, 10 does not.
# Not needed where the machine's own is as new.

QEMU_SUITE=trixie
QEMU_LEAST=10

qemu_step() {
    local own
    own=$(qemu-system-x86_64 --version 2>/dev/null | sed -n 's/.*version \([0-9]*\)\..*/\1/p' || true)
    if [ -n "$own" ] && [ "$own" -ge "$QEMU_LEAST" ]; then return 0; fi
    suite_programs qemu qemu-system-x86_64-newer "fetching $QEMU_SUITE's QEMU" fetch_qemu \
        "$QEMU_SUITE's QEMU could not be fetched or does not run here: softdpu's interfaces are measured without MSI-X"
}

fetch_qemu() {
    local tree=$CACHE/qemu
    suite_tree "$tree" "$QEMU_SUITE" qemu-system-x86
    # shellcheck disable=SC2016
    wrapper qemu-system-x86_64-newer "$tree" 'bin/qemu-system-x86_64 -L "$tree/usr/share/qemu" -L "$tree/usr/share/seabios"'
    # The proof that it runs.
    "$CACHE/bin/qemu-system-x86_64-newer" --version
}
