//! Output of commands. A reader such as `head` may close the pipe, and a disk may be full: both end a command, and
//! neither is a panic.

use std::error::Error;
use std::fmt::{self, Display};
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use crate::exit;

/// Standard output could not be written.
#[derive(Debug)]
pub struct OutputError(pub io::Error);

impl Display for OutputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot write to standard output")
    }
}

impl Error for OutputError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

/// Prints a text with a newline, and flushes it.
///
/// # Errors
/// If it cannot be written.
pub fn line(text: impl Display) -> Result<(), OutputError> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(OutputError)
}

/// Prints the bytes of a value: to a file as they are; to a terminal with a newline, unless they end with one.
///
/// # Errors
/// If they cannot be written.
pub fn value(bytes: &[u8]) -> Result<(), OutputError> {
    let mut out = io::stdout().lock();
    let end = if out.is_terminal() { end_of_line(bytes) } else { b"" };
    out.write_all(bytes).and_then(|()| out.write_all(end)).and_then(|()| out.flush()).map_err(OutputError)
}

/// The newline that is missing at the end.
fn end_of_line(bytes: &[u8]) -> &'static [u8] {
    if bytes.ends_with(b"\n") { b"" } else { b"\n" }
}

/// Prints the error that ended a command, and returns its exit code. A closed pipe is not reported.
pub fn report(error: &anyhow::Error, code: ExitCode) -> ExitCode {
    let output = error.chain().find_map(|cause| cause.downcast_ref::<OutputError>());
    if output.is_some_and(|OutputError(why)| why.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::from(exit::BROKEN_PIPE);
    }
    eprintln!("dunlin: {error:#}");
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_ended_once() {
        assert_eq!([&b"value"[..], b"", b"value\n"].map(end_of_line), [&b"\n"[..], b"\n", b""]);
    }
}
