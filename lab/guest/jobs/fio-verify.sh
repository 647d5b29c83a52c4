# fio writes a disk through all its queues and verifies it. Parameters: DISK, MIB (per job), JOBS, ROUNDS.
report disk ok "bytes=$(disk_bytes "$DISK") queues=$(disk_queues "$DISK")"
round=0
while [ $round -lt "$ROUNDS" ]; do
    round=$((round + 1))
    step round write_and_verify "/dev/$DISK" "$round" "$MIB" "$JOBS"
done
