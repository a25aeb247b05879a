//! Paragraphs of a package index, as in Debian's `status` and `Packages`.

use std::io::BufRead;

use crate::error::{Fault, RecordError};
use crate::lines::{Lines, RECORD_BYTES_MAX};
use crate::reader::Numbered;
use crate::record::Record;

#[derive(Debug)]
pub(crate) struct Packages<R> {
    lines: Lines<R>,
    paragraph: Vec<u8>,
}

impl<R: BufRead> Packages<R> {
    pub(crate) fn new(input: R) -> Self {
        Packages { lines: Lines::new(input), paragraph: Vec::new() }
    }

    /// The next paragraph, under the name of the package's file: `name_version_architecture`.
    pub(crate) fn next(&mut self) -> Result<Option<Numbered>, RecordError> {
        self.paragraph.clear();
        let mut begun = self.lines.number() + 1;
        while let Some(line) = self.lines.next()? {
            if !line.is_empty() {
                self.paragraph.extend_from_slice(line);
                self.paragraph.push(b'\n');
            } else if !self.paragraph.is_empty() {
                break;
            } else {
                begun += 1;
            }
            if self.paragraph.len() > RECORD_BYTES_MAX {
                return Err(RecordError { line: begun, fault: Fault::TooLong });
            }
        }
        if self.paragraph.is_empty() {
            return Ok(None);
        }
        let record = record(&self.paragraph).map_err(|fault| RecordError { line: begun, fault })?;
        Ok(Some(Numbered { line: begun, record }))
    }
}

fn record(paragraph: &[u8]) -> Result<Record, Fault> {
    let field = |name: &'static str| {
        let mut lines = paragraph.split(|byte| *byte == b'\n');
        lines.find_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b":")).map(<[u8]>::trim_ascii)
    };
    let needed = |name| field(name).filter(|text| !text.is_empty()).ok_or(Fault::BadParagraph(name));
    let key = [needed("Package")?, field("Version").unwrap_or_default(), field("Architecture").unwrap_or_default()];
    Ok(Record { key: key.join(&b'_'), value: paragraph.to_vec(), ..Record::default() })
}
