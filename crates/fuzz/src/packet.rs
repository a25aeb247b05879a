//! Any bytes are refused, or are written again as they were.

use dunlin_rpc::wire::control::{Accept, Body, Connect, Cookie, Credits, Presence, Refuse, Release};
use dunlin_rpc::wire::failure::{FAILURE_BYTES_MAX, Failure};
use dunlin_rpc::wire::packets::{Arrivals, Asked};
use dunlin_rpc::wire::{HEADER_BYTES_MAX, Header};

/// Parses `bytes` as a packet.
///
/// # Panics
/// If a parser does, or does not agree with what writes.
pub fn check(bytes: &[u8]) {
    // The transport promises this much of a packet in private memory; the rest may be anywhere.
    let head = &bytes[..bytes.len().min(dunlin_net::transport::HEAD_BYTES)];
    let Ok(header) = Header::parse(head, bytes.len()) else { return };
    let mut again = [0; HEADER_BYTES_MAX];
    let len = header.write(&mut again);
    assert_eq!(&again[..len], &bytes[..len], "{header:?}");
    assert_eq!(len, header.wire_len());
    let body = &bytes[len..];
    if let Ok(failure) = Failure::parse(body) {
        assert!(body.len() <= FAILURE_BYTES_MAX);
        let mut again = vec![0; failure.bytes()];
        failure.write(&mut again);
        // What is UTF-8 is written as it was.
        assert!(std::str::from_utf8(&body[4..]).is_err() || again == body);
    }
    check_body::<Connect>(body);
    check_body::<Cookie>(body);
    check_body::<Accept>(body);
    check_body::<Refuse>(body);
    check_body::<Presence>(body);
    check_body::<Release>(body);
    check_body::<Credits>(body);
    check_body::<Arrivals>(body);
    check_body::<Asked>(body);
}

fn check_body<B: Body>(bytes: &[u8]) {
    if let Ok(body) = B::parse(bytes) {
        let mut again = Vec::new();
        body.write(&mut again);
        assert_eq!(again, bytes);
    }
}
