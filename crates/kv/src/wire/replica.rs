//! Messages of replicas in a cluster, specified in `docs/kv-cluster.md`.

use dunlin_store::{Item, Refused, UnixSeconds};

use super::Status;
use super::bytes::{Reader, Writer};
use super::scan::{SCAN_BYTES, SCAN_VALUE_BYTES_MAX};

/// Request type: what this core is ([`ReplicaInfo`]). The request is empty.
pub const REPLICA: u8 = 0x30;
/// Request type: a write to one replica ([`Replicate`]); the response is a [`Verdict`].
pub const REPLICATE: u8 = 0x31;
/// Request type: items for a core that is being filled ([`VersionedItem`]), after the number of the fill.
pub const FILL: u8 = 0x32;
/// Request type: has a core begin to be filled, open or close ([`Turn`]).
pub const TURN: u8 = 0x33;
/// Request type: items of some partitions of a core, with their versions ([`PartitionScan`]).
pub const SCAN_PARTITIONS: u8 = 0x34;

/// The version of a write: of two writes of a key, the one with the higher version is later. Microseconds since 1970 in
/// the upper 52 bits, a number of the writer in the others.
pub type Version = u64;

/// Whether a replica may be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ReplicaState {
    /// It was started and nobody has said what it holds: it takes neither reads nor writes.
    Closed = 0,
    /// It is being filled: it takes writes, and no reads.
    Filling = 1,
    /// It takes reads and writes.
    Open = 2,
}

impl ReplicaState {
    fn parse(byte: u8) -> Option<ReplicaState> {
        [ReplicaState::Closed, ReplicaState::Filling, ReplicaState::Open].into_iter().find(|state| *state as u8 == byte)
    }
}

/// What a core of a replica is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaInfo {
    /// Whether it may be read.
    pub state: ReplicaState,
    /// Whether it may serve in its epoch: a member that the cluster manager has not heard for long may not.
    pub is_safe: bool,
    /// Names the division of keys over the servers: [`crate::cluster::Description::fingerprint`].
    pub fingerprint: u64,
    /// Drawn when the server was started, as in its map.
    pub incarnation: u64,
    /// Its epoch; 0 without a cluster manager.
    pub epoch: u64,
    /// Keys changed since it began to be filled.
    pub changed: u64,
    /// Its name in the cluster.
    pub server: String,
}

/// The version of all messages of replicas. Others are refused.
const INFO_VERSION: u8 = 2;

impl ReplicaInfo {
    /// Returns the response.
    ///
    /// # Panics
    /// If the name has more than 255 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; 1 + 2 + 4 * 8 + 1 + self.server.len()];
        let mut out = Writer(&mut bytes);
        out.u8(INFO_VERSION).u8(self.state as u8).u8(u8::from(self.is_safe));
        out.u64(self.fingerprint).u64(self.incarnation).u64(self.epoch).u64(self.changed);
        out.u8(self.server.len().try_into().expect("a name has at most 64 bytes")).bytes(self.server.as_bytes());
        bytes
    }

    /// Parses a response; `None` if it is malformed or of another version.
    pub fn parse(response: &[u8]) -> Option<ReplicaInfo> {
        let mut rest = Reader(response);
        if rest.u8()? != INFO_VERSION {
            return None;
        }
        let state = ReplicaState::parse(rest.u8()?)?;
        let is_safe = match rest.u8()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let (fingerprint, incarnation, epoch, changed) = (rest.u64()?, rest.u64()?, rest.u64()?, rest.u64()?);
        let len = usize::from(rest.u8()?);
        let server = std::str::from_utf8(rest.bytes(len)?).ok()?.to_owned();
        rest.end()?;
        Some(ReplicaInfo { state, is_safe, fingerprint, incarnation, epoch, changed, server })
    }
}

/// The head of a write to a replica: an [`super::Operation`], PUT or DELETE, follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replicate {
    /// The client's division of keys.
    pub fingerprint: u64,
    /// The epoch in which the client chose the replicas; 0 without a cluster manager.
    pub epoch: u64,
    /// The version of the write.
    pub version: Version,
}

impl Replicate {
    /// Its length.
    pub const BYTES: usize = 24;

    /// Writes it to the front of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`Replicate::BYTES`].
    pub fn encode(&self, out: &mut [u8]) {
        Writer(out).u64(self.fingerprint).u64(self.epoch).u64(self.version);
    }

