//! Raft messages: an envelope of 24 bytes with any number of messages, of any groups, each a header of 80 bytes, its
//! context, and its entries with 24 bytes of header each. An envelope without messages is a sign of life of its sender.
//!
//! Entries stay in the memory that the envelope was copied to on receipt: no entry is copied individually. Snapshots
//! travel in separate pieces (`chunk`).

use bytes::Bytes;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};

use super::bytes::{Reader, Writer};
use super::{VERSION, WireError, cluster_of};
use crate::mutation::{Mutation, is_planted};
use crate::wal::ENTRY_BYTES_MAX;

/// Bytes of an envelope without messages.
pub(crate) const ENVELOPE_BYTES: usize = 24;
const MESSAGE_BYTES: usize = 80;
const ENTRY_BYTES: usize = 24;
const FLAG_REJECT: u8 = 1;
const FLAG_REST: u8 = 2;
/// Maximum number of messages in an envelope.
pub(crate) const MESSAGES_MAX: usize = 1024;

/// A message between replicas of a group.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Addressed {
    /// The number of the group.
    pub group: u16,
    /// Whether an idle leader asks its follower to rest.
    pub asks_to_rest: bool,
    pub message: Message,
}

/// The header before the messages of an envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sender {
    /// The cluster of all replicas.
    pub cluster: u64,
    /// The id of all replicas of the sending process.
    pub id: u64,
}

/// Returns the length of an envelope with these messages.
pub(crate) fn envelope_len(messages: &[Addressed]) -> usize {
    ENVELOPE_BYTES + messages.iter().map(|addressed| encoded_len(&addressed.message)).sum::<usize>()
}

/// Returns the length of a message in an envelope.
pub(crate) fn encoded_len(message: &Message) -> usize {
    let entries = message.get_entries().iter().map(|entry| ENTRY_BYTES + entry.data.len() + entry.context.len());
    MESSAGE_BYTES + message.context.len() + entries.sum::<usize>()
}

/// Encodes an envelope into memory of exactly its length ([`envelope_len`]).
pub(crate) fn encode(out: &mut [u8], sender: Sender, messages: &[Addressed]) -> usize {
    let mut writer = Writer::new(out);
    writer.u8(VERSION);
    writer.u8(0);
    writer.u16(messages.len() as u16);
    writer.u32(0);
    writer.u64(sender.cluster);
    writer.u64(sender.id);
    messages.iter().for_each(|addressed| encode_message(&mut writer, addressed));
    debug_assert!(writer.is_full());
    writer.len()
}

fn encode_message(writer: &mut Writer<'_>, Addressed { group, asks_to_rest, message }: &Addressed) {
    writer.u8(message.get_msg_type() as u8);
    let reject = if message.reject { FLAG_REJECT } else { 0 };
    writer.u8(reject | if *asks_to_rest { FLAG_REST } else { 0 });
    writer.u16(*group);
    writer.u32(message.context.len() as u32);
    let words = [
        message.to,
        message.from,
        message.term,
        message.log_term,
        message.index,
        message.commit,
        message.commit_term,
        message.reject_hint,
        message.get_entries().len() as u64,
    ];
    words.into_iter().for_each(|word| writer.u64(word));
    writer.bytes(&message.context);
    for entry in message.get_entries() {
        // The kind of an entry fits two bits; its length fits 30.
        writer.u32(entry.data.len() as u32);
        writer.u16(entry.context.len() as u16);
        writer.u16(entry.get_entry_type() as u16);
        writer.u64(entry.term);
        writer.u64(entry.index);
        writer.bytes(&entry.data);
        writer.bytes(&entry.context);
    }
}

/// Returns the id of an envelope's sender, and its messages.
///
/// # Errors
/// If it is malformed, or of another cluster.
pub(crate) fn parse(bytes: &[u8], cluster: u64) -> Result<(u64, Vec<Addressed>), WireError> {
    let theirs = cluster_of(bytes)?;
    if theirs != cluster && !is_planted(Mutation::ForeignBelieved) {
        return Err(WireError::OtherCluster { theirs, ours: cluster });
    }
    let mut reader = Reader::new(bytes);
    reader.u16()?;
    let count = reader.u16()? as usize;
    reader.take(12)?;
    let from = reader.u64()?;
    if count > MESSAGES_MAX {
        return Err(WireError::Unknown { field: "number of messages", value: count as u64 });
    }
    let mut kept = Kept { bytes, copy: None };
    // Each message has at least this many bytes: a false count reserves nothing.
    let mut messages = Vec::with_capacity(count.min(reader.left() / MESSAGE_BYTES));
    for _ in 0..count {
        messages.push(parse_message(&mut reader, &mut kept)?);
    }
    reader.end()?;
    Ok((from, messages))
}

