//! Snapshots in files: written, damaged, cut off, and read.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use dunlin_index::snapshot::{Items, NotLoaded, NotSaved, Saved, load, save};
use dunlin_index::{Index, pin};
use dunlin_store::snapshot::{Content, SaveError, SnapshotError, Writer, beside};

use crate::{KINDS, all, assert_has, items};

const BUDGET: usize = 64 << 20;

/// A directory that is removed at the end of its test.
struct Directory(PathBuf);

impl Directory {
    fn new(test: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("dunlin-index-snapshot-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("index.snapshot")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn filled(count: u64) -> Index {
    let index = Index::new(BUDGET).unwrap();
    for number in 0..count {
        index.insert(&number.to_be_bytes(), &number.to_le_bytes(), &pin()).unwrap();
    }
    index
}

/// Loads a file into an index of its own.
fn loaded(path: &Path) -> Result<Index, NotLoaded> {
    let index = Index::new(BUDGET).unwrap();
    let result = load(&index, path, |_| true);
    assert_eq!(index.len(), *result.as_ref().unwrap_or(&0), "all or nothing");
    result.map(|_| index)
}

/// A file with these records, in this order.
fn write(path: &Path, records: &[(&[u8], &[u8])]) {
    let mut payload = Vec::new();
    for (key, value) in records {
        payload.extend([key.len() as u32, value.len() as u32].map(u32::to_le_bytes).concat());
        payload.extend([*key, *value].concat());
    }
    let mut writer = Writer::of(Content::Index, Vec::new(), 7).unwrap();
    writer.write_payload(&payload, records.len() as u32).unwrap();
    fs::write(path, writer.finish().unwrap().0).unwrap();
}

#[test]
fn what_is_saved_is_loaded_in_any_size_and_shape() {
    let directory = Directory::new("saved");
    let path = directory.file();
    for kind in KINDS {
        for (seed, count) in [(1, 0), (2, 1), (3, 20_000)] {
            let items = items(kind, seed, count);
            let index = Index::new(BUDGET).unwrap();
            for (key, value) in &items {
                index.insert(key, value, &pin()).unwrap();
            }
            let mut seen = 0;
            let goes_on = |items| {
                assert!(items >= seen);
                seen = items;
                true
            };
            let saved = save(&index, &path, goes_on).unwrap();
            let file_bytes = fs::metadata(&path).unwrap().len();
            assert_eq!(saved, Saved { items: items.len() as u64, file_bytes });
            let loaded = loaded(&path).unwrap();
            assert_has(&loaded, &items);
            // In the order of the keys.
            let bytes = fs::read(&path).unwrap();
            let mut reader = Items::new(&bytes[..]).unwrap();
            let mut found = Vec::new();
            while let Some(block) = reader.next_block().unwrap() {
                found.extend(block.map(|item| item.map(|(_, key, value)| (key.to_vec(), value.to_vec())).unwrap()));
            }
            assert!(found == all(&index) && reader.offset() == file_bytes);
        }
    }
}

#[test]
fn each_byte_that_is_changed_and_each_length_is_refused_with_its_place() {
    let directory = Directory::new("damage");
    let path = directory.file();
    save(&filled(20), &path, |_| true).unwrap();
    let bytes = fs::read(&path).unwrap();
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        match loaded(&path) {
            Err(NotLoaded::File(error)) => error.offset().unwrap(),
            other => panic!("{other:?}"),
        }
    };
    for at in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        assert!(refused(&damaged) <= at as u64, "at byte {at}");
        assert!(refused(&bytes[..at]) <= at as u64, "cut off after {at}");
    }
    assert_eq!(refused(&[&bytes[..], &[0]].concat()), bytes.len() as u64);
    fs::write(&path, &bytes).unwrap();
    assert_eq!(loaded(&path).unwrap().len(), 20);
}

