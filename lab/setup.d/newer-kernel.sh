# A kernel for guests that need a driver newer than their own release has: those of NICs whose AF_XDP is without copies (virtio_net and
# igb, Linux 6.14). 122 MB to fetch, most of it drivers that are not kept.
#
#   .cache/newer-kernel/vmlinuz         the kernel
#   .cache/newer-kernel/initramfs.cpio  as the guest's, with this kernel's modules
#
# Where it cannot be had, .cache/newer-kernel.missing says why and the tests print a skip.

NEWER_KERNEL_SUITE=trixie-backports
NEWER_KERNEL=linux-image-amd64
NEWER_KERNEL_MODULES='virtio_pci virtio_net virtio-rng igb tun'

# What would install the kernel. Nobody does here.
NEWER_KERNEL_PRETEND='kmod initramfs-tools linux-base'

newer_kernel_step() {
    local digest dir=$CACHE/newer-kernel
    digest=$(inputs "$LAB/setup.d/newer-kernel.sh" "$LAB/setup.d/guest.sh" "$LAB/setup.d/apt.sh" "$LAB/guest/initramfs-init" "$(command -v busybox)")
    if stamped newer-kernel "$digest" && [ -f "$dir/vmlinuz" ] && [ -f "$dir/initramfs.cpio" ]; then return 0; fi
    rm -rf "$dir" "$CACHE/newer-kernel.missing"
    if run_step "fetching $NEWER_KERNEL_SUITE's kernel" fetch_newer_kernel; then
        stamp newer-kernel "$digest"
    else
        # No failure of the whole: it is tried again on the next run.
        rm -rf "$dir"
        printf '%s\n' "$NEWER_KERNEL_SUITE's $NEWER_KERNEL could not be fetched" >"$CACHE/newer-kernel.missing"
        say "going on without a newer kernel: $(cat "$CACHE/newer-kernel.missing")"
    fi
}

fetch_newer_kernel() {
    local dir=$CACHE/newer-kernel archive archives
    GUEST_PRETEND="$GUEST_PRETEND $NEWER_KERNEL_PRETEND" open_suite "$NEWER_KERNEL_SUITE"
    archives=$(closure "$NEWER_KERNEL_SUITE" "$NEWER_KERNEL")
    mkdir -p "$dir/kernel"
    for archive in $archives; do dpkg -x "$archive" "$dir/kernel"; done
    # Beside its modules since Linux 7.2, in /boot before.
    find "$dir/kernel" -type f -name 'vmlinuz*' -exec cp {} "$dir/vmlinuz" \;
    [ -f "$dir/vmlinuz" ] || { say "$NEWER_KERNEL_SUITE's packages hold no kernel"; return 1; }
    # shellcheck disable=SC2086
    make_boot_archive "$dir" $NEWER_KERNEL_MODULES
    # shellcheck disable=SC2086
    rm -rf "$dir/kernel" "$dir/initramfs" $archives
}
