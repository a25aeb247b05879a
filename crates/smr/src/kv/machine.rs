//! The key-value state machine.

use arrayvec::ArrayVec;
use dunlin_store::{Key, Mode, Partition, PartitionConfig, PartitionError, Put, Refused, Store, Sweep, Visit};

use super::frozen::{Frozen, write_item};
use super::wire::{Answer, Command, Condition, VALUE_BYTES_MAX};
use crate::machine::{PREFETCHED_MAX, Piece, RestoreError, StateMachine, free_beside};
use crate::wire::bytes::Reader;

/// What an item counts for beyond its key and value.
const ITEM_BYTES: u64 = 64;
/// Memory of the partition for each byte that items may count, and the constant part: enough that the partition never
/// rejects what the count allows. A partition cleans its log step by step, and keeps the part not cleaned yet.
const MEMORY_FACTOR: usize = 3;
const MEMORY_EXTRA: usize = 32 << 20;

/// Replicated keys and values. The version of a value is the index of the entry that stored it.
pub struct KvMachine {
    store: Partition,
    bytes: u64,
    bytes_max: u64,
    /// The secret of its hash, if one was given.
    secret: Option<[u64; 2]>,
}

impl KvMachine {
    /// Creates an empty machine for items that count up to `bytes_max`: each its key, its value, and 64 bytes. All
    /// replicas must have the same limit. It reserves about three times as much address space, and uses memory as items
    /// arrive.
    ///
    /// # Errors
    /// [`PartitionError`] if the memory cannot be reserved.
    pub fn new(bytes_max: u64) -> Result<KvMachine, PartitionError> {
        Ok(KvMachine { store: Partition::new(config(bytes_max))?, bytes: 0, bytes_max, secret: None })
    }

    /// Like [`KvMachine::new`], with a given secret for the hash, so that a simulation is repeatable. An attacker who
    /// knows the secret can choose keys that slow it down.
    ///
    /// # Errors
    /// [`PartitionError`] if the memory cannot be reserved.
    pub fn with_secret(bytes_max: u64, secret: [u64; 2]) -> Result<KvMachine, PartitionError> {
        let store = Partition::with_secret(config(bytes_max), secret)?;
        Ok(KvMachine { store, bytes: 0, bytes_max, secret: Some(secret) })
    }

    /// Returns the number of items.
    pub fn items(&self) -> u64 {
        self.store.stats().items
    }

    fn execute(&mut self, index: u64, command: &[u8]) -> Answer<'static> {
        match Command::parse(command) {
            Ok(Command::Put { key, value, condition }) => self.put(index, key, value, condition),
            Ok(Command::Append { key, bytes }) => {
                let before = self.store.key(key).ok().and_then(|key| Some(self.store.peek(&key)?.value.to_vec()));
                let Some(mut value) = before else { return Answer::NotFound };
                value.extend_from_slice(bytes);
                self.put(index, key, &value, Condition::Present)
            }
            Ok(Command::Delete { key }) => {
                let Ok(key) = self.store.key(key) else { return Answer::NotFound };
                let Some(len) = self.store.peek(&key).map(|item| item.value.len()) else { return Answer::NotFound };
                self.bytes -= cost(key.bytes(), len);
                // The item exists, and a deletion needs no memory.
                let _ = self.store.delete(&key, None);
                Answer::Done { version: index }
            }
            Err(_) => Answer::Bad,
        }
    }

    fn put(&mut self, index: u64, key: &[u8], value: &[u8], condition: Condition) -> Answer<'static> {
        let Ok(key) = self.store.key(key) else { return Answer::TooLarge };
        if value.len() > VALUE_BYTES_MAX {
            return Answer::TooLarge;
        }
        let before = self.store.peek(&key).map(|item| (item.cas, cost(key.bytes(), item.value.len())));
        match (condition, before) {
            (Condition::Absent, Some(_)) => return Answer::Exists,
            (Condition::Present | Condition::Version(_), None) => return Answer::NotFound,
            (Condition::Version(version), Some((cas, _))) if version != cas => return Answer::Changed,
            _ => {}
        }
        let bytes = self.bytes - before.map_or(0, |(_, cost)| cost) + cost(key.bytes(), value.len());
        // By the count, which is the same at all replicas, not by the partition's free memory, which is not.
        if bytes > self.bytes_max {
            return Answer::Full;
        }
        match self.store.put(&key, value, Put { cas: Some(index), ..Put::default() }) {
            Ok(_) => self.bytes = bytes,
            Err(Refused::TooLarge { .. }) => return Answer::TooLarge,
            // The other replicas have stored it, so this one must not go on without it.
            Err(refused) => panic!("{} bytes of items do not fit the partition: {refused}", bytes),
        }
        Answer::Done { version: index }
    }

    /// Restores the next item of a snapshot.
    fn restore_item(&mut self, reader: &mut Reader<'_>) -> Result<(), RestoreError> {
        let wrong = |error| RestoreError::new(format!("an item: {error}"));
        let (key_len, value_len) = (reader.u32().map_err(wrong)?, reader.u32().map_err(wrong)?);
        let version = reader.u64().map_err(wrong)?;
        let key = reader.take(key_len as usize).map_err(wrong)?;
        let value = reader.take(value_len as usize).map_err(wrong)?;
        let key = self.store.key(key).map_err(|error| RestoreError::new(error.to_string()))?;
        if self.store.peek(&key).is_some() {
            return Err(RestoreError::new("it has a key twice"));
        }
        self.bytes += cost(key.bytes(), value.len());
        if self.bytes > self.bytes_max {
            let max = self.bytes_max;
            return Err(RestoreError::new(format!(
                "its items count more than {max} bytes: give all replicas the same limit"
            )));
        }
        let put = Put { cas: Some(version), ..Put::default() };
        self.store.put(&key, value, put).map_err(|refused| RestoreError::new(refused.to_string()))?;
        Ok(())
    }
}

