//! Writes records, so that a reader gets the same bytes back.

use std::io::{self, Write};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;

use crate::columns::{ENCODING, EXPIRES, FLAGS, KEY, VALUE};
use crate::csv_file::BASE64;
use crate::escape::escape;
use crate::format::Format;
use crate::record::Record;

/// Compresses its input with gzip. Call `finish` at the end.
pub struct GzipEncoder<W: Write>(flate2::write::GzEncoder<W>);

impl<W: Write> GzipEncoder<W> {
    /// Begins a compressed file.
    pub fn new(output: W) -> Self {
        GzipEncoder(flate2::write::GzEncoder::new(output, flate2::Compression::default()))
    }

    /// Writes what is buffered and returns the output.
    ///
    /// # Errors
    /// The output's error.
    pub fn finish(self) -> io::Result<W> {
        self.0.finish()
    }
}

impl<W: Write> Write for GzipEncoder<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Writes one record after another. The first line of TSV and CSV names the columns.
pub struct Writer<W: Write>(Of<W>);

enum Of<W: Write> {
    Tsv { output: W, line: Vec<u8> },
    Csv(Box<csv::Writer<W>>),
    JsonLines(W),
}

impl<W: Write> Writer<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// The output's error; [`io::ErrorKind::Unsupported`] for [`Format::Packages`], which can only be read.
    pub fn new(mut output: W, format: Format) -> io::Result<Self> {
        let of = match format {
            Format::Tsv => {
                writeln!(output, "{KEY}\t{VALUE}\t{FLAGS}\t{EXPIRES}")?;
                Of::Tsv { output, line: Vec::new() }
            }
            Format::Csv => {
                let mut writer = csv::Writer::from_writer(output);
                writer.write_record([KEY, VALUE, FLAGS, EXPIRES, ENCODING]).map_err(said_by_output)?;
                Of::Csv(Box::new(writer))
            }
            Format::JsonLines => Of::JsonLines(output),
            Format::Packages => {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "package indices are only read: write tsv, csv or jsonl",
                ));
            }
        };
        Ok(Writer(of))
    }

    /// Writes one record.
    ///
    /// # Errors
    /// The output's error.
    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        match &mut self.0 {
            Of::Tsv { output, line } => {
                line.clear();
                escape(&record.key, line);
                line.push(b'\t');
                escape(&record.value, line);
                output.write_all(line)?;
                writeln!(output, "\t{}\t{}", record.flags, expiry(record))
            }
            Of::Csv(writer) => {
                let (flags, expires) = (record.flags.to_string(), expiry(record));
                let written = if is_text(&record.key) && is_text(&record.value) {
                    writer.write_record([&record.key[..], &record.value, flags.as_bytes(), expires.as_bytes(), b""])
                } else {
                    let encode = |bytes: &[u8]| BASE64_STANDARD.encode(bytes);
                    writer.write_record([&encode(&record.key), &encode(&record.value), &flags, &expires, BASE64])
                };
                written.map_err(said_by_output)
            }
            Of::JsonLines(output) => {
                serde_json::to_writer(&mut *output, &JsonRecord::of(record))?;
                output.write_all(b"\n")
            }
        }
    }

    /// Writes what is buffered and returns the output.
    ///
    /// # Errors
    /// The output's error.
    pub fn finish(self) -> io::Result<W> {
        let mut output = match self.0 {
            Of::Tsv { output, .. } | Of::JsonLines(output) => output,
            Of::Csv(writer) => writer.into_inner().map_err(csv::IntoInnerError::into_error)?,
        };
        output.flush()?;
        Ok(output)
    }
}

/// The output's error, with its own kind: conversion by `From` makes every kind `Other`.
fn said_by_output(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}

fn expiry(record: &Record) -> String {
    record.expires.map_or_else(String::new, |at| at.to_string())
}

/// Whether other programs will read it as text and write it back unchanged.
fn is_text(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| !text.contains('\0'))
}

/// The object of a line, in the order of its fields.
#[derive(Serialize)]
struct JsonRecord<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_base64: Option<String>,
    #[serde(skip_serializing_if = "is_zero")]
    flags: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<u32>,
}

fn is_zero(flags: &u32) -> bool {
    *flags == 0
}

impl<'a> JsonRecord<'a> {
    fn of(record: &'a Record) -> Self {
        let (key, key_base64) = either(&record.key);
        let (value, value_base64) = either(&record.value);
        JsonRecord { key, key_base64, value, value_base64, flags: record.flags, expires: record.expires }
    }
}

fn either(bytes: &[u8]) -> (Option<&str>, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text), None),
        Err(_) => (None, Some(BASE64_STANDARD.encode(bytes))),
    }
}
