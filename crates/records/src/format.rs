//! The formats, and how a file's name determines its format.

use std::path::Path;
use std::str::FromStr;

use thiserror::Error;

/// How records are written in a file. The crate's documentation has a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Fields between tabs.
    Tsv,
    /// Fields between commas.
    Csv,
    /// A JSON object on each line.
    JsonLines,
    /// Debian's package index: paragraphs. Cannot be written.
    Packages,
}

/// A name that no format has.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("there is no format {0:?}: choose tsv, csv, jsonl or packages")]
pub struct UnknownFormat(String);

impl Format {
    /// The format that a file's name indicates, ignoring `.gz` at its end.
    pub fn of_path(path: &Path) -> Option<Format> {
        let path = if path.extension()? == "gz" { Path::new(path.file_stem()?) } else { path };
        path.extension()?.to_str()?.parse().ok()
    }

    /// The same, also for well-known file names without an extension.
    pub fn of_file(path: &Path) -> Option<Format> {
        Format::of_path(path).or_else(|| {
            let name = path.file_name()?.to_str()?;
            (name == "status" || name.trim_end_matches(".gz").ends_with("Packages")).then_some(Format::Packages)
        })
    }
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Format, UnknownFormat> {
        match name {
            "tsv" | "txt" => Ok(Format::Tsv),
            "csv" => Ok(Format::Csv),
            "jsonl" | "ndjson" | "json" => Ok(Format::JsonLines),
            "packages" => Ok(Format::Packages),
            _ => Err(UnknownFormat(name.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_the_format() {
        let of = |name: &str| Format::of_file(Path::new(name));
        assert_eq!(of("words.tsv"), Some(Format::Tsv));
        assert_eq!(of("dir.csv/words.csv.gz"), Some(Format::Csv));
        assert_eq!(of("words.ndjson"), Some(Format::JsonLines));
        assert_eq!(of("/var/lib/dpkg/status"), Some(Format::Packages));
        assert_eq!(of("mirror_main_binary-amd64_Packages"), Some(Format::Packages));
        assert_eq!(of("Packages.gz"), Some(Format::Packages));
        assert_eq!([of("words"), of("words.gz"), of("-"), of("")], [None; 4]);
    }
}
