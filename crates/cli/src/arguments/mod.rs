//! What words on the command line mean, the same in all commands.

pub mod at;
pub mod condition;
pub mod size;
pub mod time;

use std::io::{Read, stdin};

use anyhow::{Context, Result, ensure};

/// The value of an argument, of so many bytes at most; `-` reads it from the standard input.
pub fn value(argument: &str, bytes_max: usize) -> Result<Vec<u8>> {
    let mut value = Vec::new();
    if argument == "-" {
        // One byte more is enough to see that it is too long.
        let input = stdin().lock().take(bytes_max as u64 + 1).read_to_end(&mut value);
        input.context("cannot read the value from the standard input")?;
    } else {
        value.extend_from_slice(argument.as_bytes());
    }
    ensure!(value.len() <= bytes_max, "the value is longer than {bytes_max} bytes");
    Ok(value)
}