    /// Parses the head; returns the rest, too.
    pub fn parse(request: &[u8]) -> Option<(Replicate, &[u8])> {
        let mut rest = Reader(request);
        let (fingerprint, epoch, version) = (rest.u64()?, rest.u64()?, rest.u64()?);
        Some((Replicate { fingerprint, epoch, version }, rest.rest()))
    }
}

/// What a replica says to a write. In all cases but the first nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Done.
    Done {
        /// Whether there was an item.
        had_item: bool,
    },
    /// The key has this version, which is not lower than that of the write.
    Newer {
        /// The version.
        version: Version,
        /// Whether there is an item; it was deleted otherwise.
        has_item: bool,
    },
    /// There is no item, and deletions up to this version, which is not lower than that of the write, may have been
    /// forgotten before their time.
    Forgotten {
        /// The version.
        floor: Version,
    },
    /// The server divides the keys in another way.
    OtherMap {
        /// Its fingerprint.
        fingerprint: u64,
    },
    /// The server is in another epoch.
    OtherEpoch {
        /// Its epoch.
        epoch: u64,
    },
    /// The server does not know yet whether it may serve in its epoch, or has not been heard for too long.
    NotSafe,
    /// The server takes no writes, or does not decide about conditions because it is being filled.
    Closed,
    /// The version lies too far ahead of the server's clock.
    ClockAhead {
        /// The server's clock, in seconds since 1970.
        seconds: u64,
    },
    /// The operation was refused.
    Refused(Refused),
    /// Another core owns the key.
    NotOwned,
    /// The request is malformed.
    Malformed,
    /// A replica does not take this operation.
    Unsupported,
}

/// Added to a status that says why an operation was refused.
const REFUSED: u8 = 0x40;

impl Verdict {
    /// Its length.
    pub const BYTES: usize = 9;

    /// Returns the response.
    pub fn encode(&self) -> [u8; Verdict::BYTES] {
        let (kind, number) = match *self {
            Verdict::Done { had_item } => (0, u64::from(had_item)),
            Verdict::Newer { version, has_item: true } => (1, version),
            Verdict::OtherMap { fingerprint } => (2, fingerprint),
            Verdict::OtherEpoch { epoch } => (3, epoch),
            Verdict::NotSafe => (4, 0),
            Verdict::Closed => (5, 0),
            Verdict::ClockAhead { seconds } => (6, seconds),
            Verdict::NotOwned => (7, 0),
            Verdict::Malformed => (8, 0),
            Verdict::Unsupported => (9, 0),
            Verdict::Forgotten { floor } => (10, floor),
            Verdict::Newer { version, has_item: false } => (11, version),
            Verdict::Refused(Refused::NotFound) => (REFUSED + Status::NotFound as u8, 0),
            Verdict::Refused(Refused::Exists) => (REFUSED + Status::Exists as u8, 0),
            Verdict::Refused(Refused::Changed) => (REFUSED + Status::Changed as u8, 0),
            Verdict::Refused(Refused::TooLarge { len, max }) => {
                (REFUSED + Status::TooLarge as u8, (len as u64) << 32 | max as u64 & u64::from(u32::MAX))
            }
            Verdict::Refused(Refused::NotANumber) => (REFUSED + Status::NotANumber as u8, 0),
            Verdict::Refused(_) => (REFUSED + Status::Full as u8, 0),
        };
        let mut bytes = [0; Verdict::BYTES];
        Writer(&mut bytes).u8(kind).u64(number);
        bytes
    }

    /// Parses a response.
    pub fn parse(response: &[u8]) -> Option<Verdict> {
        let mut rest = Reader(response);
        let (kind, number) = (rest.u8()?, rest.u64()?);
        rest.end()?;
        Some(match kind {
            0 => Verdict::Done { had_item: number != 0 },
            1 => Verdict::Newer { version: number, has_item: true },
            2 => Verdict::OtherMap { fingerprint: number },
            3 => Verdict::OtherEpoch { epoch: number },
            4 => Verdict::NotSafe,
            5 => Verdict::Closed,
            6 => Verdict::ClockAhead { seconds: number },
            7 => Verdict::NotOwned,
            8 => Verdict::Malformed,
            9 => Verdict::Unsupported,
            10 => Verdict::Forgotten { floor: number },
            11 => Verdict::Newer { version: number, has_item: false },
            _ => Verdict::Refused(match Status::of(&[kind.checked_sub(REFUSED)?])? {
                Status::NotFound => Refused::NotFound,
                Status::Exists => Refused::Exists,
                Status::Changed => Refused::Changed,
                Status::TooLarge => {
                    Refused::TooLarge { len: (number >> 32) as usize, max: (number & u64::from(u32::MAX)) as usize }
                }
                Status::NotANumber => Refused::NotANumber,
                Status::Full => Refused::Full,
                _ => return None,
            }),
        })
    }
}

