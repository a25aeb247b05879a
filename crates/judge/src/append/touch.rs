//! The operations of one transaction on one key, as other transactions may see them.

use std::collections::BTreeMap;

use super::history::{List, Op, Transaction};

/// The operations of a transaction on a key.
#[derive(Debug)]
pub struct Touch<'a> {
    pub key: u64,
    /// The list before the transaction, as its first read showed it.
    pub seen: Option<&'a [u64]>,
    /// What it appended, in order.
    pub appended: Vec<u64>,
}

/// Returns the operations of a transaction, key by key, and calls `complain` for each read that contradicts its earlier
/// reads or appends.
pub fn touches(transaction: &Transaction, mut complain: impl FnMut(String)) -> Vec<Touch<'_>> {
    let mut touches: BTreeMap<u64, Touch<'_>> = BTreeMap::new();
    for op in &transaction.ops {
        let (Op::Append { key, .. } | Op::Read { key, .. }) = op;
        let touch = touches.entry(*key).or_insert_with(|| Touch { key: *key, seen: None, appended: Vec::new() });
        match op {
            Op::Append { element, .. } => touch.appended.push(*element),
            Op::Read { list: None, .. } => {}
            Op::Read { list: Some(list), .. } => touch.read(list).unwrap_or_else(&mut complain),
        }
    }
    touches.into_values().collect()
}

impl<'a> Touch<'a> {
    /// Adds a read; the error says what it contradicts.
    fn read(&mut self, list: &'a [u64]) -> Result<(), String> {
        let (key, own) = (self.key, &self.appended);
        let Some(before) = list.strip_suffix(&own[..]) else {
            return Err(format!("it read key {key} as {}, which does not end with its own {}", List(list), List(own)));
        };
        if let Some(stolen) = own.iter().find(|element| before.contains(element)) {
            return Err(format!("it read key {key} as {}, with its own {stolen} in the wrong place", List(list)));
        }
        match self.seen {
            None => self.seen = Some(before),
            Some(seen) if seen != before => {
                return Err(format!(
                    "it read key {key} as {}, after {} and its own {}",
                    List(list),
                    List(seen),
                    List(own)
                ));
            }
            Some(_) => {}
        }
        Ok(())
    }
}
