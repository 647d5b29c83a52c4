# The demonstration's first boot. The root is on /dev/vda; /dev/vdb is empty. Parameters: GROW (yes or no).
DISK=/dev/vdb

# The second partition ends with the disk, so that it can grow with it.
partition() { printf 'label: dos\nsize=192MiB, type=83\ntype=83\n' | sfdisk --quiet "$DISK" && [ -b "${DISK}2" ]; }
make_ext4() { mke2fs -q -t ext4 "${DISK}1" && mount -t ext4 "${DISK}1" /mnt; }
write_files() {
    mkdir /mnt/files
    for number in 1 2 3 4 5 6 7 8; do
        dd if=/dev/urandom "of=/mnt/files/$number" bs=1M count=8 status=none || return 1
    done
    ( cd /mnt && sha256sum files/* >checksums ) && sync && detail mib=64
}
reread() { echo 3 >/proc/sys/vm/drop_caches; ( cd /mnt && sha256sum --quiet -c checksums ) && detail files=8; }
discard() { blkdiscard "${DISK}2"; }
wait_for_growth() {
    before=$1
    for _ in $(seq 600); do
        if [ "$(disk_bytes vdb)" -gt "$before" ]; then detail "mib=$(($(disk_bytes vdb) >> 20))"; return; fi
        sleep 0.1
    done
    echo "the disk still has $before bytes"
    return 1
}
use_growth() {
    end=$(($(disk_bytes vdb) - 16 * 1048576))
    echo ', +' | sfdisk --quiet --force --no-reread -N 2 "$DISK" && partx -u -n 2 "$DISK" || return 1
    dd if=/dev/urandom of=/mnt/tail bs=1M count=8 status=none &&
        dd if=/mnt/tail "of=$DISK" bs=1M seek=$((end >> 20)) oflag=direct conv=notrunc,fsync status=none &&
        dd "if=$DISK" bs=1M skip=$((end >> 20)) count=8 iflag=direct status=none | cmp - /mnt/tail &&
        echo "$end" >/mnt/tail.offset
}
leave_mark() { echo "the first boot was here" >/root/mark && sync && umount /mnt; }

report disks ok "root_mib=$(($(disk_bytes vda) >> 20)) data_mib=$(($(disk_bytes vdb) >> 20)) queues=$(disk_queues vdb)"
step partition partition
step ext4 make_ext4
step write write_files
step reread reread
rounds_until_stopped "${DISK}2" 16 2
step reread reread
step discard discard
if [ "$GROW" = yes ]; then
    size=$(disk_bytes vdb)
    report growable ok "mib=$((size >> 20))"
    step grown wait_for_growth "$size"
    step use-growth use_growth
fi
step mark leave_mark
