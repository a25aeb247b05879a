//! What is written is read back, byte for byte, in every format, whatever its contents.

use std::io::Write;

use dunlin_records::{Columns, Format, Input, Numbered, Reader, Record, Writer};
use proptest::collection::vec;
use proptest::prelude::*;

const FORMATS: [Format; 3] = [Format::Tsv, Format::Csv, Format::JsonLines];

fn written(records: &[Record], format: Format) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), format).unwrap();
    records.iter().for_each(|record| writer.write(record).unwrap());
    writer.finish().unwrap()
}

fn read(file: &[u8], format: Format) -> Vec<Record> {
    Reader::new(file, format, &Columns::default()).map(|record| record.unwrap().record).collect()
}

/// Bytes that are often text, often hard to encode, and sometimes arbitrary.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let hard = prop::sample::select(b"\t\n\r\\\",'\0x{}=\x7f\xff\xc3 ".to_vec());
    prop_oneof![vec(hard, 1..20), vec(any::<u8>(), 1..20), "\\PC{1,20}".prop_map(String::into_bytes)]
}

fn record() -> impl Strategy<Value = Record> {
    let value = prop_oneof![9 => bytes(), 1 => Just(Vec::new())];
    (bytes(), value, any::<u32>(), any::<Option<u32>>()).prop_map(|(key, value, flags, expires)| Record {
        key,
        value,
        flags,
        expires,
    })
}

proptest! {
    #[test]
    fn every_record_survives(records in vec(record(), 0..20)) {
        for format in FORMATS {
            prop_assert_eq!(&read(&written(&records, format), format), &records, "{:?}", format);
        }
    }

    #[test]
    fn any_bytes_are_read_to_their_end(file in vec(any::<u8>(), 0..300)) {
        for format in [Format::Tsv, Format::Csv, Format::JsonLines, Format::Packages] {
            let lines = file.iter().filter(|byte| matches!(byte, b'\n' | b'\r')).count();
            prop_assert!(Reader::new(&file[..], format, &Columns::default()).count() <= lines + 1);
        }
    }
}

#[test]
fn names_in_a_record_are_no_first_line() {
    let record = |key: &str, value: &str| Record { key: key.into(), value: value.into(), ..Record::default() };
    let records = [record("key", "value"), record("value", "key"), record("key", "")];
    for format in FORMATS {
        assert_eq!(read(&written(&records, format), format), records, "{format:?}");
    }
}

#[test]
fn gzip_is_read_as_what_it_holds() {
    let records: Vec<Record> =
        (0..1000).map(|i| Record { key: format!("key {i}").into(), value: vec![7; i], ..Record::default() }).collect();
    let path = std::env::temp_dir().join(format!("dunlin-records-{}.tsv.gz", std::process::id()));
    let mut encoder = flate2::write::GzEncoder::new(std::fs::File::create(&path).unwrap(), flate2::Compression::fast());
    encoder.write_all(&written(&records, Format::Tsv)).unwrap();
    encoder.finish().unwrap();
    let input = Input::open(&path).unwrap();
    let (len, progress) = (input.len.unwrap(), input.progress.clone());
    let back: Vec<Numbered> =
        Reader::new(input.reader, Format::of_path(&path).unwrap(), &Columns::default()).map(Result::unwrap).collect();
    std::fs::remove_file(&path).unwrap();
    assert!(back.iter().map(|numbered| &numbered.record).eq(&records));
    assert_eq!(back[0].line, 2);
    assert_eq!(progress.bytes(), len);
}
