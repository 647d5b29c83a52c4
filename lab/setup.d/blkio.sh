# qemu-img and qemu-io with the virtio-blk-vhost-user driver (libblkio), which Debian has from trixie on.

BLKIO_SUITE=trixie
BLKIO_PACKAGES='qemu-utils qemu-block-extra libblkio1'

blkio_step() {
    suite_programs blkio qemu-io-blkio "fetching $BLKIO_SUITE's qemu-img and qemu-io with libblkio" fetch_blkio \
        "$BLKIO_SUITE's qemu-utils and qemu-block-extra could not be fetched or do not run here"
}

fetch_blkio() {
    local tree=$CACHE/$BLKIO_SUITE program
    # shellcheck disable=SC2086
    suite_tree "$tree" "$BLKIO_SUITE" $BLKIO_PACKAGES
    for program in qemu-img qemu-io; do
        [ -x "$tree/usr/bin/$program" ] || { say "$BLKIO_SUITE's packages hold no $program"; return 1; }
        wrapper "$program-blkio" "$tree" "bin/$program"
    done
    # The proof that it runs, and that the driver is in it: opening a missing socket is an error of the driver's own.
    "$CACHE/bin/qemu-img-blkio" --version
    { "$CACHE/bin/qemu-io-blkio" -c quit --image-opts driver=virtio-blk-vhost-user,path=/nonexistent,cache.direct=on 2>&1 || true; } |
        tee /dev/stderr | grep -q blkio_connect
}