/// What a core is to do. The response is [`Turned`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Begin to be filled: writes are taken from now on, and no reads. What is there is kept, and is not read.
    Begin {
        /// The number of this fill.
        fill: u64,
    },
    /// Drop some of what was there before the fill began; LATER if there is more. Each source has answered by now.
    Drop {
        /// The number of the fill.
        fill: u64,
    },
    /// The fill is complete: open. CHANGED if another fill has begun since; FULL if more keys were changed than a core
    /// keeps in mind.
    Complete {
        /// The number of the fill.
        fill: u64,
    },
    /// Open with what it holds. CLOSED if some of that may have been dropped for a fill that has not ended. The first core
    /// says so if that may be so of any, so no core opens then.
    Open,
}

impl Turn {
    /// Returns the request.
    pub fn encode(self) -> [u8; 9] {
        let (kind, fill) = match self {
            Turn::Begin { fill } => (0, fill),
            Turn::Complete { fill } => (1, fill),
            Turn::Open => (2, 0),
            Turn::Drop { fill } => (3, fill),
        };
        let mut bytes = [0; 9];
        Writer(&mut bytes).u8(kind).u64(fill);
        bytes
    }

    /// Parses a request.
    pub fn parse(request: &[u8]) -> Option<Turn> {
        let mut rest = Reader(request);
        let (kind, fill) = (rest.u8()?, rest.u64()?);
        rest.end()?;
        Some(match kind {
            0 => Turn::Begin { fill },
            1 => Turn::Complete { fill },
            2 => Turn::Open,
            3 => Turn::Drop { fill },
            _ => return None,
        })
    }
}

/// What a core says to a [`Turn`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turned {
    /// What became of it.
    pub status: Status,
    /// The state of the core until then.
    pub before: ReplicaState,
}

impl Turned {
    /// Returns the response.
    pub fn encode(self) -> [u8; 2] {
        [self.status as u8, self.before as u8]
    }

    /// Parses a response.
    pub fn parse(response: &[u8]) -> Option<Turned> {
        let mut rest = Reader(response);
        let (status, before) = (Status::of(&[rest.u8()?])?, ReplicaState::parse(rest.u8()?)?);
        rest.end()?;
        Some(Turned { status, before })
    }
}

/// A request for the items of some partitions, from a hash on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionScan<'a> {
    /// The first hash wanted; 0 to begin.
    pub from: u64,
    /// A bit for each partition, the lowest bit of the first byte for partition 0.
    pub partitions: &'a [u8],
}

impl<'a> PartitionScan<'a> {
    /// Returns the request.
    pub fn encode(&self) -> Vec<u8> {
        [&self.from.to_le_bytes(), self.partitions].concat()
    }

    /// Parses a request.
    pub fn parse(request: &'a [u8]) -> Option<PartitionScan<'a>> {
        let mut rest = Reader(request);
        Some(PartitionScan { from: rest.u64()?, partitions: rest.rest() })
    }

    /// Whether a partition is wanted.
    #[inline]
    pub fn wants(&self, partition: u32) -> bool {
        self.partitions.get(partition as usize / 8).is_some_and(|byte| byte >> (partition % 8) & 1 != 0)
    }
}

/// An item with its version, as replicas pass it on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionedItem<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its value; `None` if it is longer than a scan returns.
    pub value: Option<&'a [u8]>,
    /// The client's flags.
    pub flags: u32,
    /// When it expires, in wall-clock time; `None` if never.
    pub expires: Option<UnixSeconds>,
    /// Its version.
    pub version: Version,
}

/// Bytes of an item besides its key and value.
const ITEM_BYTES: usize = 1 + 4 + 1 + 4 + 8 + 4;
/// The length that stands for a value that is not returned.
const NOT_SHOWN: u32 = u32::MAX;

