//! Comma-separated fields, quoted according to RFC 4180.

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::columns::{Columns, Layout};
use crate::error::{Fault, RecordError};
use crate::lines::RECORD_BYTES_MAX;
use crate::reader::Numbered;
use crate::tsv;

/// Value of the column `encoding` for a row whose key and value are not text.
pub(crate) const BASE64: &str = "base64";

#[derive(Debug)]
pub(crate) struct Csv<R> {
    reader: csv::Reader<Bounded<R>>,
    left: Arc<AtomicUsize>,
    row: csv::ByteRecord,
    columns: Columns,
    layout: Option<Layout>,
}

impl<R: Read> Csv<R> {
    pub(crate) fn new(input: R, columns: Columns) -> Self {
        let left = Arc::new(AtomicUsize::new(0));
        let bounded = Bounded { input, left: Arc::clone(&left) };
        let reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(bounded);
        Csv { reader, left, row: csv::ByteRecord::new(), columns, layout: None }
    }

    pub(crate) fn next(&mut self) -> Result<Option<Numbered>, RecordError> {
        loop {
            self.left.store(RECORD_BYTES_MAX, Ordering::Relaxed);
            let before = self.reader.position().line();
            match self.reader.read_byte_record(&mut self.row) {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(error) => return Err(RecordError { line: before, fault: fault(error) }),
            }
            let line = self.row.position().map_or(before, csv::Position::line);
            let at = |fault| RecordError { line, fault };
            let fields: Vec<&[u8]> = self.row.iter().collect();
            let layout = match self.layout {
                Some(layout) => layout,
                None => {
                    let (layout, is_header) = self.columns.layout(&fields).map_err(at)?;
                    self.layout = Some(layout);
                    if is_header {
                        continue;
                    }
                    layout
                }
            };
            let encoding = layout.encoding.and_then(|at| fields.get(at)).copied().unwrap_or_default();
            let record = match encoding {
                [] => tsv::record(&fields, &layout, |field| Ok(field.to_vec())),
                encoding if encoding == BASE64.as_bytes() => {
                    tsv::record(&fields, &layout, |field| decode("field", field))
                }
                other => {
                    Err(Fault::UnknownEncoding(String::from_utf8_lossy(&other[..other.len().min(40)]).into_owned()))
                }
            };
            return Ok(Some(Numbered { line, record: record.map_err(at)? }));
        }
    }
}

/// Decodes base64.
pub(crate) fn decode(what: &'static str, text: &[u8]) -> Result<Vec<u8>, Fault> {
    BASE64_STANDARD.decode(text).map_err(|error| Fault::BadBase64 { what, why: error.to_string() })
}

fn fault(error: csv::Error) -> Fault {
    match error.into_kind() {
        csv::ErrorKind::Io(error) if error.kind() == io::ErrorKind::FileTooLarge => Fault::TooLong,
        csv::ErrorKind::Io(error) => Fault::Io(error),
        other => Fault::Io(io::Error::other(format!("{other:?}"))),
    }
}

/// A reader that yields at most `left` bytes for one record, since a row with an unclosed quote may never end.
#[derive(Debug)]
struct Bounded<R> {
    input: R,
    left: Arc<AtomicUsize>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.load(Ordering::Relaxed);
        if left == 0 {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "a record has no end"));
        }
        let len = buffer.len().min(left);
        let read = self.input.read(&mut buffer[..len])?;
        self.left.store(left - read, Ordering::Relaxed);
        Ok(read)
    }
}
