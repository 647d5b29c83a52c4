# qemu-img and qemu-io with the virtio-blk-vhost-user driver (libblkio), which Debian has from trixie on.
# They are unpacked into .cache/trixie with all their libraries and run through their own dynamic loader, so that they
# work on older releases too. Where they cannot be had, .cache/blkio.missing says why and the tests print a skip.

BLKIO_SUITE=trixie
BLKIO_PACKAGES='qemu-utils qemu-block-extra libblkio1'

blkio_step() {
    local digest
    digest=$(inputs "$LAB/setup.d/blkio.sh" "$LAB/setup.d/apt.sh")
    if stamped blkio "$digest" && [ -x "$CACHE/bin/qemu-io-blkio" ]; then return 0; fi
    rm -f "$CACHE"/bin/*-blkio "$CACHE/blkio.missing"
    if run_step "fetching $BLKIO_SUITE's qemu-img and qemu-io with libblkio" fetch_blkio; then
        stamp blkio "$digest"
    else
        # No failure of the whole: it is tried again on the next run.
        printf '%s\n' "$BLKIO_SUITE's qemu-utils and qemu-block-extra could not be fetched or do not run here" >"$CACHE/blkio.missing"
        say "going on without libblkio: $(cat "$CACHE/blkio.missing")"
    fi
}

fetch_blkio() {
    local tree=$CACHE/$BLKIO_SUITE archive archives program
    open_suite "$BLKIO_SUITE"
    # shellcheck disable=SC2086
    archives=$(closure "$BLKIO_SUITE" $BLKIO_PACKAGES)
    merged_tree "$tree"
    for archive in $archives; do unpack "$archive" "$tree"; done
    rm -rf "$tree"/usr/share/{doc,man,locale,info}
    for program in qemu-img qemu-io; do
        [ -x "$tree/usr/bin/$program" ] || { say "$BLKIO_SUITE's packages hold no $program"; return 1; }
        wrapper "$program-blkio" "$tree" "$program"
    done
    # The proof that it runs, and that the driver is in it: opening a missing socket is an error of the driver's own.
    "$CACHE/bin/qemu-img-blkio" --version
    { "$CACHE/bin/qemu-io-blkio" -c quit --image-opts driver=virtio-blk-vhost-user,path=/nonexistent,cache.direct=on 2>&1 || true; } |
        tee /dev/stderr | grep -q blkio_connect
}
