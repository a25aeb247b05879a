//! Writes the first inputs of the fuzz targets into `seeds`: `cargo run -p dunlin-fuzz --example seeds`.

use std::fs;
use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    for (target, inputs) in dunlin_fuzz::first_inputs() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
        fs::create_dir_all(&folder)?;
        for (name, bytes) in inputs {
            fs::write(folder.join(name), bytes)?;
        }
    }
    Ok(())
}
