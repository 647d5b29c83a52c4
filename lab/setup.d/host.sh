# Programs of the host: what building, testing and the demonstration call by name.

# program=package (Debian name)
HOST_PROGRAMS='
cc=gcc
qemu-system-x86_64=qemu-system-x86
qemu-img=qemu-utils
qemu-io=qemu-utils
qemu-storage-daemon=qemu-utils
nbdkit=nbdkit
busybox=busybox-static
mke2fs=e2fsprogs
xz=xz-utils
flock=util-linux
virt-xml-validate=libvirt-clients
xmllint=libxml2-utils
setpriv=util-linux
ip=iproute2
ping=iputils-ping
ethtool=ethtool
iperf3=iperf3
tshark=tshark
'

# Foreign clients, peers and judges. A test that misses one is skipped and says so, and so is a comparison of `make bench`.
PEER_PROGRAMS='
dpdk-testpmd=dpdk-dev
tshark=tshark
nfcapd=nfdump
nft=nftables
python3:cryptography=python3-cryptography
'

# What counts instructions, wanted by `make instructions` alone.
BENCH_PROGRAMS='
valgrind=valgrind
'

# missing_of LINES: those of the lines whose program is not there, or, for python3:MODULE, whose module of Python's.
missing_of() {
    local line program
    for line in $1; do
        program=${line%%=*}
        case $program in
        python3:*) python3 -c "import ${program#python3:}" >/dev/null 2>&1 ;;
        *) command -v "$program" >/dev/null 2>&1 ;;
        esac || printf '%s\n' "$line"
    done
}

missing_programs() {
    missing_of "$HOST_PROGRAMS"
    # gcc without the C library's start files cannot link: ask the compiler where they are.
    if command -v cc >/dev/null 2>&1 && [ "$(cc -print-file-name=crt1.o)" = crt1.o ]; then printf 'crt1.o=libc6-dev\n'; fi
}

# as_root COMMAND...: directly when we are root, else through sudo.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

apt_install() {
    export DEBIAN_FRONTEND=noninteractive
    as_root apt-get -q update
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends \
        -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 install "$@"
}

host_programs() {
    local missing packages
    [ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || die "softdpu's lab runs on Linux on x86_64, this is $(uname -s) on $(uname -m)"
    missing=$(missing_programs)
    if ! command -v apt-get >/dev/null 2>&1; then
        say "this system has no apt. Install these programs by its own means:"
        # shellcheck disable=SC2086
        printf '  %s\n' ${missing:-"(all of the host's programs are there)"} | sed 's/=\(.*\)/   (Debian calls the package \1)/' >&2
        die "the guest's kernel and root image are made from Debian packages, which needs apt-get and dpkg (many systems package both)"
    fi
    [ -n "$missing" ] || return 0
    # gcc only recommends the C library's headers and start files, and linking needs them.
    packages=$(printf '%s\n' "$missing" | sed 's/.*=//; s/^gcc$/gcc libc6-dev/' | tr ' ' '\n' | sort -u | tr '\n' ' ')
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null 2>&1; then
        die "these packages are missing and there is neither root nor sudo here. As root: apt-get install --no-install-recommends $packages"
    fi
    if [ "$(id -u)" != 0 ]; then sudo -v || die "sudo was refused. As root: apt-get install --no-install-recommends $packages"; fi
    # shellcheck disable=SC2086
    run_step "installing $packages" apt_install $packages
    missing=$(missing_programs)
    [ -z "$missing" ] || die "still missing after the installation: $(printf '%s' "$missing" | tr '\n' ' ')"
}

# optional_programs LINES: installs what is missing of them, where apt and the privilege for it are there.
optional_programs() {
    local missing packages
    missing=$(missing_of "$1")
    [ -n "$missing" ] || return 0
    packages=$(printf '%s\n' "$missing" | sed 's/.*=//' | sort -u | tr '\n' ' ')
    if ! command -v apt-get >/dev/null 2>&1 || { [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; }; then
        say "some programs are missing, and what needs them will be skipped; Debian has them in: $packages"
        return 0
    fi
    # shellcheck disable=SC2086
    run_step "installing $packages" apt_install $packages || say "what needs them will be skipped: $packages"
}
