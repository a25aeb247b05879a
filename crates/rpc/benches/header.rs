//! Building and parsing packet headers.

use divan::{Bencher, black_box};
use dunlin_rpc::wire::control::{Body, Connect};
use dunlin_rpc::wire::header::VERSION;
use dunlin_rpc::wire::{HEADER_BYTES_MAX, Header, Kind, Multi};

fn main() {
    divan::main();
}

/// A small request, and one with both extensions.
const CASES: [&str; 2] = ["small", "multi and deadline"];

fn header(case: &str) -> Header {
    let mut header = Header::new(Kind::Request, Header::data_aux(7, 32), 3, 8, 0x0a_0b0c);
    if case != CASES[0] {
        header.multi = Some(Multi { message_bytes: 8 << 20, packet: 5 });
        header.deadline_us = Some(1_000_000);
    }
    header
}

#[divan::bench(args = CASES)]
fn build(bencher: Bencher<'_, '_>, case: &str) {
    let header = header(case);
    bencher.bench_local(|| {
        let mut bytes = [0; HEADER_BYTES_MAX];
        black_box(header).write(&mut bytes);
        bytes
    });
}

#[divan::bench(args = CASES)]
fn parse(bencher: Bencher<'_, '_>, case: &str) {
    let mut bytes = [0; HEADER_BYTES_MAX];
    let len = header(case).write(&mut bytes);
    bencher.bench_local(|| Header::parse(black_box(&bytes[..len]), black_box(len + 32)));
}

#[divan::bench]
fn parse_connect_body(bencher: Bencher<'_, '_>) {
    let connect = Connect {
        versions: (VERSION, VERSION),
        slots: 8,
        credits: 8,
        reverse_credits: 8,
        mtu: 1470,
        message_bytes_max: 8 << 20,
        session: 1,
        tag: 2,
        incarnation: 3,
        nonce: 4,
        cookie: [5; 16],
        credits_start: 32,
        reverse_start: 1,
    };
    let mut bytes = Vec::new();
    connect.write(&mut bytes);
    bencher.bench_local(|| Connect::parse(black_box(&bytes)));
}