/// Returns the sender of an envelope of any cluster, if the bytes are an envelope.
pub(crate) fn sender_of(bytes: &[u8]) -> Option<u64> {
    let mut reader = Reader::new(bytes);
    reader.take(16).ok()?;
    reader.u64().ok().filter(|id| *id != 0)
}

/// The envelope, copied only if a part of it has to be kept.
struct Kept<'a> {
    bytes: &'a [u8],
    copy: Option<Bytes>,
}

impl Kept<'_> {
    fn slice(&mut self, from: usize, len: usize) -> Bytes {
        if len == 0 {
            return Bytes::new();
        }
        self.copy.get_or_insert_with(|| Bytes::copy_from_slice(self.bytes)).slice(from..from + len)
    }
}

fn parse_message(reader: &mut Reader<'_>, kept: &mut Kept<'_>) -> Result<Addressed, WireError> {
    let mut message = Message::default();
    message.set_msg_type(message_type(reader.u8()?)?);
    let flags = reader.u8()?;
    let asks_to_rest = flags & FLAG_REST != 0;
    if flags & !(FLAG_REJECT | FLAG_REST) != 0 || asks_to_rest && message.get_msg_type() != MessageType::MsgHeartbeat {
        return Err(WireError::Unknown { field: "flags", value: flags.into() });
    }
    message.reject = flags & FLAG_REJECT != 0;
    let group = reader.u16()?;
    let context_len = reader.u32()? as usize;
    let words: [u64; 9] = reader.words()?;
    let count = words[8];
    [
        message.to,
        message.from,
        message.term,
        message.log_term,
        message.index,
        message.commit,
        message.commit_term,
        message.reject_hint,
        _,
    ] = words;
    message.context = Bytes::copy_from_slice(reader.take(context_len)?);
    if count > (reader.left() / ENTRY_BYTES) as u64 {
        return Err(WireError::Short);
    }
    let mut entries = Vec::with_capacity(count as usize);
    for number in 0..count {
        let entry = parse_entry(reader, kept)?;
        // The library assumes that entries are consecutive, after the entry that the message names; so this is checked
        // before it sees them.
        if message.index.checked_add(number + 1) != Some(entry.index) {
            return Err(WireError::Unknown { field: "index of an entry", value: entry.index });
        }
        entries.push(entry);
    }
    message.set_entries(entries.into());
    Ok(Addressed { group, asks_to_rest, message })
}

fn parse_entry(reader: &mut Reader<'_>, kept: &mut Kept<'_>) -> Result<Entry, WireError> {
    let mut entry = Entry::default();
    let data_len = reader.u32()? as usize;
    let context_len = reader.u16()? as usize;
    entry.set_entry_type(entry_type(reader.u16()?)?);
    entry.term = reader.u64()?;
    entry.index = reader.u64()?;
    // The log of a replica on a disk takes no longer one, and the replica would stop.
    if data_len > ENTRY_BYTES_MAX {
        return Err(WireError::Unknown { field: "length of an entry", value: data_len as u64 });
    }
    let at = reader.position();
    reader.take(data_len)?;
    entry.data = kept.slice(at, data_len);
    let at = reader.position();
    reader.take(context_len)?;
    entry.context = kept.slice(at, context_len);
    Ok(entry)
}

/// Returns the type of a message that replicas send each other. Other types are internal to the library, travel
/// differently, or are what clients ask leaders for.
fn message_type(value: u8) -> Result<MessageType, WireError> {
    use MessageType::*;
    const TYPES: [MessageType; 9] = [
        MsgAppend,
        MsgAppendResponse,
        MsgRequestVote,
        MsgRequestVoteResponse,
        MsgHeartbeat,
        MsgHeartbeatResponse,
        MsgTimeoutNow,
        MsgRequestPreVote,
        MsgRequestPreVoteResponse,
    ];
    let found = TYPES.into_iter().find(|kind| *kind as u8 == value);
    found.ok_or(WireError::Unknown { field: "message type", value: value.into() })
}

