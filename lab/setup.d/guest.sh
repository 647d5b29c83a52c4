# The guest: an unmodified Debian kernel, a root image made from Debian packages, and a small initramfs.
#
#   .cache/guest/vmlinuz         the kernel
#   .cache/guest/root.img        ext4, /dev/vda of a guest that boots from disk
#   .cache/guest/initramfs.cpio  busybox, the virtio modules, lab/guest/initramfs-init
#   .cache/guest/tools.cpio      appended to it for a guest that runs wholly from RAM: fio, sfdisk, ... and their libraries
#   .cache/guest/network.cpio    the same for guests with interfaces only: ip, dhclient, iperf3, wget, ...
#
# A job (lab/guest/jobs/*.sh) is appended to the initramfs as one more archive when a guest starts: no image is rebuilt.

# The guest is of the machine's own release: its mirror is known to have that.
GUEST_SUITE=$(own_suite)

# The cloud flavour boots quickest: fewer drivers, the virtio ones among them.
GUEST_KERNEL=linux-image-cloud-amd64

# The root image: a shell, the tools that jobs call, and what they depend on. busybox adds udhcpc, ping, arping and httpd.
GUEST_PACKAGES='bash dash coreutils diffutils sed grep mawk util-linux mount fdisk e2fsprogs fio procps iproute2 isc-dhcp-client iperf3 ethtool wget'

# Dependencies that only maintainer scripts or plotting tools want. A guest runs none of these: 30 MB less to fetch.
GUEST_PRETEND='python3 python3-minimal perl perl-base libpython3-stdlib debconf cdebconf dpkg tar adduser passwd init-system-helpers sensible-utils debianutils'

# Loaded in this order, each after what it depends on.
GUEST_MODULES='virtio_pci virtio_blk virtio_net virtio_console virtio-rng'

# What a guest without a root disk has beside busybox: for disks, and for networks.
GUEST_TOOLS='/usr/bin/bash /usr/bin/fio /usr/sbin/sfdisk /usr/sbin/mke2fs /usr/sbin/e2fsck /usr/sbin/blkdiscard /usr/sbin/resize2fs /usr/bin/dd /usr/bin/sha256sum'
GUEST_NETWORK_TOOLS='/usr/sbin/ip /usr/sbin/dhclient /usr/sbin/ethtool /usr/bin/iperf3 /usr/bin/wget /usr/bin/sha256sum'

GUEST_ROOT_SIZE=1G

GUEST=$CACHE/guest

guest_packages_step() {
    local digest
    [ -n "$GUEST_SUITE" ] || die "/etc/os-release names no VERSION_CODENAME: which release's packages should the guest be made from?"
    digest=$(inputs "$LAB/setup.d/guest.sh" "$LAB/setup.d/apt.sh" "$GUEST_SUITE")
    if stamped guest-packages "$digest" && [ -f "$GUEST/vmlinuz" ] && [ -d "$GUEST/tree/usr" ]; then return 0; fi
    run_step "fetching the package lists of $GUEST_SUITE" open_suite "$GUEST_SUITE" || die "without package lists there is no guest"
    run_step "fetching the guest's kernel" fetch_kernel || die "no kernel, no guest"
    run_step "fetching and unpacking the guest's packages" fetch_tree || die "no packages, no root image"
    stamp guest-packages "$digest"
}

