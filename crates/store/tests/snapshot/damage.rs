//! Damaged files.

use dunlin_store::snapshot::{Loaded, Misfit, Reader, SnapshotError, load, load_file};
use dunlin_store::{Model, Store};

use super::small_file;

/// Returns the contents of a file: records as text, or the error.
fn read(bytes: &[u8]) -> Result<Vec<String>, SnapshotError> {
    let mut reader = Reader::new(bytes)?;
    let mut found = Vec::new();
    while let Some(records) = reader.next_block()? {
        for record in records {
            found.push(format!("{:?}", record?));
        }
    }
    Ok(found)
}

#[test]
fn what_was_written_is_read() {
    let (bytes, records) = small_file();
    let found = read(&bytes).unwrap();
    assert_eq!(found.len() as u64, records);
    assert!(found[1].contains("expires: Some(2000)") && found[2].contains("is_stale: true"), "{found:?}");
}

#[test]
fn every_truncation_is_refused_and_says_where_the_file_ends() {
    let (bytes, _) = small_file();
    for len in 0..bytes.len() {
        match read(&bytes[..len]) {
            Err(SnapshotError::Truncated { offset, .. }) => assert_eq!(offset, len as u64),
            other => panic!("cut at {len}: {other:?}"),
        }
    }
}

#[test]
fn every_flipped_bit_is_refused_and_says_where() {
    let (bytes, _) = small_file();
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << bit;
            let error = read(&damaged)
                .map(|found| panic!("bit {bit} of byte {at} makes no difference: {found:?}"))
                .unwrap_err();
            let offset = error.offset().unwrap();
            // The damaged part begins before it, within 32 bytes of headers and 300 of records, and the message says
            // so.
            assert!(offset <= at as u64 && at as u64 - offset < 400, "byte {at}: {error}");
            assert!(error.to_string().starts_with(&format!("at byte {offset}: ")), "{error}");
        }
    }
}

#[test]
fn nothing_may_follow_and_nothing_may_be_repeated_or_missing() {
    let (bytes, _) = small_file();
    let followed = [&bytes[..], b"x"].concat();
    assert_eq!(read(&followed).unwrap_err().offset(), Some(bytes.len() as u64));
    let second_block = (64..bytes.len() - 40).find(|at| &bytes[*at..at + 4] == b"BLOK").unwrap();
    let trailer = bytes.len() - 40;
    let without_second = [&bytes[..second_block], &bytes[trailer..]].concat();
    let again = [&bytes[..second_block], &bytes[32..second_block], &bytes[second_block..]].concat();
    let swapped = [&bytes[..32], &bytes[second_block..trailer], &bytes[32..second_block], &bytes[trailer..]].concat();
    for changed in [without_second, again, swapped] {
        assert!(matches!(read(&changed), Err(SnapshotError::Malformed { .. })));
    }
}

#[test]
fn other_files_are_named_as_such() {
    assert!(matches!(read(&[b'x'; 100]), Err(SnapshotError::NotASnapshot { offset: 0 })));
    let (mut bytes, _) = small_file();
    bytes[8] = 3;
    let error = read(&bytes).unwrap_err();
    assert_eq!(
        error.to_string(),
        "at byte 8: the snapshot has version 3 of the format, this program reads versions 1 to 2"
    );
    let missing = std::path::Path::new("/nonexistent/snapshot");
    let error = load_file(missing, 0, &mut [Model::new()], |_| Some(0), Misfit::Refuse, |_| {}).unwrap_err();
    assert_eq!((error.offset(), error.to_string().as_str()), (None, "cannot open the snapshot /nonexistent/snapshot"));
}

#[test]
fn records_go_where_they_are_routed() {
    let (bytes, _) = small_file();
    let mut partitions = [Model::new(), Model::new()];
    let mut told = Vec::new();
    let route = |key: &[u8]| [Some(0), Some(1), None][if key == b"a" { 0 } else { key.len() % 2 + 1 }];
    let loaded =
        load(&bytes[..], 1_500, &mut partitions, route, Misfit::Refuse, |at| told.push((at.records, at.bytes)))
            .unwrap();
    let expected = Loaded { taken_at: 1_000, stored: 2, elsewhere: 1, ..Loaded::default() };
    // The key of 250 bytes has even length, so it is partition 1's; "key" is nobody's.
    assert_eq!(loaded, expected);
    assert_eq!(partitions.each_ref().map(|partition| partition.stats().items), [1, 1]);
    assert_eq!(told.len(), 2);
    assert_eq!(told[1], (3, bytes.len() as u64 - 40));
    let late = load(&bytes[..], 2_000, &mut partitions, |_| Some(0), Misfit::Refuse, |_| {}).unwrap();
    assert_eq!((late.stored, late.expired), (2, 1));
}
