//! Reads records of any format.

use std::io::BufRead;

use crate::columns::Columns;
use crate::csv_file::Csv;
use crate::error::RecordError;
use crate::format::Format;
use crate::json_lines::JsonLines;
use crate::packages::Packages;
use crate::record::Record;
use crate::tsv::Tsv;

/// A record and its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbered {
    /// The line in which it begins, from 1.
    pub line: u64,
    /// The record.
    pub record: Record,
}

/// Returns one record after another. After an error that is not fatal ([`RecordError::is_fatal`]) it continues with the
/// next.
#[derive(Debug)]
pub struct Reader<R>(Of<R>);

#[derive(Debug)]
enum Of<R> {
    Tsv(Tsv<R>),
    Csv(Csv<R>),
    JsonLines(JsonLines<R>),
    Packages(Packages<R>),
    Ended,
}

impl<R: BufRead> Reader<R> {
    /// Reads `input`, which is of this format.
    pub fn new(input: R, format: Format, columns: &Columns) -> Self {
        Reader(match format {
            Format::Tsv => Of::Tsv(Tsv::new(input, columns.clone(), true)),
            Format::Csv => Of::Csv(Csv::new(input, columns.clone())),
            Format::JsonLines => Of::JsonLines(JsonLines::new(input, columns)),
            Format::Packages => Of::Packages(Packages::new(input)),
        })
    }

    /// Reads tab-separated lines without escapes: a backslash is a backslash.
    pub fn tsv_without_escapes(input: R, columns: &Columns) -> Self {
        Reader(Of::Tsv(Tsv::new(input, columns.clone(), false)))
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Numbered, RecordError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = match &mut self.0 {
            Of::Tsv(reader) => reader.next(),
            Of::Csv(reader) => reader.next(),
            Of::JsonLines(reader) => reader.next(),
            Of::Packages(reader) => reader.next(),
            Of::Ended => Ok(None),
        };
        let is_last = match &next {
            Ok(record) => record.is_none(),
            Err(error) => error.is_fatal(),
        };
        if is_last {
            self.0 = Of::Ended;
        }
        next.transpose()
    }
}