fn entry_type(value: u16) -> Result<EntryType, WireError> {
    // No replica proposes several membership changes at once.
    const TYPES: [EntryType; 2] = [EntryType::EntryNormal, EntryType::EntryConfChange];
    let found = TYPES.into_iter().find(|kind| *kind as u16 == value);
    found.ok_or(WireError::Unknown { field: "entry type", value: value.into() })
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const CLUSTER: u64 = 7;

    const ID: u64 = 3;

    fn encoded(messages: &[Addressed]) -> Vec<u8> {
        let mut out = vec![0; envelope_len(messages)];
        encode(&mut out, Sender { cluster: CLUSTER, id: ID }, messages);
        out
    }

    fn of_group_0(message: Message) -> Addressed {
        Addressed { group: 0, asks_to_rest: false, message }
    }

    fn entries(first: u64) -> impl Strategy<Value = Vec<Entry>> {
        let entry = (0u8..2, any::<u64>(), vec(any::<u8>(), 0..60), vec(any::<u8>(), 0..5));
        vec(entry, 0..5).prop_map(move |fields| {
            let entry = |(number, (kind, term, data, context)): (usize, (u8, u64, Vec<u8>, Vec<u8>))| Entry {
                entry_type: entry_type(kind.into()).unwrap(),
                index: first + number as u64,
                term,
                data: data.into(),
                context: context.into(),
                ..Entry::default()
            };
            fields.into_iter().enumerate().map(entry).collect()
        })
    }

    fn message() -> impl Strategy<Value = Addressed> {
        let kinds: Vec<u8> = (0..=30).filter(|value| message_type(*value).is_ok()).collect();
        assert_eq!(kinds.len(), 9);
        let fields =
            (prop::sample::select(kinds), any::<[u64; 7]>(), any::<bool>(), vec(any::<u8>(), 0..20), entries(101));
        (any::<u16>(), fields).prop_map(|(group, (kind, words, reject, context, entries))| {
            let [to, from, term, log_term, commit, commit_term, reject_hint] = words;
            let message = Message {
                msg_type: message_type(kind).unwrap(),
                index: 100,
                reject,
                context: context.into(),
                entries: entries.into(),
                ..Message { to, from, term, log_term, commit, commit_term, reject_hint, ..Message::default() }
            };
            let asks_to_rest = group % 2 == 1 && message.get_msg_type() == MessageType::MsgHeartbeat;
            Addressed { group, asks_to_rest, message }
        })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(messages in vec(message(), 0..4)) {
            prop_assert_eq!(sender_of(&encoded(&messages)), Some(ID));
            prop_assert_eq!(parse(&encoded(&messages), CLUSTER).unwrap(), (ID, messages));
        }

        #[test]
        fn any_bytes_give_messages_or_an_error(mut bytes in vec(any::<u8>(), 0..400), right in any::<bool>()) {
            if right && bytes.len() >= ENVELOPE_BYTES {
                bytes[0] = VERSION;
                bytes[8..16].copy_from_slice(&CLUSTER.to_le_bytes());
            }
            let _ = parse(&bytes, CLUSTER);
        }

        #[test]
        fn changed_bytes_give_messages_or_an_error(messages in vec(message(), 1..3), at in any::<prop::sample::Index>(), to in any::<u8>()) {
            let mut bytes = encoded(&messages);
            let at = at.index(bytes.len());
            bytes[at] = to;
            let _ = parse(&bytes, CLUSTER);
        }

        #[test]
        fn a_part_is_no_message(messages in vec(message(), 1..3), end in any::<prop::sample::Index>()) {
            let bytes = encoded(&messages);
            prop_assert!(parse(&bytes[..end.index(bytes.len())], CLUSTER).is_err());
        }
    }

    #[test]
    fn what_is_not_for_here_is_refused() {
        let bytes = encoded(&[]);
        assert_eq!(parse(&bytes, 8), Err(WireError::OtherCluster { theirs: 7, ours: 8 }));
        assert_eq!(parse(&[&bytes[..], &[0]].concat(), CLUSTER), Err(WireError::Long));
        let gap = Message {
            msg_type: MessageType::MsgAppend,
            entries: vec![Entry { index: 2, ..Entry::default() }].into(),
            ..Message::default()
        };
        assert_eq!(
            parse(&encoded(&[of_group_0(gap)]), CLUSTER),
            Err(WireError::Unknown { field: "index of an entry", value: 2 })
        );
        let snapshot = Message { msg_type: MessageType::MsgSnapshot, ..Message::default() };
        assert!(parse(&encoded(&[of_group_0(snapshot)]), CLUSTER).is_err());
    }

    /// An endpoint may accept longer messages.
    #[test]
    fn an_entry_that_no_log_on_a_disk_takes_is_refused() {
        let parsed = |bytes| {
            let entry = Entry { index: 1, data: vec![7; bytes].into(), ..Entry::default() };
            let (msg_type, entries) = (MessageType::MsgAppend, vec![entry].into());
            parse(&encoded(&[of_group_0(Message { msg_type, entries, ..Message::default() })]), CLUSTER).is_ok()
        };
        assert_eq!([ENTRY_BYTES_MAX, ENTRY_BYTES_MAX + 1].map(parsed), [true, false]);
    }

    #[test]
    fn entries_share_one_copy() {
        let entry = |index, data: &'static [u8]| Entry { index, data: Bytes::from_static(data), ..Entry::default() };
        let append = Message {
            msg_type: MessageType::MsgAppend,
            entries: vec![entry(1, b"first"), entry(2, b"second")].into(),
            ..Message::default()
        };
        let (_, parsed) = parse(&encoded(&[of_group_0(append)]), CLUSTER).unwrap();
        let entries = parsed[0].message.get_entries();
        let distance = entries[1].data.as_ptr() as usize - entries[0].data.as_ptr() as usize;
        assert_eq!(distance, b"first".len() + ENTRY_BYTES);
    }
}
