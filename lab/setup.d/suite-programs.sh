# Programs of another Debian suite than the machine's, unpacked into .cache with all their libraries and run through their own dynamic
# loader, so that they work on older releases too, and so that no package of theirs starts a service.

# suite_programs NAME PROGRAM LABEL FETCH WITHOUT: runs FETCH once, so that .cache/bin/PROGRAM is there. Where that fails, the setup goes
# on and says so; .cache/NAME.missing holds WITHOUT, which the tests print as they skip, and it is tried again on the next run.
suite_programs() {
    local name=$1 program=$CACHE/bin/$2 label=$3 fetch=$4 without=$5 digest
    digest=$(inputs "$LAB/setup.d/$name.sh" "$LAB/setup.d/suite-programs.sh" "$LAB/setup.d/apt.sh")
    if stamped "$name" "$digest" && [ -x "$program" ]; then return 0; fi
    rm -f "$program" "$CACHE/$name.missing"
    if run_step "$label" "$fetch"; then
        stamp "$name" "$digest"
    else
        rm -f "$program"
        printf '%s\n' "$without" >"$CACHE/$name.missing"
        say "going on without it: $without"
    fi
}

# suite_tree TREE SUITE PACKAGE...: a tree with the packages and all they depend on, without what only people read.
suite_tree() {
    local tree=$1 suite=$2 archive archives
    shift 2
    open_suite "$suite"
    archives=$(closure "$suite" "$@")
    merged_tree "$tree"
    for archive in $archives; do unpack "$archive" "$tree"; done
    rm -rf "$tree"/usr/share/{doc,man,locale,info}
}

# wrapper NAME TREE COMMAND [LIBRARIES]: .cache/bin/NAME, which runs a program below the tree's usr, its options with it, by the tree's
# own loader, with libraries, those in the folder LIBRARIES beside them, and QEMU's modules from there. In COMMAND $tree is the tree. It
# is found from where the wrapper lies, so that a checkout can be moved.
wrapper() {
    mkdir -p "$CACHE/bin"
    cat >"$CACHE/bin/$1" <<WRAPPER
#!/bin/sh
tree=\$(cd "\$(dirname "\$0")/.." && pwd)/${2#"$CACHE/"}
library=\$tree/usr/lib/x86_64-linux-gnu
export QEMU_MODULE_DIR="\$library/qemu"
exec "\$library/ld-linux-x86-64.so.2" --library-path "\$library${4:+:\$library/$4}" "\$tree/usr/"$3 "\$@"
WRAPPER
    chmod 755 "$CACHE/bin/$1"
}
