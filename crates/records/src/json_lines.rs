//! A JSON object on each line.

use std::collections::BTreeMap;
use std::io::BufRead;

use serde_json::value::RawValue;

use crate::columns::{Column, Columns, EXPIRES, FLAGS, KEY, VALUE};
use crate::csv_file::decode;
use crate::error::{Fault, RecordError};
use crate::lines::Lines;
use crate::reader::Numbered;
use crate::record::Record;

/// Suffix of the name of a field that holds base64.
pub(crate) const BASE64_SUFFIX: &str = "_base64";

#[derive(Debug)]
pub(crate) struct JsonLines<R> {
    lines: Lines<R>,
    key: String,
    value: String,
}

type Fields<'a> = BTreeMap<String, &'a RawValue>;

impl<R: BufRead> JsonLines<R> {
    pub(crate) fn new(input: R, columns: &Columns) -> Self {
        let name = |column: &Option<Column>, otherwise: &str| match column {
            None => otherwise.to_owned(),
            Some(Column::Name(name)) => name.clone(),
            Some(Column::Number(number)) => number.to_string(),
        };
        JsonLines { lines: Lines::new(input), key: name(&columns.key, KEY), value: name(&columns.value, VALUE) }
    }

    pub(crate) fn next(&mut self) -> Result<Option<Numbered>, RecordError> {
        loop {
            let number = self.lines.number() + 1;
            let Some(line) = self.lines.next()? else { return Ok(None) };
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let record = record(line, &self.key, &self.value).map_err(|fault| RecordError { line: number, fault })?;
            return Ok(Some(Numbered { line: number, record }));
        }
    }
}

fn record(line: &[u8], key: &str, value: &str) -> Result<Record, Fault> {
    let fields: Fields<'_> = serde_json::from_slice(line).map_err(|error| Fault::BadJson(error.to_string()))?;
    Ok(Record {
        key: bytes(&fields, "key", key)?,
        value: bytes(&fields, "value", value)?,
        flags: number(&fields, FLAGS)?.unwrap_or(0),
        expires: number(&fields, EXPIRES)?,
    })
}

/// Text as it is, base64 decoded, and everything else (numbers, lists, objects) as its JSON text.
fn bytes(fields: &Fields<'_>, what: &'static str, name: &str) -> Result<Vec<u8>, Fault> {
    if let Some(field) = fields.get(name).filter(|field| field.get() != "null") {
        return Ok(text(field).map_or_else(|| field.get().into(), String::into_bytes));
    }
    let encoded = fields.get(&format!("{name}{BASE64_SUFFIX}")).and_then(|field| text(field));
    decode(what, encoded.ok_or_else(|| Fault::NoField(name.into()))?.as_bytes())
}

fn text(field: &RawValue) -> Option<String> {
    serde_json::from_str(field.get()).ok()
}

fn number(fields: &Fields<'_>, name: &'static str) -> Result<Option<u32>, Fault> {
    let Some(field) = fields.get(name) else { return Ok(None) };
    let bad = |_| Fault::BadNumber { what: name, text: field.get().chars().take(40).collect() };
    serde_json::from_str(field.get()).map_err(bad)
}
