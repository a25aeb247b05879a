//! The Wireshark dissector knows every packet kind, every status and the length of every body in the specification and
//! the code.

use std::collections::BTreeMap;

use dunlin_rpc::wire::failure::CODE_BYTES;
use dunlin_rpc::wire::header::{HANDSHAKE_VERSION, VERSION};
use dunlin_rpc::wire::{HEADER_BYTES, Header, Kind, Status};

const DISSECTOR: &str = include_str!("../../../docs/dunlin.lua");
const SPECIFICATION: &str = include_str!("../../../docs/wire-protocol.md");

/// Number, name and lengths of each kind, from section 4 of the specification.
fn specified() -> BTreeMap<u8, (&'static str, &'static str)> {
    let section =
        SPECIFICATION.split("\n## 4. Packet kinds\n").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    let rows = section.lines().filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let number = cells[0].parse().ok()?;
        Some((number, (cells[1].split(' ').next()?, cells[3])))
    });
    rows.collect()
}

/// The part of the dissector between `local NAME = {` and the brace that ends it.
fn table(name: &str) -> &'static str {
    let start = format!("local {name} = {{\n");
    DISSECTOR.split(&start).nth(1).and_then(|rest| rest.split("\n}\n").next()).unwrap()
}

/// The text after each `[number] = ` of a table.
fn entries(table: &'static str) -> BTreeMap<u8, &'static str> {
    let parts = table.split('[').filter_map(|part| {
        let (number, rest) = part.split_once("] = ")?;
        Some((number.parse().ok()?, rest))
    });
    parts.collect()
}

/// Bytes of the fields `{ "name", bytes, ... }` of a body.
fn body_bytes(body: &str) -> usize {
    let fields = body.split("{ \"").skip(1);
    fields
        .map(|field| field.split(", ").nth(1).unwrap().split([' ', ',']).next().unwrap().parse::<usize>().unwrap())
        .sum()
}

#[test]
fn the_dissector_knows_every_kind() {
    let specified = specified();
    assert_eq!(specified.keys().copied().collect::<Vec<u8>>(), (0..15).collect::<Vec<u8>>());
    let names = entries(table("KINDS"));
    assert_eq!(names.len(), specified.len());
    for (kind, (name, _)) in &specified {
        assert!(names[kind].starts_with(&format!("\"{name}\"")), "{kind} {name}: {}", names[kind]);
    }
    // The code knows the same kinds, and no other.
    for kind in 0..16 {
        let mut packet = [0; HEADER_BYTES];
        let version = if (4..8).contains(&kind) { HANDSHAKE_VERSION } else { VERSION };
        packet[0] = version << 4 | kind;
        let parsed = Header::parse(&packet, HEADER_BYTES).map(|header| header.kind as u8);
        assert!(parsed.is_err() || parsed == Ok(kind) && specified.contains_key(&kind), "{kind}: {parsed:?}");
    }
}

#[test]
fn the_dissector_knows_the_versions() {
    for (name, version) in [("VERSION", VERSION), ("HANDSHAKE_VERSION", HANDSHAKE_VERSION)] {
        assert!(DISSECTOR.contains(&format!("\nlocal {name} = {version}\n")), "{name}");
    }
}

#[test]
fn the_dissector_shows_every_flag() {
    for flag in ["flags.multi", "flags.deadline", "status", "cut", "flags.ecn_echo", "flags.deferred", "flags.last"] {
        let field = format!("\"dunlin.{flag}\"");
        assert!(DISSECTOR.contains(&field), "{flag}");
    }
}

#[test]
fn the_dissector_knows_every_status() {
    let section = SPECIFICATION.split("\n### Statuses\n").nth(1).and_then(|rest| rest.split("\n#").next()).unwrap();
    let rows = section.lines().filter_map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        Some((cells[0].parse::<u8>().ok()?, cells[1].to_lowercase().replace('_', " ")))
    });
    let specified: BTreeMap<u8, String> = rows.collect();
    let shown = entries(table("STATUSES"));
    assert_eq!(shown.len(), specified.len());
    for (status, name) in &specified {
        assert!(shown[status].starts_with(&format!("\"{name}\"")), "{status} {name}: {}", shown[status]);
    }
    for status in 0..8 {
        let mut packet = [0; HEADER_BYTES];
        (packet[0], packet[1]) = (VERSION << 4 | Kind::Response as u8, status << 2);
        // One of them has a payload: at least a code.
        packet[3] = if status == Status::Application as u8 { CODE_BYTES as u8 } else { 0 };
        let parsed = Header::parse(&packet, HEADER_BYTES + usize::from(packet[3])).map(|header| header.status as u8);
        assert_eq!(parsed.ok(), specified.contains_key(&status).then_some(status));
    }
}

#[test]
fn the_dissector_shows_the_whole_body_of_every_kind() {
    let bodies = entries(table("BODIES"));
    let presence = DISSECTOR.lines().find_map(|line| line.strip_prefix("local PRESENCE = ")).unwrap();
    for (kind, (name, lengths)) in specified() {
        // For data packets "16 to mtu", for others one length, or two if the body is optional. A PING has a body, and
        // after it padding up to the mtu.
        let longest = match lengths.strip_suffix(" to mtu") {
            Some(_) if name != "PING" => {
                assert!(!bodies.contains_key(&kind), "{name}");
                continue;
            }
            Some(unpadded) => unpadded,
            None => lengths.rsplit(' ').next().unwrap(),
        };
        let longest: usize = longest.parse().unwrap();
        let body = bodies.get(&kind).unwrap_or_else(|| panic!("the dissector does not know the body of {name}"));
        let body = if body.starts_with("PRESENCE") { presence } else { body };
        assert_eq!(HEADER_BYTES + body_bytes(body), longest, "{name}");
    }
}
