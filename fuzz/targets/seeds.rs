//! Writes the first corpus into `seeds/`, and runs each of its inputs once.

use std::fs;
use std::io;
use std::path::Path;

fn write(folder: &str, inputs: Vec<(&str, Vec<u8>)>, check: fn(&[u8])) -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(folder);
    fs::create_dir_all(&folder)?;
    for (name, bytes) in inputs {
        check(&bytes);
        fs::write(folder.join(name), bytes)?;
    }
    Ok(())
}

fn main() -> io::Result<()> {
    write("packet", dunlin_fuzz::seeds::all(), dunlin_fuzz::packet::check)?;
    write("endpoint", dunlin_fuzz::seeds::attacks(), dunlin_fuzz::endpoint::check)?;
    write("snapshot", dunlin_fuzz::snapshot::seeds(), dunlin_fuzz::snapshot::check)?;
    write("log", dunlin_fuzz::log::seeds(), dunlin_fuzz::log::check)?;
    write("seq", dunlin_fuzz::seq::seeds(), dunlin_fuzz::seq::check)?;
    write("txn", dunlin_fuzz::txn::seeds(), dunlin_fuzz::txn::check)
}
