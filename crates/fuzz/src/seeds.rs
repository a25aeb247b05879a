//! One packet of each kind, and more of those that come in several shapes.

use dunlin_rpc::wire::control::{
    Accept, Body, Connect, Cookie, Credits, LoanRole, Presence, Refuse, RefuseReason, Release,
};
use dunlin_rpc::wire::header::VERSION;
use dunlin_rpc::wire::packets::{Arrivals, Asked};
use dunlin_rpc::wire::{HEADER_BYTES_MAX, Header, Kind, MASK_24, Multi, Status};

fn packet(header: &Header, body: &[u8]) -> Vec<u8> {
    let mut bytes = [0; HEADER_BYTES_MAX];
    let len = header.write(&mut bytes);
    [&bytes[..len], body].concat()
}

fn control<B: Body>(kind: Kind, session: u32, body: &B) -> Vec<u8> {
    let mut bytes = Vec::new();
    body.write(&mut bytes);
    packet(&Header::new(kind, 0, session, 0, if session == MASK_24 { 0 } else { 77 }), &bytes)
}

/// A packet without data that has a body.
fn control_of<B: Body>(kind: Kind, aux: u32, body: &B) -> Vec<u8> {
    let mut bytes = Vec::new();
    body.write(&mut bytes);
    packet(&Header::new(kind, aux, 0, 8, 77), &bytes)
}

/// Names and packets.
pub fn all() -> Vec<(&'static str, Vec<u8>)> {
    let data = |kind, len: usize| Header::new(kind, Header::data_aux(1, len), 0, 8, 77);
    let many = |kind, len, packet| Header { multi: Some(Multi { message_bytes: 1000, packet }), ..data(kind, len) };
    let presence = Presence { incarnation: 1, token: 5 };
    let connect = Connect {
        versions: (VERSION, VERSION),
        slots: 8,
        credits: 32,
        reverse_credits: 8,
        mtu: 512,
        message_bytes_max: 1 << 16,
        session: 5,
        tag: 77,
        incarnation: 1,
        nonce: 2,
        cookie: [9; 16],
        credits_start: 32,
        reverse_start: 8,
    };
    let accept = Accept {
        nonce: 2,
        version: VERSION,
        slots: 8,
        credits: 32,
        reverse_credits: 8,
        mtu: 512,
        message_bytes_max: 1 << 16,
        session: 3,
        tag: 4,
        incarnation: 1,
        credits_start: 32,
        reverse_start: 8,
    };
    let credits = |role| Credits { role, number: 1, held: 0, wanted: 4 };
    vec![
        ("request", packet(&data(Kind::Request, 32), &[7; 32])),
        ("request_empty", packet(&data(Kind::Request, 0), &[])),
        ("request_first", packet(&many(Kind::Request, 480, 0), &[7; 480])),
        ("request_later", packet(&many(Kind::Request, 480, 1), &[7; 480])),
        ("request_last", packet(&Header { is_last: true, ..many(Kind::Request, 40, 2) }, &[7; 40])),
        ("request_recut", packet(&Header { cut: 1, ..many(Kind::Request, 224, 0) }, &[7; 224])),
        ("request_deadline", packet(&Header { deadline_us: Some(500), ..data(Kind::Request, 4) }, &[7; 4])),
        ("credit_return", packet(&Header::new(Kind::CreditReturn, 0, 0, 8, 77), &[])),
        (
            "credit_return_marked",
            packet(&Header { ecn_echo: true, ..Header::new(Kind::CreditReturn, 0, 0, 8, 77) }, &[]),
        ),
        ("request_for_response", packet(&Header::new(Kind::RequestForResponse, 1, 0, 8, 77), &[])),
        ("credit_return_holes", control_of(Kind::CreditReturn, 2, &Arrivals { first_missing: 1, mask: 5 })),
        ("request_for_responses", control_of(Kind::RequestForResponse, 1, &Asked { packets: 2 })),
        ("response", packet(&data(Kind::Response, 32), &[7; 32])),
        ("response_first", packet(&many(Kind::Response, 480, 0), &[7; 480])),
        ("response_later", packet(&many(Kind::Response, 480, 1), &[7; 480])),
        ("response_busy", packet(&Header { status: Status::Busy, ..data(Kind::Response, 0) }, &[])),
        ("response_leaving", packet(&Header { status: Status::Busy, ..data(Kind::Response, 1) }, &[1])),
        (
            "response_failure",
            packet(&Header { status: Status::Application, ..data(Kind::Response, 8) }, b"\x07\0\0\0gone"),
        ),
        (
            "response_failure_odd",
            packet(&Header { status: Status::Application, ..data(Kind::Response, 6) }, &[0xff; 6]),
        ),
        ("response_overloaded", packet(&Header { status: Status::Overloaded, ..data(Kind::Response, 0) }, &[])),
        ("response_deferred", packet(&Header { deferred: true, ecn_echo: true, ..data(Kind::Response, 8) }, &[7; 8])),
        ("connect", control(Kind::Connect, MASK_24, &connect)),
        ("cookie", control(Kind::Cookie, 0, &Cookie { nonce: 2, cookie: [9; 16] })),
        ("accept", control(Kind::Accept, 0, &accept)),
        ("refuse", control(Kind::Refuse, 0, &Refuse { nonce: 2, reason: RefuseReason::NoCredits })),
        ("close", control(Kind::Close, 0, &presence)),
        ("close_ack", control(Kind::CloseAck, 0, &presence)),
        ("ping", control(Kind::Ping, 0, &presence)),
        ("ping_padded", [control(Kind::Ping, 0, &presence), vec![0; 200]].concat()),
        ("pong", control(Kind::Pong, 0, &presence)),
        ("reset", control(Kind::Reset, MASK_24, &Presence { incarnation: 1, token: 5 | 77 << 24 })),
        ("release", control(Kind::Release, 0, &Release { sequences: [1; 8] })),
        ("credits_borrower", control(Kind::Credits, 0, &credits(LoanRole::Borrower))),
        ("credits_lender", control(Kind::Credits, 0, &credits(LoanRole::Lender))),
    ]
}

/// The same as inputs of the [`crate::endpoint`] target: each alone on the attacker's session, and all of them in turn.
pub fn attacks() -> Vec<(&'static str, Vec<u8>)> {
    use crate::endpoint::{ON_SESSION, THEN_RUN};
    let framed = |packet: &[u8]| {
        let len = packet.len().div_ceil(2);
        let mut bytes = vec![len as u8, ON_SESSION | THEN_RUN];
        bytes.extend(packet);
        bytes.resize(2 + 2 * len, 0);
        bytes
    };
    let mut inputs: Vec<_> = all().into_iter().map(|(name, packet)| (name, framed(&packet))).collect();
    inputs.push(("all", inputs.iter().flat_map(|(_, bytes)| bytes.clone()).collect()));
    inputs
}
