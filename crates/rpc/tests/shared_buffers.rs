//! A peer cannot take all message buffers of a process from the others. The limit of buffers belongs to the process, so
//! these tests have a process of their own, and use the same limit.

#[path = "pair/mod.rs"]
mod pair;
#[path = "hostile/raw.rs"]
#[allow(dead_code, reason = "the hostile tests use all of it")]
mod raw;

use std::sync::Mutex;

use dunlin_net::loopback::LoopbackConfig;
use dunlin_rpc::wire::control::Connect;
use dunlin_rpc::wire::{Header, Kind, Multi, Status};
use dunlin_rpc::{EndpointConfig, MsgBuf, msgbuf};
use pair::{Lab, config};
use raw::{Raw, connect, packet};

const LARGE: u8 = 1;
const ECHO: u8 = 2;
const MIB: usize = 1 << 20;
const LIMIT: u64 = 64 << 20;

static TURN: Mutex<()> = Mutex::new(());

#[test]
fn a_peer_leaves_message_buffers_to_others() {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    msgbuf::set_limit_bytes(LIMIT);
    let client = EndpointConfig { seed: Some(8), ..config() };
    let lab = Lab::over(LoopbackConfig::default(), &[config(), client]);
    lab.server().register(LARGE, |request| request.respond_with(MIB, |out| out.fill(5))).unwrap();
    let mut hoarder = Raw::new(&lab, 66);
    for nonce in 0..32 {
        let opened = hoarder.open(&lab, Connect { nonce, session: nonce as u32, ..connect() });
        for slot in 0..8 {
            hoarder.send(&packet(&opened.header(Kind::Request, Header::data_aux(LARGE, 4), 8 + slot), &[0; 4]));
        }
        hoarder.answers(&lab);
    }
    assert!(lab.server().stats().held_bytes > 8 << 20, "it has what it can get");
    let honest = lab.connect();
    for _ in 0..5 {
        let calls = (0..4).map(|_| honest.call(LARGE, MsgBuf::copy_from(b"mine").unwrap()));
        for call in calls.collect::<Vec<_>>() {
            assert_eq!(lab.drive(1, call).unwrap().response.len(), MIB);
        }
    }
    // Buffers of one length that wait for reuse do not keep others from being allocated.
    drop((lab, hoarder));
    for len in [1_usize, 2, 3, 5, 8, 13, 21] {
        let buffers: Vec<_> = (0..32 / len.next_power_of_two()).map(|_| MsgBuf::with_len(len * MIB).unwrap()).collect();
        drop(buffers);
    }
}

/// Requests a little longer than half of their buffers.
#[test]
fn unfinished_requests_count_their_buffers() {
    let _turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
    msgbuf::set_limit_bytes(LIMIT);
    let client = EndpointConfig { seed: Some(8), ..config() };
    let lab = Lab::over(LoopbackConfig::default(), &[config(), client]);
    let echo = |request: dunlin_rpc::Request<'_>| {
        let payload = request.payload();
        request.respond(payload);
    };
    lab.server().register(ECHO, echo).unwrap();
    let mut hoarders = [Raw::new(&lab, 66), Raw::new(&lab, 67)];
    for hoarder in &mut hoarders {
        for nonce in 0..8 {
            let opened = hoarder.open(&lab, Connect { nonce, session: nonce as u32, ..connect() });
            let data = vec![0; (opened.accept.mtu as usize - 32) & !15];
            for slot in 0..8 {
                let mut header = opened.header(Kind::Request, Header::data_aux(ECHO, data.len()), 8 + slot);
                header.multi = Some(Multi { message_bytes: MIB as u32 + 1, packet: 0 });
                hoarder.send(&packet(&header, &data));
            }
            let answers = hoarder.answers(&lab);
            assert!(
                answers.iter().all(|(h, _)| h.kind == Kind::CreditReturn || h.status == Status::Busy),
                "{answers:?}"
            );
        }
    }
    assert!(lab.server().stats().held_bytes >= LIMIT / 4, "they have what they can get");
    assert!(msgbuf::allocated_bytes() <= LIMIT / 4 * 3, "{}", msgbuf::allocated_bytes());
    let honest = lab.connect();
    let reply = lab.drive(1, honest.call(ECHO, MsgBuf::with_len(2 * MIB).unwrap())).unwrap();
    assert_eq!(reply.response.len(), 2 * MIB);
}
