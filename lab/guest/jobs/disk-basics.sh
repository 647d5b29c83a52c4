# Writes a disk, reads it back past the cache, and says what the kernel sees. Parameters: DISK.
write() { dd if=/dev/urandom of=/tmp/data bs=1M count=4 && dd if=/tmp/data "of=/dev/$DISK" bs=64k oflag=direct conv=fsync; }
reread() { dd "if=/dev/$DISK" of=/tmp/reread bs=64k count=64 iflag=direct && cmp /tmp/data /tmp/reread; }

report disk ok "bytes=$(disk_bytes "$DISK") queues=$(disk_queues "$DISK")"
step write write
step reread reread
