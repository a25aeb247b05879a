//! Loads files into a server, and dumps it to files.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use dunlin_kv::client::{ClientConfig, KvError};
use dunlin_kv::transfer::{LoadError, Loaded, Loading, Skipped, Watch, dump_server, load};
use dunlin_kv::wire::SCAN_VALUE_BYTES_MAX;
use dunlin_records::{Columns, Format, Reader, Record, RecordError, Writer};

use crate::world::{Client, World};

/// Records what was left out, and ends after this many records.
struct Notes {
    skipped: Vec<String>,
    records_max: u64,
}

impl Notes {
    fn new() -> Notes {
        Notes { skipped: Vec::new(), records_max: u64::MAX }
    }
}

impl Watch for Notes {
    fn loaded(&mut self, records: u64) -> bool {
        records < self.records_max
    }

    fn skipped(&mut self, skipped: &Skipped) {
        self.skipped.push(skipped.to_string());
    }
}

fn load_file(
    world: &World,
    client: &Client,
    file: &[u8],
    format: Format,
    loading: Loading,
    notes: &mut Notes,
) -> Result<Loaded, LoadError> {
    let records = Reader::new(std::io::Cursor::new(file.to_vec()), format, &Columns::default());
    world.run(load(client, records, loading, notes))
}

fn records_of(file: &[u8], format: Format) -> Result<BTreeMap<Vec<u8>, Record>, RecordError> {
    let records = Reader::new(file, format, &Columns::default());
    records.map(|record| record.map(|numbered| (numbered.record.key.clone(), numbered.record))).collect()
}

fn dumped(world: &World, client: &Client, format: Format) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), format).unwrap();
    world.run(dump_server(client, &mut writer, &mut |_| true)).unwrap();
    writer.finish().unwrap()
}

/// Returns records with keys of any bytes, and a value of every length that is handled differently.
fn records() -> Vec<Record> {
    let lengths = [0, 1, 32, 1000, SCAN_VALUE_BYTES_MAX, SCAN_VALUE_BYTES_MAX + 1, 200_000];
    (0..400u32)
        .map(|number| Record {
            key: [&[255 - number as u8, b'\t', b'"'][..], &number.to_le_bytes()].concat(),
            value: (0..lengths[number as usize % if number < 350 { 4 } else { 7 }])
                .map(|at| (at as u32 ^ number) as u8)
                .collect(),
            flags: number % 3,
            expires: (number % 5 == 0).then_some(2_000_000_000 + number),
        })
        .collect()
}

#[test]
fn what_is_loaded_is_dumped() {
    let all = records();
    for format in [Format::Tsv, Format::Csv, Format::JsonLines] {
        let mut writer = Writer::new(Vec::new(), format).unwrap();
        all.iter().for_each(|record| writer.write(record).unwrap());
        let file = writer.finish().unwrap();
        let world = World::new(3);
        world.set_now(1000);
        let client = world.connect(ClientConfig::default());
        let loaded = load_file(&world, &client, &file, format, Loading::new(64), &mut Notes::new()).unwrap();
        assert_eq!((loaded.records, loaded.skipped), (400, 0));
        let dump = dumped(&world, &client, format);
        assert_eq!(records_of(&dump, format).unwrap(), records_of(&file, format).unwrap(), "{format:?}");
        assert_eq!(dump.len(), file.len(), "{format:?}: the same records in another order");
    }
}

#[test]
fn the_last_of_a_key_wins() {
    let file: String = (0..2000).map(|number| format!("{}\t{number}\n", number % 7)).collect();
    let world = World::new(2);
    let client = world.connect(ClientConfig::default());
    load_file(&world, &client, file.as_bytes(), Format::Tsv, Loading::new(64), &mut Notes::new()).unwrap();
    for key in 0..7u64 {
        let last = (0..2000).rev().find(|number| number % 7 == key).unwrap();
        let value = world.run(client.get(key.to_string().as_bytes())).unwrap().unwrap();
        assert_eq!(&value[..], last.to_string().as_bytes());
    }
}

#[test]
fn what_does_not_fit_is_named_or_ends_it() {
    let long_key = "k".repeat(251);
    let long_value = "v".repeat((1 << 20) + 1);
    let file = format!("a\t1\n{long_key}\t2\nonly a key\nb\t{long_value}\n\t5\nc\t6\n");
    let world = World::new(1);
    let client = world.connect(ClientConfig::default());
    let mut notes = Notes::new();
    let loaded = load_file(&world, &client, file.as_bytes(), Format::Tsv, Loading::new(1), &mut notes).unwrap();
    assert_eq!((loaded.records, loaded.bytes, loaded.skipped), (2, 4, 4));
    notes.skipped.sort();
    let reasons = [
        "line 2: key \"kkk",
        "line 3: only 1 fields",
        "line 4: key \"b\": the value has 1048577 bytes",
        "line 5: key \"\": the key is empty",
    ];
    for (found, reason) in notes.skipped.iter().zip(reasons) {
        assert!(found.starts_with(reason), "{found}");
    }
    let strict = load_file(&world, &client, file.as_bytes(), Format::Tsv, Loading::new(1).strict(), &mut Notes::new());
    assert!(matches!(strict, Err(LoadError::Skipped(Skipped { line: 2..=3, .. }))), "{strict:?}");
    let broken = load_file(&world, &client, b"a,1\n\"b", Format::Csv, Loading::new(8), &mut Notes::new()).unwrap();
    assert_eq!((broken.records, broken.skipped), (1, 1));
}

#[test]
fn it_ends_when_it_is_told_to() {
    let file: String = (0..5000).map(|number| format!("{number}\tx\n")).collect();
    let world = World::new(2);
    let client = world.connect(ClientConfig::default());
    let mut notes = Notes { records_max: 100, ..Notes::new() };
    let loaded = load_file(&world, &client, file.as_bytes(), Format::Tsv, Loading::new(16), &mut notes).unwrap();
    assert!((100..=116).contains(&loaded.records), "{}", loaded.records);
    let mut met = 0;
    let each = |_| {
        met += 1;
        if met == 30 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    world.run(client.scan(each)).unwrap();
    assert_eq!(met, 30);
}

#[test]
fn a_server_that_goes_away_ends_it_with_the_line() {
    let mut world = World::new(1);
    let client = world.connect(ClientConfig::default());
    world.cores.clear();
    let error = load_file(&world, &client, b"a\t1\n", Format::Tsv, Loading::new(4), &mut Notes::new()).unwrap_err();
    let LoadError::Server { line: 1, error, loaded: 0 } = error else { panic!("{error}") };
    assert!(!matches!(error, KvError::Refused(_)));
}