fn config(bytes_max: u64) -> PartitionConfig {
    let memory = (bytes_max as usize).saturating_mul(MEMORY_FACTOR).saturating_add(MEMORY_EXTRA);
    PartitionConfig::new(Mode::Store, memory)
}

fn cost(key: &[u8], value_len: usize) -> u64 {
    ITEM_BYTES + (key.len() + value_len) as u64
}

impl StateMachine for KvMachine {
    fn apply(&mut self, index: u64, command: &[u8], reply: &mut Vec<u8>) {
        self.execute(index, command).encode(reply);
    }

    fn prefetch(&self, commands: &[&[u8]]) {
        let keys: ArrayVec<Key<'_>, PREFETCHED_MAX> = commands
            .iter()
            .take(PREFETCHED_MAX)
            .filter_map(|command| self.store.key(Command::key_in(command)?).ok())
            .collect();
        keys.iter().for_each(|key| self.store.prefetch(key));
        keys.iter().for_each(|key| self.store.prefetch_item(key));
    }

    fn query(&self, query: &[u8], reply: &mut Vec<u8>) {
        let item = self.store.key(query).ok().and_then(|key| self.store.peek(&key));
        item.map_or(Answer::NotFound, |item| Answer::Value { version: item.cas, value: item.value }).encode(reply);
    }

    fn snapshot(&self, out: &mut Vec<u8>) {
        out.reserve(self.bytes as usize);
        self.store.visit(0..=u64::MAX, &mut |_, key, item| write_item(key, item, out));
    }

    fn begin_snapshot(&mut self, out: &mut Vec<u8>) {
        out.reserve(self.bytes as usize);
        self.store.watch(Box::new(Frozen::new(&self.store, self.bytes)));
    }

    fn continue_snapshot(&mut self, bytes: usize, out: &mut Vec<u8>) -> Piece {
        let Some(mut frozen) = Frozen::take(&mut self.store) else { return Piece::Last };
        let piece = frozen.next_piece(&self.store, bytes, out);
        if piece == Piece::Another {
            self.store.watch(frozen);
        }
        piece
    }

    fn abandon_snapshot(&mut self) {
        self.store.unwatch();
    }

    fn fresh(&self) -> Result<KvMachine, RestoreError> {
        let made = match self.secret {
            Some(secret) => KvMachine::with_secret(self.bytes_max, secret),
            None => KvMachine::new(self.bytes_max),
        };
        made.map_err(|error| RestoreError::new(format!("no memory for its items: {error}")))
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), RestoreError> {
        self.abandon_snapshot();
        self.store.flush();
        self.bytes = 0;
        self.restore_piece(snapshot, 0, snapshot.len()).map(|_| ())
    }

    fn restore_piece(&mut self, snapshot: &[u8], from: usize, bytes: usize) -> Result<usize, RestoreError> {
        let mut reader = Reader::new(&snapshot[from..]);
        while reader.left() > 0 && reader.position() < bytes {
            self.restore_item(&mut reader)?;
        }
        Ok(from + reader.position())
    }

