//! Tab-separated lines.

use std::io::BufRead;

use crate::columns::{Columns, EXPIRES, FLAGS, Layout};
use crate::error::{Fault, RecordError};
use crate::escape::unescape;
use crate::lines::Lines;
use crate::reader::Numbered;
use crate::record::Record;

#[derive(Debug)]
pub(crate) struct Tsv<R> {
    lines: Lines<R>,
    columns: Columns,
    is_escaped: bool,
    layout: Option<Layout>,
}

impl<R: BufRead> Tsv<R> {
    pub(crate) fn new(input: R, columns: Columns, is_escaped: bool) -> Self {
        Tsv { lines: Lines::new(input), columns, is_escaped, layout: None }
    }

    pub(crate) fn next(&mut self) -> Result<Option<Numbered>, RecordError> {
        loop {
            let number = self.lines.number() + 1;
            let at = |fault| RecordError { line: number, fault };
            let Some(line) = self.lines.next()? else { return Ok(None) };
            if line.is_empty() {
                continue;
            }
            let fields: Vec<&[u8]> = line.split(|byte| *byte == b'\t').collect();
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
            let decode = |field: &[u8]| if self.is_escaped { unescape(field) } else { Ok(field.to_vec()) };
            let record = record(&fields, &layout, decode).map_err(at)?;
            return Ok(Some(Numbered { line: number, record }));
        }
    }
}

/// Builds a record from the fields of a line.
pub(crate) fn record(
    fields: &[&[u8]],
    layout: &Layout,
    decode: impl Fn(&[u8]) -> Result<Vec<u8>, Fault>,
) -> Result<Record, Fault> {
    let field = |what, at: usize| {
        fields.get(at).ok_or(Fault::FewFields { what, wanted: at.saturating_add(1), found: fields.len() }).copied()
    };
    let optional = |what, at: Option<usize>| match at.and_then(|at| fields.get(at)) {
        None | Some([]) => Ok(None),
        Some(text) => number(what, text).map(Some),
    };
    Ok(Record {
        key: decode(field("key", layout.key)?)?,
        value: decode(field("value", layout.value)?)?,
        flags: optional(FLAGS, layout.flags)?.unwrap_or(0),
        expires: optional(EXPIRES, layout.expires)?,
    })
}

fn number(what: &'static str, text: &[u8]) -> Result<u32, Fault> {
    let text = String::from_utf8_lossy(&text[..text.len().min(40)]);
    text.parse().map_err(|_| Fault::BadNumber { what, text: text.into_owned() })
}
