# apt without touching the system's apt: every suite has lists, state and archives of its own under .cache/apt/SUITE.
# Which mirror serves a suite follows from the machine's own sources, whatever they are.

# The codename of the machine's own suite (bookworm, trixie, ...); nothing where the system has none.
own_suite() { sed -n 's/^VERSION_CODENAME="\{0,1\}\([^"]*\)"\{0,1\}$/\1/p' /etc/os-release; }

# private_apt SUITE ARGUMENTS...: apt-get with the suite's private state. Nothing counts as installed in it, so that
# an installation's closure is complete, except the packages named in guest.sh's GUEST_PRETEND.
private_apt() {
    local suite=$1 dir
    shift
    dir=$CACHE/apt/$suite
    set -- -o "Dir::State=$dir/state" -o "Dir::State::status=$dir/status" -o "Dir::Cache=$dir/cache" \
        -o APT::Get::Assume-Yes=true -o APT::Install-Recommends=false -o Acquire::Languages=none \
        -o Acquire::Retries=3 -o Acquire::http::Timeout=30 "$@"
    # Another suite's sources replace the machine's; for its own suite the machine's own files serve as they are.
    if [ -f "$dir/sources.list" ]; then
        set -- -o "Dir::Etc::sourcelist=$dir/sources.list" -o Dir::Etc::sourceparts=- -o Dir::Etc::preferences=- -o Dir::Etc::preferencesparts=- "$@"
    fi
    # The unprivileged user that apt downloads as has no way into a checkout in somebody's home directory.
    if [ "$(id -u)" = 0 ]; then set -- -o APT::Sandbox::User=root "$@"; fi
    apt-get -q "$@"
}

# derived_sources SUITE: the machine's Debian sources, with its own suite replaced by SUITE. Backports have neither updates nor
# security updates of their own.
derived_sources() {
    local suite=$1 own keyring option=
    own=$(own_suite)
    for keyring in /usr/share/keyrings/debian-archive-keyring.gpg /usr/share/keyrings/debian-archive-keyring.pgp; do
        if [ -f "$keyring" ]; then option="[signed-by=$keyring] "; break; fi
    done
    # shellcheck disable=SC2016
    apt-get indextargets --no-release-info --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
        sort -u | while read -r uri release component; do
        [ "$component" = main ] || continue
        case $suite/$release in *-backports/*-*) continue ;; esac
        case $release in
            "$own" | stable | oldstable) printf 'deb %s%s %s main\n' "$option" "$uri" "$suite" ;;
            "$own"-updates | stable-updates | oldstable-updates) printf 'deb %s%s %s-updates main\n' "$option" "$uri" "$suite" ;;
            "$own"-security | stable-security | oldstable-security) printf 'deb %s%s %s-security main\n' "$option" "$uri" "$suite" ;;
        esac
    done | sort -u
}

# open_suite SUITE: prepares the private state and fetches the suite's package lists.
open_suite() {
    local suite=$1 dir=$CACHE/apt/$1 package
    mkdir -p "$dir/state/lists/partial" "$dir/cache/archives/partial"
    : >"$dir/status"
    for package in $GUEST_PRETEND; do
        printf 'Package: %s\nStatus: install ok installed\nVersion: 999\nArchitecture: amd64\nMulti-Arch: allowed\nMaintainer: lab\nDescription: not needed in a guest\n\n' "$package" >>"$dir/status"
    done
    rm -f "$dir/sources.list"
    if [ "$suite" != "$(own_suite)" ]; then
        derived_sources "$suite" >"$dir/sources.list"
        [ -s "$dir/sources.list" ] || { say "the machine's apt sources name no Debian suite from which $suite's mirror could be derived"; return 1; }
    fi
    # An unsigned or missing suite must fail here, not leave old lists in use.
    private_apt "$suite" -o APT::Update::Error-Mode=any update
}

# closure SUITE PACKAGE...: downloads the packages with all they depend on and prints the archives' paths.
closure() {
    local suite=$1 archives=$CACHE/apt/$1/cache/archives
    shift
    private_apt "$suite" --download-only install "$@" >&2
    # What apt would fetch for these packages is what it just fetched; archives of an earlier run may lie beside it.
    private_apt "$suite" -qq --print-uris --reinstall -o "Dir::Cache::archives=$CACHE/apt/$suite/none" install "$@" |
        awk '$1 ~ /^\x27/ { print $2 }' | while read -r name; do printf '%s/%s\n' "$archives" "$name"; done
}

# unpack ARCHIVE TREE: like dpkg -x, but into a merged layout: /bin and /lib of the archive go through the tree's links.
unpack() {
    echo "unpacking ${1##*/}"
    dpkg-deb --fsys-tarfile "$1" | tar -x --keep-directory-symlink --no-same-owner -C "$2"
}

# merged_tree TREE: an empty tree in which /bin, /sbin, /lib and /lib64 are links into /usr, as on every Debian now.
merged_tree() {
    local name
    rm -rf "$1"
    mkdir -p "$1"/usr/{bin,sbin,lib,lib64}
    for name in bin sbin lib lib64; do ln -s "usr/$name" "$1/$name"; done
}
