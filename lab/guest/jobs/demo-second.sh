# The demonstration's second boot: everything that the first one wrote is there. Parameters: GROW (yes or no).
DISK=/dev/vdb

root_mark() { grep -q 'the first boot was here' /root/mark; }
check_ext4() { e2fsck -f -n "${DISK}1" && mount -t ext4 -o ro "${DISK}1" /mnt; }
reread() { ( cd /mnt && sha256sum --quiet -c checksums ) && detail files=8; }
reread_growth() {
    read -r end </mnt/tail.offset
    dd "if=$DISK" bs=1M skip=$((end >> 20)) count=8 iflag=direct status=none | cmp - /mnt/tail &&
        detail "mib=$(($(disk_bytes vdb) >> 20))"
}

step mark root_mark
step ext4 check_ext4
step reread reread
if [ "$GROW" = yes ]; then step use-growth reread_growth; fi
