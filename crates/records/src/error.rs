//! The errors of a file, with their lines.

use std::io;

use thiserror::Error;

use crate::lines::RECORD_BYTES_MAX;

/// An error, and the line in which it occurred.
#[derive(Debug, Error)]
#[error("line {line}: {fault}")]
pub struct RecordError {
    /// The line in which the record begins, from 1.
    pub line: u64,
    /// What is wrong.
    pub fault: Fault,
}

impl RecordError {
    /// Whether reading cannot continue: the rest of the file cannot be read, or its records cannot be told apart.
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
    /// The record is longer than the limit; perhaps a quote is not closed, or the format is wrong.
    #[error("a record of more than {RECORD_BYTES_MAX} bytes; is a quote left open, or is this another format?")]
    TooLong,
    /// The first line has no column of this name.
    #[error("there is no column {name:?} in the first line, which has {found}")]
    NoColumn {
        /// The name asked for.
        name: String,
        /// The names in the first line.
        found: String,
    },
    /// A column number of 0; columns count from 1.
    #[error("columns are counted from 1")]
    NoSuchColumn,
    /// A line with too few fields.
    #[error("only {found} fields, and the {what} is field {wanted}")]
    FewFields {
        /// Which part of the record is missing.
        what: &'static str,
        /// Its place, from 1.
        wanted: usize,
        /// Number of fields in the line.
        found: usize,
    },
    /// A backslash followed by a character that no escape has.
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
        /// The text found.
        text: String,
    },
    /// Not a JSON object.
    #[error("not a JSON object: {0}")]
    BadJson(String),
    /// A field that is missing, or null.
    #[error("no {0:?} in this record")]
    NoField(String),
    /// A paragraph of a package index that lacks a field.
    #[error("a paragraph without {0}")]
    BadParagraph(&'static str),
}
