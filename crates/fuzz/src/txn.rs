//! The messages of transactions: any bytes are refused, or are written again as they were.
//!
//! The first byte says which parser gets the rest.

use dunlin_txn::wire::answer::{Cause, Found, Grant, Known, Presence, Refusal, Resource, put_done, take_status};
use dunlin_txn::wire::execute::{Access, Check, Lock, Target};
use dunlin_txn::wire::log::{Append, Recorded, put_transaction, take_transaction};
use dunlin_txn::wire::write::Write;
use dunlin_txn::wire::{HEADER_BYTES, Header, Kind, WireError};
use dunlin_txn::{PartitionId, TableId, TransactionId};

/// Takes from the front, and what was taken must be written as it was.
fn again<'a, V>(
    bytes: &'a [u8],
    take: impl FnOnce(&mut &'a [u8]) -> Result<V, WireError>,
    encode: impl FnOnce(&V, &mut Vec<u8>),
) -> Option<(V, &'a [u8])> {
    let mut rest = bytes;
    let value = take(&mut rest).ok()?;
    let mut written = Vec::new();
    encode(&value, &mut written);
    assert_eq!(written, bytes[..bytes.len() - rest.len()]);
    Some((value, rest))
}

/// Checks one input.
///
/// # Panics
/// If a parser does, or does not agree with what writes.
pub fn check(bytes: &[u8]) {
    let Some((what, bytes)) = bytes.split_first() else { return };
    match what % 8 {
        0 => check_request(bytes),
        1 => drop(again(bytes, Target::take, Target::encode)),
        2 => drop(again(bytes, Check::take, Check::encode)),
        3 => drop(again(bytes, Access::take, Access::encode)),
        4 => drop(again(bytes, Recorded::take, Recorded::encode)),
        5 => drop(again(bytes, take_transaction, |id, out| put_transaction(out, *id))),
        6 => check_answer(bytes),
        _ => check_append(bytes),
    }
}

/// A header, and what follows it in each kind of request.
fn check_request(bytes: &[u8]) {
    for kind in Kind::ALL {
        let Some((header, body)) = again(bytes, |from| Header::take(kind, from), Header::encode) else { continue };
        assert_eq!(bytes.len() - body.len(), HEADER_BYTES);
        let mut rest = body;
        // No more work than the bytes allow, whatever the count says.
        if let Ok(writes) = Write::take_all(header.count.into(), &mut rest) {
            assert_eq!(writes.len(), usize::from(header.count));
            let mut written = Vec::new();
            writes.iter().for_each(|write| write.encode(&mut written));
            assert_eq!(written, body[..body.len() - rest.len()]);
        }
    }
}

fn check_append(bytes: &[u8]) {
    if let Ok(append) = Append::parse(bytes) {
        let mut written = Vec::new();
        Append::encode_ended(&append.ended, append.open, &mut written);
        written.extend_from_slice(append.record);
        assert_eq!(written, bytes);
    }
}

fn check_answer(bytes: &[u8]) {
    let mut rest = bytes;
    match take_status(&mut rest) {
        // The value of a status may be wider than what it means.
        Ok(Err(refusal)) => {
            let mut written = Vec::new();
            refusal.encode(&mut written);
            assert_eq!((written.len(), written[0]), (9, bytes[0]));
            assert_eq!(take_status(&mut &written[..]), Ok(Err(refusal)));
        }
        Ok(Ok(())) => {
            // Flags that mean nothing are ignored, so what is read is compared, not bytes.
            if let Ok(found) = Found::take(&mut rest) {
                let mut written = Vec::new();
                found.encode(&mut written);
                assert_eq!(Found::take(&mut &written[..]), Ok(found));
            }
            if let Ok(known) = Known::parse(&bytes[1..]) {
                assert_eq!(known as u8, bytes[1]);
            }
        }
        Err(_) => {}
    }
}

/// The first corpus: a message of each kind.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let transaction = TransactionId { epoch: 3, coordinator: 5, sequence: 9 };
    let target = Target { partition: PartitionId(2), table: TableId(1), key: b"bird" };
    let written = |what: u8, write: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = vec![what];
        write(&mut bytes);
        bytes
    };
    let write = Write { target, version: 8, low: 4, value: Some(b"dunlin") };
    let request = |kind, count, body: &dyn Fn(&mut Vec<u8>)| {
        let header = Header { kind, count, cluster: 1, transaction, incarnation: 6 };
        written(0, &|out| {
            header.encode(out);
            body(out);
        })
    };
    let deletion = Write { value: None, ..write };
    let grant = Some(Grant { version: 8, low: 4 });
    let found = Found { version: 7, grant, value: Some(b"dunlin"), presence: Presence::Present };
    let refused = |refusal: Refusal| {
        let mut answer = Vec::new();
        refusal.encode(&mut answer);
        [&[6], &answer[..]].concat()
    };
    let lock = Lock { room: 64, expected: 7 };
    vec![
        (
            "execute",
            request(Kind::Execute, 1, &|out| {
                target.encode(out);
                Access::Read.encode(out);
            }),
        ),
        ("commit", request(Kind::CommitPrimary, 2, &|out| [write, deletion].iter().for_each(|it| it.encode(out)))),
        ("abort", request(Kind::Abort, 0, &|_| {})),
        ("target", written(1, &|out| target.encode(out))),
        ("check", written(2, &|out| Check::Item { target, version: 7 }.encode(out))),
        ("access_read", written(3, &|out| Access::Read.encode(out))),
        ("access_lock", written(3, &|out| Access::ReadAndLock(lock).encode(out))),
        ("recorded", written(4, &|out| Recorded { transaction, count: 1, record: b"record" }.encode(out))),
        ("transaction", written(5, &|out| put_transaction(out, transaction))),
        (
            "found",
            written(6, &|out| {
                put_done(out);
                found.encode(out);
            }),
        ),
        ("known", vec![6, 0, Known::Committed as u8]),
        ("conflict", refused(Refusal::Conflict { index: 3, cause: Cause::Locked })),
        ("full", refused(Refusal::Full(Resource::Log))),
        (
            "append",
            written(7, &|out| {
                Append::encode_ended(&[4, 5, 6], 7, out);
                out.extend_from_slice(b"record");
            }),
        ),
    ]
}
