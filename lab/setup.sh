#!/usr/bin/env bash
# Makes a machine ready to build, test and demonstrate softdpu.
#
#   lab/setup.sh            install what is missing, make the guest's kernel and root image
#   lab/setup.sh --force    make everything in .cache/ again
#   lab/setup.sh --bench    install what `make bench` and `make instructions` need besides, and nothing else
#
# Host programs come from apt (as root, or through sudo). Everything else goes into the ignored folder .cache/ and
# needs no privilege: the guest is a Debian kernel and Debian packages, downloaded and unpacked, never installed.
# Each step leaves a stamp that names what it was made from, so that a second run takes a moment.
set -euo pipefail

LAB=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(dirname "$LAB")
CACHE=$ROOT/.cache
# mke2fs and friends live in sbin, which an ordinary user's PATH leaves out.
export PATH=$PATH:/usr/sbin:/sbin
export LC_ALL=C

# shellcheck source=setup.d/common.sh
. "$LAB/setup.d/common.sh"
# shellcheck source=setup.d/rust.sh
. "$LAB/setup.d/rust.sh"
# shellcheck source=setup.d/host.sh
. "$LAB/setup.d/host.sh"
# shellcheck source=setup.d/apt.sh
. "$LAB/setup.d/apt.sh"
# shellcheck source=setup.d/suite-programs.sh
. "$LAB/setup.d/suite-programs.sh"
# shellcheck source=setup.d/guest.sh
. "$LAB/setup.d/guest.sh"
# shellcheck source=setup.d/blkio.sh
. "$LAB/setup.d/blkio.sh"
# shellcheck source=setup.d/newer-kernel.sh
. "$LAB/setup.d/newer-kernel.sh"
# shellcheck source=setup.d/qemu.sh
. "$LAB/setup.d/qemu.sh"
# shellcheck source=setup.d/frr.sh
. "$LAB/setup.d/frr.sh"

mkdir -p "$CACHE/stamps" "$CACHE/apt"

# One step of a run that is under way (see run_step).
if [ "${1:-}" = --step ]; then
    shift
    "$@"
    exit
fi

if [ "${1:-}" = --bench ]; then
    optional_programs "$BENCH_PROGRAMS"
    exec 9>"$CACHE/setup.lock"
    flock 9
    qemu_step
    exit
fi

[ "${1:-}" != --force ] || rm -f "$CACHE"/stamps/*

check_rust
host_programs
optional_programs "$PEER_PROGRAMS"

# Two test runs may start at once; the second waits and then finds everything done.
exec 9>"$CACHE/setup.lock"
flock 9

guest_packages_step
guest_root_step
guest_initramfs_step
blkio_step
frr_step
newer_kernel_step
