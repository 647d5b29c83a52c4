//! What commands print.

use std::fmt;
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

/// Prints on standard error. What cannot be printed there, as where its reader has gone, is lost: that is no reason to
/// end, as `eprint` would.
pub fn print_error(text: fmt::Arguments<'_>) {
    let _ = std::io::stderr().write_fmt(text);
}

/// [`print_error`] of a line.
macro_rules! error_line {
    ($($argument:tt)*) => {
        crate::output::print_error(format_args!("{}\n", format_args!($($argument)*)))
    };
}
pub(crate) use error_line;
