# FRR's bfdd, the other side of BFD sessions in tests.

FRR_SUITE=trixie

frr_step() {
    suite_programs frr frr-vtysh "fetching $FRR_SUITE's FRR" fetch_frr "$FRR_SUITE's frr could not be fetched or does not run here"
}

fetch_frr() {
    local tree=$CACHE/frr
    suite_tree "$tree" "$FRR_SUITE" frr
    wrapper frr-bfdd "$tree" lib/frr/bfdd frr
    wrapper frr-vtysh "$tree" bin/vtysh frr
    # The proof that they run.
    "$CACHE/bin/frr-bfdd" --version
    "$CACHE/bin/frr-vtysh" --help
}