fetch_kernel() {
    local name dir=$GUEST/kernel archive
    # The meta package names the current kernel; that alone is fetched, not the tools that would install it.
    name=$(private_apt "$GUEST_SUITE" -qq --print-uris install "$GUEST_KERNEL" |
        awk '{ print $2 }' | sed -n 's/^\(linux-image-[0-9][^_]*\)_.*/\1/p' | head -n 1)
    [ -n "$name" ] || { say "$GUEST_SUITE has no $GUEST_KERNEL"; return 1; }
    rm -rf "$dir" "$GUEST/vmlinuz"
    mkdir -p "$dir"
    ( cd "$dir" && private_apt "$GUEST_SUITE" download "$name" )
    archive=$(echo "$dir"/*.deb)
    dpkg -x "$archive" "$dir"
    rm "$archive"
    cp "$dir"/boot/vmlinuz-* "$GUEST/vmlinuz"
}

fetch_tree() {
    local tree=$GUEST/tree archive archives
    merged_tree "$tree"
    # shellcheck disable=SC2086
    archives=$(closure "$GUEST_SUITE" $GUEST_PACKAGES)
    for archive in $archives; do unpack "$archive" "$tree"; done
    rm -rf "$tree"/usr/share/{doc,man,info,locale,icu,bash-completion,zoneinfo,lintian,bug,perl,perl5,gcc} "$tree"/usr/lib32 "$tree"/usr/libx32
    mkdir -p "$tree"/{proc,sys,dev,run,tmp,mnt,root,etc}
}

guest_root_step() {
    local digest
    digest=$(inputs "$CACHE/stamps/guest-packages" "$LAB/guest/root-init" "$GUEST_ROOT_SIZE")
    if stamped guest-root "$digest" && [ -f "$GUEST/root.img" ]; then return 0; fi
    run_step "making the guest's root image" make_root || die "no root image, no guest"
    stamp guest-root "$digest"
}

make_root() {
    local tree=$GUEST/tree
    install -m 755 "$LAB/guest/root-init" "$tree/usr/sbin/init"
    install -m 755 "$(command -v busybox)" "$tree/usr/bin/busybox"
    printf 'root:x:0:0:root:/root:/bin/bash\n' >"$tree/etc/passwd"
    printf 'root:x:0:\n' >"$tree/etc/group"
    ln -sf /proc/mounts "$tree/etc/mtab"
    # The one link of Debian's alternatives that jobs use; it is made at installation otherwise.
    ln -sf mawk "$tree/usr/bin/awk"
    rm -f "$GUEST/root.img"
    # Files of an ordinary user's unpacking belong to root inside.
    mke2fs -q -t ext4 -L softdpu-root -E root_owner=0:0,lazy_itable_init=0,lazy_journal_init=0 -d "$tree" "$GUEST/root.img" "$GUEST_ROOT_SIZE"
}

guest_initramfs_step() {
    local digest
    digest=$(inputs "$CACHE/stamps/guest-packages" "$LAB/guest/initramfs-init" "$(command -v busybox)")
    if stamped guest-initramfs "$digest" && [ -f "$GUEST/initramfs.cpio" ] && [ -f "$GUEST/tools.cpio" ] && [ -f "$GUEST/network.cpio" ]; then return 0; fi
    run_step "making the guest's initramfs" make_initramfs || die "no initramfs, no guest"
    stamp guest-initramfs "$digest"
}

# with_dependencies KERNEL MODULE...: paths of the modules' files in an unpacked kernel, each after those it needs.
with_dependencies() {
    local kernel=$1 module file depends
    shift
    for module; do
        file=$(find "$kernel" -name "$(printf '%s' "$module" | sed 's/[-_]/[-_]/g').ko*" | head -n 1)
        # What is not a file is built into the kernel.
        [ -n "$file" ] || continue
        if [ "${file%.xz}" != "$file" ]; then
            xz -d "$file"
            file=${file%.xz}
        fi
        depends=$(tr '\0' '\n' <"$file" | sed -n 's/^depends=//p' | tr ',' ' ')
        # shellcheck disable=SC2086
        with_dependencies "$kernel" $depends
        printf '%s\n' "$file"
    done
}

make_archive() { ( cd "$1" && find . -mindepth 1 | sort | busybox cpio -o -H newc -R 0:0 ) >"$2.new" && mv "$2.new" "$2"; }

make_initramfs() {
    # shellcheck disable=SC2086
    make_boot_archive "$GUEST" $GUEST_MODULES
    # shellcheck disable=SC2086
    make_tools tools $GUEST_TOOLS
    # shellcheck disable=SC2086
    make_tools network $GUEST_NETWORK_TOOLS
}

# make_boot_archive FOLDER MODULE...: FOLDER/initramfs.cpio: busybox, the guest's init, and modules of the kernel in FOLDER/kernel with
# those that they need.
make_boot_archive() {
    local folder=$1 work=$1/initramfs number=0 file
    shift
    rm -rf "$work"
    mkdir -p "$work"/{bin,modules,proc,sys,dev,run,tmp,mnt,newroot,softdpu,etc}
    install -m 755 "$(command -v busybox)" "$work/bin/busybox"
    install -m 755 "$LAB/guest/initramfs-init" "$work/init"
    ln -s /proc/mounts "$work/etc/mtab"
    with_dependencies "$folder/kernel" "$@" | awk '!seen[$0]++' >"$folder/modules.list"
    while read -r file; do
        number=$((number + 1))
        cp "$file" "$work/modules/$(printf '%02d' $number)-${file##*/}"
    done <"$folder/modules.list"
    make_archive "$work" "$folder/initramfs.cpio"
}

# make_tools NAME PROGRAM...: the archive NAME.cpio of the programs and their libraries, as the guest's own loader finds
# them in the unpacked tree.
make_tools() {
    local tools=$GUEST/$1 name=$1 loader=usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 file
    shift
    rm -rf "$tools"
    mkdir -p "$tools"/{usr/bin,usr/sbin,lib64}
    cd "$GUEST/tree" || return 1
    for file; do
        [ -e ".$file" ] || file=${file/sbin/bin}
        [ -e ".$file" ] || { say "the guest's packages hold no $file"; return 1; }
        cp -L ".$file" "$tools$file"
        "$PWD/$loader" --library-path "$PWD/usr/lib/x86_64-linux-gnu:$PWD/usr/lib/x86_64-linux-gnu/ceph" --list ".$file" |
            sed -n "s|.*=> $PWD/\(.*\) (0x.*|\1|p"
    done | sort -u >"$GUEST/$name.libraries"
    while read -r file; do
        install -D -m 755 "$file" "$tools/$file"
    done <"$GUEST/$name.libraries"
    install -m 755 "$loader" "$tools/lib64/ld-linux-x86-64.so.2"
    mkdir -p "$tools/lib"
    ln -s ../usr/lib/x86_64-linux-gnu "$tools/lib/x86_64-linux-gnu"
    make_archive "$tools" "$GUEST/$name.cpio"
}