impl<'a> VersionedItem<'a> {
    /// Returns an item of a store, whose value is left out if it is too long for a scan.
    pub(crate) fn of_store(key: &'a [u8], item: &Item<'a>) -> VersionedItem<'a> {
        let value = (item.value.len() <= SCAN_VALUE_BYTES_MAX).then_some(item.value);
        VersionedItem { value, ..VersionedItem::whole(key, item) }
    }

    /// The same with its value, however long that is.
    pub(crate) fn whole(key: &'a [u8], item: &Item<'a>) -> VersionedItem<'a> {
        VersionedItem { key, value: Some(item.value), flags: item.flags, expires: item.expires, version: item.cas }
    }

    /// Returns its length.
    pub fn encoded_len(&self) -> usize {
        ITEM_BYTES + self.key.len() + self.value.map_or(0, <[u8]>::len)
    }

    /// Appends it to `bytes`.
    pub fn encode(&self, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        bytes.resize(start + self.encoded_len(), 0);
        let mut out = Writer(&mut bytes[start..]);
        // Keys have at most 250 bytes, and values far fewer than 2^32.
        out.u8(self.key.len() as u8).u32(self.flags).u8(u8::from(self.expires.is_some()));
        out.u32(self.expires.unwrap_or(0)).u64(self.version);
        out.u32(self.value.map_or(NOT_SHOWN, |value| value.len() as u32));
        out.bytes(self.key).bytes(self.value.unwrap_or_default());
    }

    fn parse(rest: &mut Reader<'a>) -> Option<VersionedItem<'a>> {
        let key_len = usize::from(rest.u8()?);
        let flags = rest.u32()?;
        let has_expiry = match rest.u8()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let (expires, version, value_len) = (rest.u32()?, rest.u64()?, rest.u32()?);
        let key = rest.bytes(key_len)?;
        let value = if value_len == NOT_SHOWN { None } else { Some(rest.bytes(value_len as usize)?) };
        Some(VersionedItem { key, value, flags, expires: has_expiry.then_some(expires), version })
    }
}

/// Items, one after the other. Ends early, with `None` for the malformed one, if the bytes are malformed.
#[derive(Debug, Clone)]
pub struct VersionedItems<'a>(Reader<'a>);

impl<'a> Iterator for VersionedItems<'a> {
    type Item = Option<VersionedItem<'a>>;

    fn next(&mut self) -> Option<Option<VersionedItem<'a>>> {
        if self.0.0.is_empty() {
            return None;
        }
        let item = VersionedItem::parse(&mut self.0);
        if item.is_none() {
            self.0 = Reader(&[]);
        }
        Some(item)
    }
}

/// Splits a request to fill a core into the number of the fill and the items.
pub fn parse_fill(request: &[u8]) -> Option<(u64, VersionedItems<'_>)> {
    let mut rest = Reader(request);
    let fill = rest.u64()?;
    Some((fill, VersionedItems(rest)))
}

/// Writes a response to a [`PartitionScan`]: status, whether there is more, the hash to continue from, the items.
#[derive(Debug)]
pub(crate) struct PartitionScanWriter(Vec<u8>);

/// Bytes before the items.
const HEAD_BYTES: usize = 10;

impl PartitionScanWriter {
    pub fn new() -> PartitionScanWriter {
        let mut bytes = Vec::with_capacity(SCAN_BYTES * 2);
        bytes.resize(HEAD_BYTES, 0);
        PartitionScanWriter(bytes)
    }

    pub fn push(&mut self, item: &VersionedItem<'_>) {
        item.encode(&mut self.0);
    }

    /// Whether to visit no further range.
    pub fn is_full(&self) -> bool {
        self.0.len() >= SCAN_BYTES
    }

    /// Returns the bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        self.0.capacity()
    }

    /// Returns the response.
    pub fn finish(self, next: Option<u64>) -> Vec<u8> {
        let mut bytes = self.0;
        Writer(&mut bytes[..HEAD_BYTES]).u8(Status::Done as u8).u8(u8::from(next.is_some())).u64(next.unwrap_or(0));
        bytes
    }
}

/// The parsed response to a [`PartitionScan`].
#[derive(Debug)]
pub struct PartitionScanAnswer<'a> {
    /// The hash to continue from; `None` at the end.
    pub next: Option<u64>,
    /// The items.
    pub items: VersionedItems<'a>,
}