#[test]
fn files_that_no_server_writes_are_refused() {
    let directory = Directory::new("foreign");
    let path = directory.file();
    let why = || loaded(&path).unwrap_err().to_string();
    for records in [&[(&b"b"[..], &b""[..]), (b"a", b"")][..], &[(b"a", b""), (b"a", b"")]] {
        write(&path, records);
        // Behind two headers of 32 bytes, and a record of nine.
        assert_eq!(why(), "at byte 73: the keys are not in ascending order");
    }
    write(&path, &[(&[b'k'; (64 << 10) + 1], b"")]);
    assert_eq!(why(), "at byte 64: a key is longer than keys may be");
    write(&path, &[(b"k", &vec![0; (1 << 20) + 1])]);
    assert_eq!(why(), "at byte 64: a value is longer than values may be");
    let mut writer = Writer::of(Content::Index, Vec::new(), 7).unwrap();
    writer.write_payload(&[1, 0, 0, 0, 9, 0, 0, 0, b'k'], 1).unwrap();
    fs::write(&path, writer.finish().unwrap().0).unwrap();
    assert_eq!(why(), "at byte 64: a record is longer than its block");
    let mut writer = Writer::of(Content::Index, Vec::new(), 7).unwrap();
    writer.write_payload(&[0; 17], 2).unwrap();
    fs::write(&path, writer.finish().unwrap().0).unwrap();
    assert_eq!(why(), "at byte 72: the keys are not in ascending order", "two empty keys");
    let mut writer = Writer::of(Content::Index, Vec::new(), 7).unwrap();
    writer.write_payload(&[0; 9], 1).unwrap();
    fs::write(&path, writer.finish().unwrap().0).unwrap();
    assert_eq!(why(), "at byte 72: something follows the last record of a block");
    // A key-value server's.
    fs::write(&path, Writer::new(Vec::new(), 7).unwrap().finish().unwrap().0).unwrap();
    assert_eq!(why(), "at byte 4: this is no snapshot of Dunlin");
    fs::remove_file(&path).unwrap();
    match loaded(&path) {
        Err(NotLoaded::File(SnapshotError::Open { source, .. })) => assert_eq!(source.kind(), ErrorKind::NotFound),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_snapshot_that_is_given_up_or_fails_leaves_the_one_before() {
    let directory = Directory::new("older");
    let path = directory.file();
    save(&filled(10), &path, |_| true).unwrap();
    let before = fs::read(&path).unwrap();
    let index = filled(50_000);
    let mut blocks = 0;
    let given_up = save(&index, &path, |_| {
        blocks += 1;
        blocks < 3
    });
    assert!(matches!(given_up, Err(NotSaved::GivenUp)) && blocks == 3, "{given_up:?}");
    assert_eq!(fs::read(&path).unwrap(), before);
    assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 1, "nothing else is left");
    // What a killed process leaves is taken over.
    fs::write(beside(&path, ".tmp"), vec![7; 5_000_000]).unwrap();
    save(&index, &path, |_| true).unwrap();
    assert_eq!(loaded(&path).unwrap().len(), 50_000);
    let before = fs::read(&path).unwrap();
    fs::create_dir(beside(&path, ".tmp")).unwrap();
    let refused = save(&index, &path, |_| true).unwrap_err();
    assert!(matches!(refused, NotSaved::File(SaveError::Io { .. })), "{refused}");
    assert_eq!(fs::read(&path).unwrap(), before);
    let nowhere = save(&index, Path::new("/nowhere/index.snapshot"), |_| true).unwrap_err();
    assert!(nowhere.to_string().contains("cannot create /nowhere/index.snapshot.tmp"), "{nowhere}");
}

#[test]
fn loading_can_be_given_up_and_wants_an_empty_index_with_room() {
    let directory = Directory::new("loading");
    let path = directory.file();
    let index = filled(50_000);
    let saved = save(&index, &path, |_| true).unwrap();
    let again = Index::new(BUDGET).unwrap();
    let before = again.memory_bytes();
    assert!(matches!(load(&again, &path, |at| at.records < 20_000), Err(NotLoaded::GivenUp)));
    assert_eq!((again.len(), again.memory_bytes()), (0, before));
    let mut last = Default::default();
    let goes_on = |at| {
        last = at;
        true
    };
    assert_eq!(load(&again, &path, goes_on).unwrap(), 50_000);
    assert_eq!((last.records, last.file_bytes), (50_000, saved.file_bytes));
    assert!(last.bytes < saved.file_bytes && last.bytes > saved.file_bytes - 100, "the trailer follows");
    assert!(matches!(load(&index, &path, |_| true), Err(NotLoaded::NotEmpty)));
    // The budget that it was saved with is enough.
    let tight = Index::new(index.memory_bytes()).unwrap();
    assert_eq!(load(&tight, &path, |_| true).unwrap(), 50_000);
    let small = Index::new(index.memory_bytes() / 2).unwrap();
    match load(&small, &path, |_| true).unwrap_err() {
        NotLoaded::Full { items, budget } => {
            assert!((20_000..50_000).contains(&items) && budget == small.budget(), "{items}");
        }
        other => panic!("{other}"),
    }
    assert!(small.is_empty());
}

/// Between two blocks, anything may happen: what is there all the time is saved, and nothing that never was.
#[test]
fn a_snapshot_while_others_write_has_what_stayed() {
    let directory = Directory::new("busy");
    let path = directory.file();
    let (index, count) = (Index::new(BUDGET).unwrap(), 60_000u64);
    let stays = |number: u64| number.is_multiple_of(2);
    for number in 0..count {
        index.insert(&number.to_be_bytes(), b"first", &pin()).unwrap();
    }
    let mut blocks = 0;
    save(&index, &path, |_| {
        blocks += 1;
        for number in (0..count).filter(|number| !stays(*number)).skip(blocks).step_by(7) {
            index.remove(&number.to_be_bytes(), &pin());
            index.insert(&[&number.to_be_bytes()[..], b"new"].concat(), b"new", &pin()).unwrap();
        }
        for number in (0..count).filter(|number| stays(*number)).step_by(3) {
            index.insert(&number.to_be_bytes(), b"second", &pin()).unwrap();
        }
        true
    })
    .unwrap();
    assert!(blocks > 2, "{blocks}");
    let loaded = loaded(&path).unwrap();
    let guard = pin();
    assert!(loaded.verify(&guard).is_ok());
    for number in (0..count).filter(|number| stays(*number)) {
        let value = loaded.get(&number.to_be_bytes(), &guard).expect("it was there all the time");
        assert!(&*value == b"first" || &*value == b"second");
    }
    for (key, value) in all(&loaded) {
        let number = u64::from_be_bytes(key[..8].try_into().unwrap());
        let is_of_then = match &key[8..] {
            b"" => number < count && (&value == b"first" || (stays(number) && &value == b"second")),
            rest => rest == b"new" && value == b"new" && !stays(number),
        };
        assert!(is_of_then, "{key:?}: {value:?}");
    }
}
