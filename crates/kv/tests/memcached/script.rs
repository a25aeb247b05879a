//! Conversations as text: after `> ` what the client sends, after `< ` what it must get, line by line; `@ 60` lets a
//! minute pass.
//!
//! Each line ends with CR and LF on the wire. `\xHH` is a byte, `{k*250}` is 250 times `k`, and `#` begins a comment.

use dunlin_kv::memcached::{ConnectionLimit, Conversation, Settings, Single};
use dunlin_store::Model;

/// The time at which scripts begin, in 2023.
pub const START: u32 = 1_700_000_000;

pub fn settings() -> Settings {
    Settings::new(ConnectionLimit::new(10), None, START, Vec::new())
}

pub fn core() -> Single<Model> {
    Single::new(Model::new(), START)
}

/// A request and its answer, as bytes.
#[derive(Debug, Default)]
pub struct Exchange {
    pub line: usize,
    pub wait: u32,
    pub request: Vec<u8>,
    pub answer: Vec<u8>,
}

fn expand(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['\\', '{']) {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        rest = &rest[at..];
        if let Some(hex) = rest.strip_prefix("\\x") {
            out.push(u8::from_str_radix(&hex[..2], 16).expect("two hexadecimal digits"));
            rest = &hex[2..];
        } else {
            let (inside, behind) = rest[1..].split_once('}').expect("a closing brace");
            let (what, times) = inside.rsplit_once('*').expect("what and how often");
            out.extend(what.repeat(times.parse().expect("a number")).bytes());
            rest = behind;
        }
    }
    out.extend_from_slice(rest.as_bytes());
    out
}

pub fn parse(script: &str) -> Vec<Exchange> {
    let mut exchanges = vec![Exchange::default()];
    for (at, line) in script.lines().enumerate() {
        let line = line.trim_start();
        let last = exchanges.last_mut().expect("there is always one");
        if let Some(text) = line.strip_prefix('>') {
            let is_next = !last.answer.is_empty();
            if is_next {
                exchanges.push(Exchange { line: at + 1, ..Exchange::default() });
            }
            let last = exchanges.last_mut().expect("there is always one");
            last.request.extend(expand(text.strip_prefix(' ').unwrap_or(text)));
            last.request.extend_from_slice(b"\r\n");
        } else if let Some(text) = line.strip_prefix('<') {
            last.answer.extend(expand(text.strip_prefix(' ').unwrap_or(text)));
            last.answer.extend_from_slice(b"\r\n");
        } else if let Some(text) = line.strip_prefix('@') {
            let wait = text.trim().parse().expect("seconds");
            exchanges.push(Exchange { line: at + 1, wait, ..Exchange::default() });
        } else {
            assert!(line.is_empty() || line.starts_with('#'), "line {} of a script: {line}", at + 1);
        }
    }
    exchanges
}

/// Runs a script and compares every answer; then, if no time passes in it, runs it again split at every byte.
pub fn check(script: &str) {
    let exchanges = parse(script);
    let (core, settings) = (core(), settings());
    let mut client = Conversation::new(&core, &settings);
    let mut now = START;
    for exchange in &exchanges {
        now += exchange.wait;
        core.set_now(now);
        let mut answer = Vec::new();
        client.say(&exchange.request, &mut answer);
        assert_eq!(
            String::from_utf8_lossy(&answer),
            String::from_utf8_lossy(&exchange.answer),
            "line {}: {}",
            exchange.line,
            String::from_utf8_lossy(&exchange.request)
        );
    }
    assert_eq!(client.pending(), 0, "the last request is whole");
    if exchanges.iter().all(|exchange| exchange.wait == 0) {
        let request: Vec<u8> = exchanges.iter().flat_map(|exchange| exchange.request.clone()).collect();
        let answer: Vec<u8> = exchanges.iter().flat_map(|exchange| exchange.answer.clone()).collect();
        check_cuts(&request, &answer);
    }
}

/// The same bytes in one piece, in two pieces split at every place, and byte by byte must get the same answer.
fn check_cuts(request: &[u8], answer: &[u8]) {
    /// Maximum number of splits of a long script, spread evenly.
    const CUTS_MAX: usize = 600;
    let step = request.len().div_ceil(CUTS_MAX).max(1);
    for cut in (0..request.len()).step_by(step) {
        assert_eq!(said(&[&request[..cut], &request[cut..]]), answer, "cut at {cut}");
    }
    let bytes: Vec<&[u8]> = request.chunks(1).collect();
    assert_eq!(said(&bytes), answer, "byte by byte");
}

/// Returns a new server's answer to these pieces.
pub fn said(pieces: &[&[u8]]) -> Vec<u8> {
    let (core, settings) = (core(), settings());
    let mut client = Conversation::new(&core, &settings);
    let mut answer = Vec::new();
    for piece in pieces {
        client.say(piece, &mut answer);
    }
    answer
}