impl<'a> PartitionScanAnswer<'a> {
    /// Parses a response with status DONE; `None` if it is malformed or has another status.
    pub fn parse(response: &'a [u8]) -> Option<PartitionScanAnswer<'a>> {
        let mut rest = Reader(response);
        if Status::of(response)? != Status::Done {
            return None;
        }
        rest.u8()?;
        let has_more = rest.u8()? != 0;
        let next = rest.u64()?;
        Some(PartitionScanAnswer { next: has_more.then_some(next), items: VersionedItems(rest) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_parsed() {
        let info = ReplicaInfo {
            state: ReplicaState::Filling,
            is_safe: true,
            fingerprint: 7,
            incarnation: u64::MAX,
            epoch: 9,
            changed: 3,
            server: "a.b".into(),
        };
        let bytes = info.encode();
        assert_eq!(ReplicaInfo::parse(&bytes), Some(info));
        assert!((0..bytes.len()).all(|len| ReplicaInfo::parse(&bytes[..len]).is_none()));
        let head = Replicate { fingerprint: 1, epoch: 2, version: 3 };
        let mut bytes = [0; Replicate::BYTES + 2];
        head.encode(&mut bytes);
        assert_eq!(Replicate::parse(&bytes), Some((head, &[0, 0][..])));
        for turn in [Turn::Begin { fill: 5 }, Turn::Complete { fill: u64::MAX }, Turn::Drop { fill: 6 }, Turn::Open] {
            assert_eq!(Turn::parse(&turn.encode()), Some(turn));
        }
        assert_eq!([Turn::parse(&[9; 9]), Turn::parse(&[0; 8]), Turn::parse(&[0; 10])], [None; 3]);
        let turned = Turned { status: Status::Later, before: ReplicaState::Filling };
        assert_eq!(Turned::parse(&turned.encode()), Some(turned));
        assert_eq!([Turned::parse(&[0; 1]), Turned::parse(&[0, 3]), Turned::parse(&[0; 3])], [None; 3]);
    }

    #[test]
    fn each_verdict_is_told_from_the_others() {
        let verdicts = [
            Verdict::Done { had_item: true },
            Verdict::Done { had_item: false },
            Verdict::Newer { version: 1 << 60, has_item: true },
            Verdict::Newer { version: 1 << 60, has_item: false },
            Verdict::Forgotten { floor: 1 << 59 },
            Verdict::OtherMap { fingerprint: 4 },
            Verdict::OtherEpoch { epoch: 5 },
            Verdict::NotSafe,
            Verdict::Closed,
            Verdict::ClockAhead { seconds: 6 },
            Verdict::NotOwned,
            Verdict::Malformed,
            Verdict::Unsupported,
            Verdict::Refused(Refused::NotFound),
            Verdict::Refused(Refused::Exists),
            Verdict::Refused(Refused::Changed),
            Verdict::Refused(Refused::TooLarge { len: 1 << 20, max: 77 }),
            Verdict::Refused(Refused::NotANumber),
            Verdict::Refused(Refused::Full),
        ];
        for verdict in verdicts {
            assert_eq!(Verdict::parse(&verdict.encode()), Some(verdict));
        }
        assert_eq!(Verdict::parse(&[0x77; 9]), None);
        assert_eq!(Verdict::parse(&[0; 8]), None);
    }

    #[test]
    fn items_keep_their_versions() {
        let item = |key, value| VersionedItem { key, value, flags: 5, expires: Some(6), version: 1 << 63 };
        let items = [item(b"a", Some(&b"value"[..])), item(b"long", None), item(b"empty", Some(b""))];
        let mut writer = PartitionScanWriter::new();
        items.iter().for_each(|item| writer.push(item));
        let bytes = writer.finish(Some(99));
        let answer = PartitionScanAnswer::parse(&bytes).unwrap();
        assert_eq!(answer.next, Some(99));
        assert_eq!(answer.items.map(Option::unwrap).collect::<Vec<_>>(), items);
        let cut = PartitionScanAnswer::parse(&bytes[..bytes.len() - 3]).unwrap();
        assert_eq!(cut.items.filter(Option::is_none).count(), 1);
    }

    #[test]
    fn partitions_are_bits() {
        let scan = PartitionScan { from: 1, partitions: &[0b1000_0001, 0b10] };
        let request = scan.encode();
        let scan = PartitionScan::parse(&request).unwrap();
        let wanted: Vec<u32> = (0..40).filter(|partition| scan.wants(*partition)).collect();
        assert_eq!(wanted, [0, 7, 9]);
    }
}
