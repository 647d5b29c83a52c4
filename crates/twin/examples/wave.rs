//! x
fn main() {
    let scope = softdpu_twin::wave::Scope { span: 5_000_000, ..Default::default() };
    for e in softdpu_twin::wave::EXPERIMENTS {
        let t = std::time::Instant::now();
        let s = e.summary(&scope, 3);
        println!("{} {:?}", s.table(), t.elapsed());
    }
}
