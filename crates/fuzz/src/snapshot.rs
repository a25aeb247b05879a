//! Any bytes are refused as a snapshot, with a place inside of them, or are written again as they were.
//!
//! The first byte of an input says whether checksums, and what the trailer counts, are put right before; without that
//! nothing but the header would ever be reached.

use dunlin_store::snapshot::{Block, Misfit, Origin, Reader, Record, SnapshotError, Writer, load};
use dunlin_store::{Model, Shape};

const HEADER: usize = 32;
const BLOCK_HEADER: usize = 32;
const TRAILER: usize = 40;
const VERSION_AT: usize = 8;
const ORIGIN_HEADER: usize = 32;
const SHAPE: usize = 48;

/// Reads `bytes`, and loads them.
///
/// # Panics
/// If the reader does, or does not agree with the writer.
pub fn check(input: &[u8]) {
    let Some((flags, bytes)) = input.split_first() else { return };
    let mut bytes = bytes.to_vec();
    if flags & 1 != 0 {
        put_right(&mut bytes);
    }
    let mut partitions = [Model::new(), Model::new()];
    let route = |key: &[u8]| [Some(0), Some(1), None][usize::from(key[0] % 3)];
    let loaded = load(&bytes[..], 1_000, &mut partitions, route, Misfit::Refuse, |_| {});
    match again(&bytes) {
        Ok((written, records)) => {
            // The version before is read, and never written.
            assert!(written == bytes || bytes[VERSION_AT] != written[VERSION_AT]);
            let loaded = loaded.expect("what is read is loaded");
            assert_eq!(loaded.stored + loaded.expired + loaded.elsewhere, records);
        }
        Err(error) => {
            let offset = error.offset().expect("a place");
            assert!(offset <= bytes.len() as u64, "{error} of {} bytes", bytes.len());
            assert_eq!(loaded.expect_err("what is not read is not loaded").to_string(), error.to_string());
        }
    }
}

/// What a writer makes of what is read, and of how many records.
fn again(bytes: &[u8]) -> Result<(Vec<u8>, u64), SnapshotError> {
    let mut reader = Reader::new(bytes)?;
    let mut writer = Writer::new(Vec::new(), reader.taken_at()).expect("memory takes everything");
    if let Some(origin) = reader.origin() {
        writer.write_origin(origin).expect("memory takes everything");
    }
    while let Some(records) = reader.next_block()? {
        let mut block = Block::default();
        for record in records {
            block.push(&record?);
        }
        writer.write(&block).expect("memory takes everything");
    }
    let (written, totals) = writer.finish().expect("memory takes everything");
    Ok((written, totals.records))
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
}

fn seal(bytes: &mut [u8]) {
    let (body, checksum) = bytes.split_at_mut(bytes.len() - 4);
    checksum.copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
}

/// Gives every part that is there the checksum of what it holds, and the trailer the counts of what is before it.
pub fn put_right(bytes: &mut [u8]) {
    if bytes.len() < HEADER {
        return;
    }
    seal(&mut bytes[..HEADER]);
    let mut headers_checksum = crc32c::crc32c(&bytes[..HEADER]);
    let (mut at, mut blocks, mut records, mut payload_bytes) = (HEADER, 0_u64, 0, 0);
    if bytes.len() - at >= ORIGIN_HEADER && bytes[at..].starts_with(b"ORIG") {
        let shapes = u32_at(bytes, at + 4).saturating_mul(SHAPE).saturating_add(4);
        let end = (at + ORIGIN_HEADER).saturating_add(shapes);
        seal(&mut bytes[at..at + ORIGIN_HEADER]);
        if end > bytes.len() {
            return;
        }
        seal(&mut bytes[at + ORIGIN_HEADER..end]);
        headers_checksum = crc32c::crc32c_append(headers_checksum, &bytes[at..end]);
        at = end;
    }
    while bytes.len() - at >= BLOCK_HEADER && bytes[at..].starts_with(b"BLOK") {
        let payload = at + BLOCK_HEADER;
        let end = payload.saturating_add(u32_at(bytes, at + 4)).min(bytes.len());
        records += u32_at(bytes, at + 8) as u64;
        payload_bytes += u32_at(bytes, at + 4) as u64;
        let checksum = crc32c::crc32c(&bytes[payload..end]);
        bytes[at + 12..at + 16].copy_from_slice(&checksum.to_le_bytes());
        bytes[at + 16..at + 24].copy_from_slice(&blocks.to_le_bytes());
        seal(&mut bytes[at..payload]);
        headers_checksum = crc32c::crc32c_append(headers_checksum, &bytes[at..payload]);
        blocks += 1;
        at = end;
    }
    if bytes.len() - at >= TRAILER && bytes[at..].starts_with(b"ENDS") {
        let trailer = &mut bytes[at..at + TRAILER];
        trailer[8..16].copy_from_slice(&blocks.to_le_bytes());
        trailer[16..24].copy_from_slice(&records.to_le_bytes());
        trailer[24..32].copy_from_slice(&payload_bytes.to_le_bytes());
        trailer[32..36].copy_from_slice(&headers_checksum.to_le_bytes());
        seal(trailer);
    }
}

/// Names and inputs: files with none, one and two blocks, with right checksums and with those that are put right.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let plain = Record { key: b"key", value: b"value", flags: 1, expires: None, is_stale: false };
    let records = [
        plain,
        Record { key: b"a", value: b"", expires: Some(2_000), ..plain },
        Record { key: &[b'k'; 250], value: &[7; 300], is_stale: true, ..plain },
    ];
    let file = |flags: u8, blocks: &[&[Record<'_>]]| {
        let mut writer = Writer::new(vec![flags], 900).expect("memory takes everything");
        for records in blocks {
            let mut block = Block::default();
            records.iter().for_each(|record| block.push(record));
            writer.write(&block).expect("memory takes everything");
        }
        writer.finish().expect("memory takes everything").0
    };
    let origin = |flags| {
        let mut writer = Writer::new(vec![flags], 900).expect("memory takes everything");
        let origin = Origin { routing: [7; 16], partitions: vec![Shape::default(); 2] };
        writer.write_origin(&origin).expect("memory takes everything");
        let mut block = Block::default();
        block.push(&plain);
        writer.write(&block).expect("memory takes everything");
        writer.finish().expect("memory takes everything").0
    };
    vec![
        ("empty", file(0, &[])),
        ("one_block", file(0, &[&records])),
        ("put_right", file(1, &[&records])),
        ("origin", origin(0)),
        ("origin_put_right", origin(1)),
        ("two_blocks", file(1, &[&records[..1], &records[1..]])),
    ]
}
