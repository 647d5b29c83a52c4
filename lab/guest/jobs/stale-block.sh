# Proves that write_and_verify's check can fail: a block of round 1 is put back after round 2, as a write would be that
# lands after its replay. Parameters: DISK.
block() { dd bs=4k count=1 "$@" 2>/dev/null; }
first_round() { write_and_verify "/dev/$DISK" 1 8 1 && block "if=/dev/$DISK" of=/tmp/old skip=100 iflag=direct; }
second_round() { write_and_verify "/dev/$DISK" 2 8 1; }
put_back() { block if=/tmp/old "of=/dev/$DISK" seek=100 oflag=direct conv=notrunc; }

step first first_round
step second second_round
step intact write_and_verify "/dev/$DISK" 2 8 1 --verify_only
step put-back put_back
step stale write_and_verify "/dev/$DISK" 2 8 1 --verify_only
