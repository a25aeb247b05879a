//! Files from other programs, and the errors for malformed ones.

use dunlin_records::{Columns, Fault, Format, RECORD_BYTES_MAX, Reader, RecordError};

/// Keys and values as text with their lines, and errors as displayed.
fn read(file: &str, format: Format, columns: &Columns) -> Vec<Result<(u64, String, String), String>> {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Reader::new(file.as_bytes(), format, columns)
        .map(|item| item.map(|n| (n.line, text(n.record.key), text(n.record.value))).map_err(|error| error.to_string()))
        .collect()
}

fn good(line: u64, key: &str, value: &str) -> Result<(u64, String, String), String> {
    Ok((line, key.into(), value.into()))
}

fn named(key: &str, value: &str) -> Columns {
    Columns { key: key.parse().ok(), value: value.parse().ok(), ..Columns::default() }
}

#[test]
fn tab_separated() {
    let file = "\u{feff}apple\tred\r\n\nplum\tdeep\\tblue\textra\npear\nfig\t\\q\nlime\tgreen";
    assert_eq!(
        read(file, Format::Tsv, &Columns::default()),
        [
            good(1, "apple", "red"),
            good(3, "plum", "deep\tblue"),
            Err("line 4: only 1 fields, and the value is field 2".into()),
            Err(r#"line 5: a backslash before "q": use \t \n \r \\ or \xHH, or read without escapes"#.into()),
            good(6, "lime", "green"),
        ]
    );
    let literal: Vec<_> =
        Reader::tsv_without_escapes(&b"a\tc:\\new"[..], &Columns::default()).map(Result::unwrap).collect();
    assert_eq!(literal[0].record.value, b"c:\\new");
}

#[test]
fn comma_separated() {
    let file = "id,name,note\n1,\"Smith, J.\",x\n2,\"two\nlines \"\"quoted\"\"\"\n3\n";
    assert_eq!(
        read(file, Format::Csv, &named("id", "name")),
        [
            good(2, "1", "Smith, J."),
            good(3, "2", "two\nlines \"quoted\""),
            Err("line 5: only 1 fields, and the value is field 2".into()),
        ]
    );
    assert_eq!(
        read(file, Format::Csv, &named("id", "title")),
        [Err("line 1: there is no column \"title\" in the first line, which has id, name, note".to_owned())],
        "nothing can be read without it"
    );
    assert_eq!(read("a,1\n", Format::Csv, &named("0", "1")), [Err("line 1: columns are counted from 1".to_owned())]);
    let file = "key,value,flags,encoding\nYQ==,Yg==,7,base64\n&,b,1,base64\nc,d,-1,\ne,f,,rot13\ng,h,,\n";
    let rows = read(file, Format::Csv, &Columns::default());
    assert_eq!((&rows[0], &rows[4]), (&good(2, "a", "b"), &good(6, "g", "h")));
    assert!(rows[1].as_ref().is_err_and(|error| error.contains("line 3: the field is not base64")));
    assert_eq!(rows[2], Err("line 4: flags \"-1\" is not a number below 2^32".to_owned()));
    assert!(rows[3].as_ref().is_err_and(|error| error.contains("the encoding \"rot13\" is not known")));
}

#[test]
fn json_lines() {
    let file = concat!(
        "{\"key\": \"a\", \"value\": {\"z\": 1, \"b\": [1.50]}}\n",
        "\n",
        "{\"key\": 17, \"value\": \"caf\\u00e9\", \"unknown\": null}\n",
        "{\"key\": \"b\", \"value\": null}\n",
        "[1]\n",
        "{\"key\": \"c\", \"value\": \"x\", \"expires\": \"soon\"}\n",
        "{\"key_base64\": \"ZA==\", \"value_base64\": \"!\"}\n",
        "{\"key_base64\": \"ZA==\", \"value\": true}\n",
    );
    let rows = read(file, Format::JsonLines, &Columns::default());
    assert_eq!(rows[0], good(1, "a", r#"{"z": 1, "b": [1.50]}"#), "as it is written");
    assert_eq!(rows[1], good(3, "17", "café"));
    assert_eq!(rows[2], Err("line 4: no \"value\" in this record".to_owned()));
    assert!(rows[3].as_ref().is_err_and(|error| error.contains("line 5: not a JSON object")));
    assert!(rows[4].as_ref().is_err_and(|error| error.contains("line 6: expires")));
    assert!(rows[5].as_ref().is_err_and(|error| error.contains("the value is not base64")));
    assert_eq!(rows[6], good(8, "d", "true"));
    let other = read("{\"id\": \"a\", \"doc\": \"b\"}", Format::JsonLines, &named("id", "doc"));
    assert_eq!(other, [good(1, "a", "b")]);
}

#[test]
fn package_indices() {
    let file = "\nPackage: tar\nVersion: 1.34\nArchitecture: amd64\nDescription: archives\n more\n\n\nVersion: 2\n\nPackage: sed\n";
    assert_eq!(
        read(file, Format::Packages, &Columns::default()),
        [
            good(
                2,
                "tar_1.34_amd64",
                "Package: tar\nVersion: 1.34\nArchitecture: amd64\nDescription: archives\n more\n"
            ),
            Err("line 9: a paragraph without Package".into()),
            good(11, "sed__", "Package: sed\n"),
        ]
    );
}

#[test]
fn what_has_no_end_is_given_up() {
    let endless = |start: &str| [start.as_bytes(), &vec![b'x'; RECORD_BYTES_MAX + (1 << 20)]].concat();
    for (format, start) in
        [(Format::Tsv, "a\t"), (Format::Csv, "a,\""), (Format::JsonLines, "\""), (Format::Packages, "Package: ")]
    {
        let read: Vec<_> = Reader::new(&endless(start)[..], format, &Columns::default()).collect();
        assert!(
            matches!(read[..], [Err(RecordError { line: 1, fault: Fault::TooLong })]),
            "{format:?}: {}",
            read.len()
        );
    }
}
