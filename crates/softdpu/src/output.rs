//! What commands print.

use std::io::{ErrorKind, Write};

/// Prints `text` on standard output. A reader that has gone, as `head` does, has all it wanted: the command ends then,
/// with success.
///
/// # Errors
/// Why it cannot be printed, as where a disk is full.
pub fn print(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(format!("standard output: {error}")),
    }
}
