//! The tables of figures in documentation are those that `make figures` writes from docs/results.

use std::fs;
use std::path::Path;

use softdpu_bench::figures::{Figures, RESULTS};

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

#[test]
fn a_run_is_renewed_from_a_folder_of_results_and_says_what_is_left_of_the_one_before() {
    const KEPT: &str = r#"{"about":"a run before"}
{"bench":"idle","subject":"softdpu","case":"8 disks","metric":"cpu","unit":"core","value":0.5}
{"bench":"idle","subject":"softdpu","case":"8 disks","metric":"resident","unit":"B","value":1.0}
"#;
    let cpu = |value| format!("{}\n", KEPT.lines().nth(1).unwrap().replace("0.5", value));
    let (root, measured) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let results = root.path().join(RESULTS);
    fs::create_dir_all(&results).unwrap();
    fs::create_dir(root.path().join("lab")).unwrap();
    fs::write(root.path().join("lab/instructions.baseline"), "").unwrap();
    fs::write(root.path().join("README.md"), "<!-- figures: idle -->\n<!-- end -->\n").unwrap();
    fs::write(results.join("idle.md"), "{about run}: {run / softdpu / 8 disks / cpu / %0} %\n").unwrap();
    fs::write(results.join("run.jsonl"), KEPT).unwrap();
    fs::write(measured.path().join("bench-idle.jsonl"), cpu("0.25")).unwrap();
    fs::write(measured.path().join("bench-run.jsonl"), "{\"about\":\"a run now\"}\n").unwrap();

    let mut figures = Figures::read(root.path()).unwrap();
    let told = figures.renew(root.path(), measured.path(), &["run".to_owned()]).unwrap();
    assert_eq!(told, ["run: 1 of 2 figures are renewed"]);
    assert!(figures.renew(root.path(), measured.path(), &["other".to_owned()]).is_err());

    let again = Figures::read(root.path()).unwrap();
    let [(path, is, should)] = &again.pages(root.path()).unwrap()[..] else { panic!("one page has a table") };
    assert!(path.ends_with("README.md") && is != should);
    let about = "a run now (1 of 2 figures; the others: a run before)";
    assert_eq!(*should, format!("<!-- figures: idle -->\n{about}: 25 %\n<!-- end -->\n"));
}
