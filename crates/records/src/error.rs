//! What can be wrong with a file, and where.

use std::io;

use thiserror::Error;

use crate::lines::RECORD_BYTES_MAX;

/// What is wrong, and in which line.
#[derive(Debug, Error)]
#[error("line {line}: {fault}")]
pub struct RecordError {
    /// The line in which the record begins, from 1.
    pub line: u64,
    /// What is wrong.
    pub fault: Fault,
}

impl RecordError {
    /// Whether reading cannot go on: the rest of the file cannot be had, or its records cannot be told apart.
    pub fn is_fatal(&self) -> bool {
        matches!(self.fault, Fault::Io(_) | Fault::TooLong | Fault::NoColumn { .. } | Fault::NoSuchColumn)
    }
}

/// What is wrong with a record.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Fault {
    /// The file cannot be read.
    #[error("cannot read on: {0}")]
    Io(io::Error),
    /// Longer than any record; perhaps a quote that is not closed, or the wrong format.
    #[error("a record of more than {RECORD_BYTES_MAX} bytes; is a quote left open, or is this another format?")]
    TooLong,
    /// A name of a column that the first line does not have.
    #[error("there is no column {name:?} in the first line, which has {found}")]
    NoColumn {
        /// The name asked for.
        name: String,
        /// Those there are.
        found: String,
    },
    /// A column counted from 0.
    #[error("columns are counted from 1")]
    NoSuchColumn,
    /// A line with too few fields.
    #[error("only {found} fields, and the {what} is field {wanted}")]
    FewFields {
        /// Which part of the record is missing.
        what: &'static str,
        /// Its place, from 1.
        wanted: usize,
        /// Fields there are.
        found: usize,
    },
    /// A backslash before something that it does not go with.
    #[error("a backslash before {0:?}: use \\t \\n \\r \\\\ or \\xHH, or read without escapes")]
    BadEscape(String),
    /// Not base64.
    #[error("the {what} is not base64: {why}")]
    BadBase64 {
        /// Which part of the record.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// An encoding that does not exist.
    #[error("the encoding {0:?} is not known: leave it empty, or say base64")]
    UnknownEncoding(String),
    /// Not a number where one is needed.
    #[error("{what} {text:?} is not a number below 2^32")]
    BadNumber {
        /// Which part of the record.
        what: &'static str,
        /// What stands there.
        text: String,
    },
    /// Not a JSON object.
    #[error("not a JSON object: {0}")]
    BadJson(String),
    /// A field that is missing, or null.
    #[error("no {0:?} in this record")]
    NoField(String),
    /// A paragraph of a package index without a field.
    #[error("a paragraph without {0}")]
    BadParagraph(&'static str),
}
