//! A program that is no softdpu and is given to `softdpu upgrade` for one. What is wrong with it is its file's name.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

fn main() -> ExitCode {
    let name = std::env::current_exe().unwrap_or_default();
    let name = name.file_name().and_then(OsStr::to_str).unwrap_or_default().to_owned();
    let question = std::env::args().nth(1).unwrap_or_default();
    match (name.as_str(), question.as_str()) {
        ("hangs", _) | ("hangs-over-the-state", "supervisor-check") => std::thread::sleep(Duration::from_secs(1000)),
        ("crashes", _) | ("crashes-over-the-state", "supervisor-check") => std::process::abort(),
        ("babbles", _) => loop {
            println!("{}", "softdpu ".repeat(1000));
        },
        ("lies", "supervisor-check") => println!("{{\"fits\":7}}"),
        ("refuses", "supervisor-check") => println!("{{\"refused\":\"it is not to its taste\"}}"),
        ("too-new", "supervisor-formats") => {
            let (state, link) = (r#"{"oldest":1000,"newest":1001}"#, r#"{"oldest":0,"newest":1001}"#);
            println!("{{\"version\":\"9\",\"state\":{state},\"link\":{link}}}");
        }
        // The rest as the real one does.
        _ => {
            let real = std::env::var_os("SOFTDPU_BIN").unwrap_or_else(|| "softdpu".into());
            let error = Command::new(real).args(std::env::args_os().skip(1)).exec();
            eprintln!("impostor: {error}");
        }
    }
    ExitCode::FAILURE
}
