//! Snapshots: the file, and taking one while the partition changes.

mod damage;
mod origin;
mod replaced;
mod sweep;

use dunlin_store::Shape;
use dunlin_store::snapshot::{Block, Origin, Record, Writer};

/// A few records of every kind, in several blocks.
fn small_file() -> (Vec<u8>, u64) {
    let mut writer = Writer::new(Vec::new(), 1_000).unwrap();
    writer.write_origin(&Origin { routing: [9; 16], partitions: vec![Shape::default(); 2] }).unwrap();
    let records = [
        Record { key: b"a", value: b"", flags: 0, expires: None, is_stale: false },
        Record { key: b"key", value: b"value", flags: u32::MAX, expires: Some(2_000), is_stale: false },
        Record { key: &[0xff; 250], value: &[7; 40], flags: 1, expires: None, is_stale: true },
    ];
    for records in records.chunks(2) {
        let mut block = Block::default();
        records.iter().for_each(|record| block.push(record));
        writer.write(&block).unwrap();
    }
    let (bytes, totals) = writer.finish().unwrap();
    assert_eq!((totals.file_bytes, totals.blocks), (bytes.len() as u64, 2));
    (bytes, totals.records)
}
