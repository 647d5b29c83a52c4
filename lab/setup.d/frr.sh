# FRR's bfdd, the other side of BFD sessions in tests. Unpacked into .cache/frr with all its libraries and run through its own dynamic
# loader: its package would start a service. Where it cannot be had, .cache/frr.missing says why and the test prints a skip.

FRR_SUITE=trixie
FRR_PACKAGES='frr'

frr_step() {
    local digest
    digest=$(inputs "$LAB/setup.d/frr.sh" "$LAB/setup.d/apt.sh")
    if stamped frr "$digest" && [ -x "$CACHE/bin/frr-bfdd" ]; then return 0; fi
    rm -f "$CACHE"/bin/frr-* "$CACHE/frr.missing"
    if run_step "fetching $FRR_SUITE's FRR" fetch_frr; then
        stamp frr "$digest"
    else
        # No failure of the whole: it is tried again on the next run.
        printf '%s\n' "$FRR_SUITE's frr could not be fetched or does not run here" >"$CACHE/frr.missing"
        say "going on without FRR: $(cat "$CACHE/frr.missing")"
    fi
}

fetch_frr() {
    local tree=$CACHE/frr archive archives
    open_suite "$FRR_SUITE"
    # shellcheck disable=SC2086
    archives=$(closure "$FRR_SUITE" $FRR_PACKAGES)
    merged_tree "$tree"
    for archive in $archives; do unpack "$archive" "$tree"; done
    rm -rf "$tree"/usr/share/{doc,man,locale,info}
    frr_wrapper frr-bfdd lib/frr/bfdd
    frr_wrapper frr-vtysh bin/vtysh
    # The proof that they run.
    "$CACHE/bin/frr-bfdd" --version
    "$CACHE/bin/frr-vtysh" --help
}

# frr_wrapper NAME PATH: .cache/bin/NAME, which runs the tree's usr/PATH by the tree's own loader.
frr_wrapper() {
    mkdir -p "$CACHE/bin"
    cat >"$CACHE/bin/$1" <<WRAPPER
#!/bin/sh
tree=\$(cd "\$(dirname "\$0")/.." && pwd)/frr
library=\$tree/usr/lib/x86_64-linux-gnu
exec "\$library/ld-linux-x86-64.so.2" --library-path "\$library:\$library/frr" "\$tree/usr/$2" "\$@"
WRAPPER
    chmod 755 "$CACHE/bin/$1"
}
