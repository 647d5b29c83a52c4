# A QEMU in which a vhost-user interface may have MSI-X without KVM, for `make bench`: Debian 12's 7.2 dies of it, 10 does not.
# Unpacked into .cache/qemu with all its libraries and run through its own dynamic loader. Not needed where the machine's own
# is as new.

QEMU_SUITE=trixie
QEMU_PACKAGES='qemu-system-x86'
QEMU_LEAST=10

qemu_step() {
    local digest own
    own=$(qemu-system-x86_64 --version 2>/dev/null | sed -n 's/.*version \([0-9]*\)\..*/\1/p' || true)
    if [ -n "$own" ] && [ "$own" -ge "$QEMU_LEAST" ]; then return 0; fi
    digest=$(inputs "$LAB/setup.d/qemu.sh" "$LAB/setup.d/apt.sh")
    if stamped qemu "$digest" && [ -x "$CACHE/bin/qemu-system-x86_64-newer" ]; then return 0; fi
    rm -f "$CACHE/bin/qemu-system-x86_64-newer"
    if run_step "fetching $QEMU_SUITE's QEMU" fetch_qemu; then
        stamp qemu "$digest"
    else
        # No failure of the whole: guests are measured with pin interrupts, and it is tried again on the next run.
        rm -f "$CACHE/bin/qemu-system-x86_64-newer"
        say "going on without $QEMU_SUITE's QEMU: softdpu's interfaces are measured without MSI-X"
    fi
}

fetch_qemu() {
    local tree=$CACHE/qemu archive archives
    open_suite "$QEMU_SUITE"
    # shellcheck disable=SC2086
    archives=$(closure "$QEMU_SUITE" $QEMU_PACKAGES)
    merged_tree "$tree"
    for archive in $archives; do unpack "$archive" "$tree"; done
    rm -rf "$tree"/usr/share/{doc,man,locale,info}
    # shellcheck disable=SC2016
    wrapper qemu-system-x86_64-newer "$tree" 'qemu-system-x86_64 -L "$tree/usr/share/qemu" -L "$tree/usr/share/seabios"'
    # The proof that it runs.
    "$CACHE/bin/qemu-system-x86_64-newer" --version
}
