//! The tables of figures in documentation are those that `make figures` writes from docs/results.

use std::path::Path;

use softdpu_bench::figures::Figures;

#[test]
fn tables_of_figures_are_as_the_command_writes_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let figures = Figures::read(&root).unwrap_or_else(|error| panic!("{error}"));
    let pages = figures.pages(&root).unwrap_or_else(|error| panic!("{error}"));
    assert!(pages.iter().any(|(path, ..)| path.ends_with("README.md")), "README.md has a table of figures");
    for (path, is, should) in pages {
        let first = is.lines().zip(should.lines()).find(|(is, should)| is != should);
        assert!(is == should, "{}: run `make figures`; the first difference: {first:?}", path.display());
    }
}