    fn discard(self) {
        free_beside(self.store);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> KvMachine {
        KvMachine::new(4096).unwrap()
    }

    fn run(machine: &mut KvMachine, index: u64, command: Command<'_>) -> Answer<'static> {
        let mut reply = Vec::new();
        machine.apply(index, &command.encode(), &mut reply);
        match Answer::parse(&reply).unwrap() {
            Answer::Done { version } => Answer::Done { version },
            Answer::NotFound => Answer::NotFound,
            Answer::Exists => Answer::Exists,
            Answer::Changed => Answer::Changed,
            Answer::Full => Answer::Full,
            Answer::TooLarge => Answer::TooLarge,
            Answer::Bad => Answer::Bad,
            Answer::Value { .. } => panic!("a command gives no value"),
        }
    }

    fn get(machine: &KvMachine, key: &[u8]) -> Option<(u64, Vec<u8>)> {
        let mut reply = Vec::new();
        machine.query(Query { key }.encode(), &mut reply);
        match Answer::parse(&reply).unwrap() {
            Answer::Value { version, value } => Some((version, value.to_vec())),
            _ => None,
        }
    }

    use super::super::Query;

    fn put<'a>(key: &'a [u8], value: &'a [u8], condition: Condition) -> Command<'a> {
        Command::Put { key, value, condition }
    }

    #[test]
    fn conditions_are_kept() {
        let mut machine = machine();
        assert_eq!(run(&mut machine, 5, put(b"a", b"1", Condition::Present)), Answer::NotFound);
        assert_eq!(run(&mut machine, 6, put(b"a", b"1", Condition::Absent)), Answer::Done { version: 6 });
        assert_eq!(run(&mut machine, 7, put(b"a", b"2", Condition::Absent)), Answer::Exists);
        assert_eq!(run(&mut machine, 8, put(b"a", b"2", Condition::Version(5))), Answer::Changed);
        assert_eq!(run(&mut machine, 9, put(b"a", b"2", Condition::Version(6))), Answer::Done { version: 9 });
        assert_eq!(run(&mut machine, 10, Command::Append { key: b"a", bytes: b"34" }), Answer::Done { version: 10 });
        assert_eq!(get(&machine, b"a"), Some((10, b"234".to_vec())));
        assert_eq!(run(&mut machine, 11, Command::Delete { key: b"a" }), Answer::Done { version: 11 });
        assert_eq!(run(&mut machine, 12, Command::Delete { key: b"a" }), Answer::NotFound);
        assert_eq!(run(&mut machine, 13, Command::Append { key: b"a", bytes: b"5" }), Answer::NotFound);
        assert_eq!((get(&machine, b"a"), machine.bytes), (None, 0));
        assert_eq!(run(&mut machine, 14, put(b"", b"", Condition::Always)), Answer::TooLarge);
        assert_eq!(run(&mut machine, 15, put(&[7; 251], b"", Condition::Always)), Answer::TooLarge);
    }

    #[test]
    fn the_limit_is_of_what_items_count() {
        let mut machine = machine();
        assert_eq!(run(&mut machine, 2, put(b"a", &[1; 4000], Condition::Always)), Answer::Done { version: 2 });
        assert_eq!(run(&mut machine, 3, put(b"b", b"", Condition::Always)), Answer::Full);
        assert_eq!(run(&mut machine, 4, put(b"a", &[1; 100], Condition::Always)), Answer::Done { version: 4 });
        assert_eq!(run(&mut machine, 5, put(b"b", b"", Condition::Always)), Answer::Done { version: 5 });
    }

    #[test]
    fn a_piece_that_is_restored_is_as_long_as_it_may_be() {
        const STEP: usize = 1000;
        let mut first = KvMachine::new(1 << 20).unwrap();
        for number in 0..1000_u64 {
            let key = format!("key {number}");
            run(&mut first, number + 2, put(key.as_bytes(), &[number as u8; 84], Condition::Always));
        }
        let mut snapshot = Vec::new();
        first.snapshot(&mut snapshot);
        let (mut second, mut at, mut pieces) = (first.fresh().unwrap(), 0, 0);
        while at < snapshot.len() {
            let next = second.restore_piece(&snapshot, at, STEP).unwrap();
            assert!(next > at && next - at < STEP + 200, "a piece from {at} to {next}");
            (at, pieces) = (next, pieces + 1);
        }
        assert!(pieces >= 95, "{pieces} pieces of {} bytes", snapshot.len());
        assert_eq!((second.items(), second.bytes), (1000, first.bytes));
        assert_eq!(get(&second, b"key 999"), get(&first, b"key 999"));
        // A snapshot with duplicate items, or more than the limit, cannot come from a machine like this one.
        assert!(first.fresh().unwrap().restore(&snapshot.repeat(2)).is_err());
        assert!(machine().restore(&snapshot).is_err());
    }

    #[test]
    fn a_machine_is_restored_as_it_was() {
        let mut first = KvMachine::new(1 << 20).unwrap();
        for number in 0..500_u64 {
            let key = format!("key {}", number % 300);
            run(&mut first, number + 2, put(key.as_bytes(), &vec![number as u8; number as usize], Condition::Always));
        }
        let mut snapshot = Vec::new();
        first.snapshot(&mut snapshot);
        let mut second = KvMachine::new(1 << 20).unwrap();
        run(&mut second, 1, put(b"not there any more", b"", Condition::Always));
        second.restore(&snapshot).unwrap();
        assert_eq!((second.items(), second.bytes), (300, first.bytes));
        for number in 0..300 {
            let key = format!("key {number}");
            assert_eq!(get(&second, key.as_bytes()), get(&first, key.as_bytes()));
        }
        assert_eq!(get(&second, b"not there any more"), None);
        assert!(second.restore(&snapshot[..snapshot.len() - 1]).is_err());
    }

    #[test]
    fn a_snapshot_in_pieces_is_of_one_instant() {
        const ITEMS: u64 = 5_000;
        let mut machine = KvMachine::with_secret(64 << 20, [1, 2]).unwrap();
        let key = |number: u64| format!("key {}", number % (ITEMS + 50));
        // Values both inside lines and in the log.
        let value = |number: u64| vec![number as u8; (number * 7 % 300) as usize];
        for number in 0..ITEMS {
            run(&mut machine, number + 2, put(key(number).as_bytes(), &value(number), Condition::Always));
        }
        let mut whole = Vec::new();
        machine.snapshot(&mut whole);
        let (mut pieces, mut out) = (0, Vec::new());
        machine.begin_snapshot(&mut out);
        // Values change, appear and disappear, and the index grows.
        for number in 0.. {
            let changed = number * 61;
            run(&mut machine, ITEMS + 2 + number, put(key(changed).as_bytes(), &value(changed + 1), Condition::Always));
            run(&mut machine, ITEMS + 2 + number, Command::Delete { key: key(changed + 7).as_bytes() });
            run(
                &mut machine,
                ITEMS + 2 + number,
                put(format!("more {number}").as_bytes(), &[1; 50], Condition::Always),
            );
            pieces += 1;
            let before = out.len();
            if machine.continue_snapshot(2000, &mut out) == Piece::Last {
                break;
            }
            assert!(out.len() - before < 60_000, "a piece is bounded");
        }
        assert!(pieces > 100, "{pieces}");
        assert_eq!(machine.continue_snapshot(2000, &mut out), Piece::Last, "there is no more");
        assert_eq!(out.len(), whole.len());
        let (mut first, mut second) = (KvMachine::new(64 << 20).unwrap(), KvMachine::new(64 << 20).unwrap());
        first.restore(&whole).unwrap();
        second.restore(&out).unwrap();
        assert_eq!((second.items(), second.bytes), (ITEMS, first.bytes));
        for number in 0..ITEMS + 50 {
            assert_eq!(get(&first, key(number).as_bytes()), get(&second, key(number).as_bytes()));
        }
    }

    #[test]
    fn a_snapshot_is_given_up_and_another_begins() {
        let mut machine = KvMachine::with_secret(64 << 20, [1, 2]).unwrap();
        let fill = |machine: &mut KvMachine, value: &[u8]| {
            for number in 0..3000_u64 {
                run(machine, 2, put(&number.to_le_bytes(), value, Condition::Always));
            }
        };
        fill(&mut machine, b"first");
        let mut out = Vec::new();
        machine.begin_snapshot(&mut out);
        assert_eq!(machine.continue_snapshot(10, &mut out), Piece::Another);
        machine.abandon_snapshot();
        fill(&mut machine, b"other");
        machine.begin_snapshot(&mut out);
        fill(&mut machine, b"third");
        // A second snapshot begins in place of the first.
        machine.begin_snapshot(&mut out);
        out.clear();
        while machine.continue_snapshot(usize::MAX, &mut out) == Piece::Another {}
        let mut restored = KvMachine::new(64 << 20).unwrap();
        restored.restore(&out).unwrap();
        assert_eq!((restored.items(), get(&restored, &7_u64.to_le_bytes())), (3000, Some((2, b"third".to_vec()))));
    }

    #[test]
    fn a_full_machine_is_restored_again_and_again() {
        const ITEMS: u64 = 30_000;
        let mut machine = KvMachine::new(ITEMS * 160).unwrap();
        for number in 0..ITEMS {
            let key = [number.to_le_bytes(), number.to_be_bytes()].concat();
            assert_eq!(run(&mut machine, 1, put(&key, &[7; 64], Condition::Always)), Answer::Done { version: 1 });
        }
        let mut snapshot = Vec::new();
        machine.snapshot(&mut snapshot);
        for round in 0..10 {
            machine
                .restore(&snapshot)
                .unwrap_or_else(|error| panic!("round {round}: {error} {:?}", machine.store.stats()));
            assert_eq!(machine.items(), ITEMS);
        }
    }
}
