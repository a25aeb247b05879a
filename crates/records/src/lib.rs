//! Keys and values in files: what `dunlin kv load` reads and `dunlin kv dump` writes.
//!
//! | Format | Names | A record | Bytes that are not text |
//! |---|---|---|---|
//! | [`Format::Tsv`] | `.tsv` `.txt` | a line with fields between tabs | `\t` `\n` `\r` `\\` `\xHH` in any field |
//! | [`Format::Csv`] | `.csv` | fields between commas, quoted where needed (RFC 4180) | the column `encoding` says `base64` for both key and value |
//! | [`Format::JsonLines`] | `.jsonl` `.ndjson` `.json` | an object on a line | `key_base64` and `value_base64` in place of `key` and `value` |
//! | [`Format::Packages`] | files named `Packages` or `status` | a paragraph of Debian's package index, under `name_version_architecture` | read only |
//!
//! Each may be compressed with gzip. [`Reader`] reads one record after another, names the line of an error, and holds
//! no more than one record of at most [`RECORD_BYTES_MAX`] in memory; [`Writer`] writes records that [`Reader`] reads
//! back to the same bytes.
#![forbid(unsafe_code)]

mod columns;
mod csv_file;
mod error;
mod escape;
mod format;
mod input;
mod json_lines;
mod lines;
mod packages;
mod reader;
mod record;
mod tsv;
mod writer;

pub use columns::{Column, Columns, HeaderRow};
pub use error::{Fault, RecordError};
pub use escape::escape;
pub use format::{Format, UnknownFormat};
pub use input::{Input, Progress};
pub use lines::RECORD_BYTES_MAX;
pub use reader::{Numbered, Reader};
pub use record::Record;
pub use writer::{GzipEncoder, Writer};
