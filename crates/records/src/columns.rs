//! The roles of a file's columns.

use std::convert::Infallible;
use std::str::FromStr;

use crate::error::Fault;

/// A column, by its name in the first line or by its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Column {
    /// A name in the first line; in JSON lines a field.
    Name(String),
    /// From 1.
    Number(usize),
}

/// Digits are a number, everything else a name.
impl FromStr for Column {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Column, Infallible> {
        Ok(text.parse().map_or_else(|_| Column::Name(text.into()), Column::Number))
    }
}

/// Whether the first line names the columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HeaderRow {
    /// It does if columns are given by name, or if it has both a `key` and a `value`.
    #[default]
    Auto,
    /// It does.
    Present,
    /// It is a record.
    Absent,
}

/// The columns of key and value. Columns named `flags`, `expires` and `encoding` have the meaning of their names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Columns {
    /// The column of the key; by default `key`, otherwise the first column.
    pub key: Option<Column>,
    /// The column of the value; by default `value`, otherwise the second column.
    pub value: Option<Column>,
    /// Whether the first line has the names.
    pub header: HeaderRow,
}

/// Default name of the key's column.
pub(crate) const KEY: &str = "key";
/// Default name of the value's column.
pub(crate) const VALUE: &str = "value";
/// Name of the column of flags.
pub(crate) const FLAGS: &str = "flags";
/// Name of the column of expiry.
pub(crate) const EXPIRES: &str = "expires";
/// Name of the column that says how key and value are encoded.
pub(crate) const ENCODING: &str = "encoding";

/// Columns of one file, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) key: usize,
    pub(crate) value: usize,
    pub(crate) flags: Option<usize>,
    pub(crate) expires: Option<usize>,
    pub(crate) encoding: Option<usize>,
}

impl Columns {
    /// Examines the first line. Returns the layout of the file, and whether that line held only names.
    pub(crate) fn layout(&self, first: &[&[u8]]) -> Result<(Layout, bool), Fault> {
        let find = |name: &str| first.iter().position(|field| *field == name.as_bytes());
        let by_name = |column: &Option<Column>| matches!(column, Some(Column::Name(_)));
        let is_header = match self.header {
            HeaderRow::Present => true,
            HeaderRow::Absent => false,
            HeaderRow::Auto if by_name(&self.key) || by_name(&self.value) => true,
            HeaderRow::Auto => find(KEY).is_some() && find(VALUE).is_some(),
        };
        let optional = |name: &str| if is_header { find(name) } else { None };
        let place = |column: &Option<Column>, name: &str, otherwise: usize| match column {
            Some(Column::Number(number)) => number.checked_sub(1).ok_or(Fault::NoSuchColumn),
            Some(Column::Name(name)) => optional(name).ok_or_else(|| no_column(name, first)),
            None => Ok(optional(name).unwrap_or(otherwise)),
        };
        let layout = Layout {
            key: place(&self.key, KEY, 0)?,
            value: place(&self.value, VALUE, 1)?,
            flags: optional(FLAGS),
            expires: optional(EXPIRES),
            encoding: optional(ENCODING),
        };
        Ok((layout, is_header))
    }
}

/// Most names that an error lists.
const NAMES_TOLD: usize = 20;

fn no_column(name: &str, first: &[&[u8]]) -> Fault {
    let names: Vec<_> =
        first.iter().take(NAMES_TOLD).map(|field| String::from_utf8_lossy(&field[..field.len().min(40)])).collect();
    Fault::NoColumn { name: name.into(), found: names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(columns: &Columns, first: &[&str]) -> Option<(usize, usize, bool)> {
        let first: Vec<&[u8]> = first.iter().map(|field| field.as_bytes()).collect();
        columns.layout(&first).ok().map(|(layout, is_header)| (layout.key, layout.value, is_header))
    }

    #[test]
    fn the_first_line_may_name_the_columns() {
        let column = |text: &str| text.parse().ok();
        let auto = Columns::default();
        assert_eq!(layout(&auto, &["value", "note", "key"]), Some((2, 0, true)));
        assert_eq!(layout(&auto, &["apple", "red"]), Some((0, 1, false)));
        assert_eq!(layout(&auto, &["key", "red"]), Some((0, 1, false)), "one of the names alone may be a record");
        let absent = Columns { header: HeaderRow::Absent, ..Columns::default() };
        assert_eq!(layout(&absent, &["value", "key"]), Some((0, 1, false)));
        let named = Columns { key: column("id"), value: column("2"), ..Columns::default() };
        assert_eq!(layout(&named, &["x", "y", "id"]), Some((2, 1, true)));
        assert_eq!(layout(&named, &["x", "y"]), None);
        assert_eq!(layout(&Columns { key: column("0"), ..Columns::default() }, &["x", "y"]), None);
        let numbers = Columns { key: column("3"), value: column("1"), header: HeaderRow::Present };
        assert_eq!(layout(&numbers, &["x", "y", "z"]), Some((2, 0, true)));
    }
}
