# fio rounds for as long as the host kills the data plane; then a region that was written before them is checked.
# Parameters: DISK, MIB (per job), JOBS.
sum() { dd "if=/dev/$DISK" bs=1M skip=$((MIB * JOBS)) count=8 iflag=direct 2>/dev/null | sha256sum; }
bystander() {
    dd if=/dev/urandom of=/tmp/bystander bs=1M count=8 &&
        dd if=/tmp/bystander "of=/dev/$DISK" bs=1M seek=$((MIB * JOBS)) oflag=direct conv=fsync
}
untouched() { [ "$(sum)" = "$(sha256sum </tmp/bystander)" ]; }

step bystander bystander
rounds_until_stopped "/dev/$DISK" "$MIB" "$JOBS"
step untouched untouched
