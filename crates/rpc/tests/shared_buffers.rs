//! Message buffers of one process that a peer cannot take from the others. Their limit is that of the process: so this has one of its own.

#[path = "pair/mod.rs"]
mod pair;
#[path = "hostile/raw.rs"]
#[allow(dead_code, reason = "the hostile tests use all of it")]
mod raw;

use dunlin_net::loopback::LoopbackConfig;
use dunlin_rpc::wire::control::Connect;
use dunlin_rpc::wire::{Header, Kind};
use dunlin_rpc::{EndpointConfig, MsgBuf, msgbuf};
use pair::{Lab, config};
use raw::{Raw, connect, packet};

const LARGE: u8 = 1;
const MIB: usize = 1 << 20;
const LIMIT: u64 = 64 << 20;

#[test]
fn a_peer_leaves_message_buffers_to_others() {
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
    // Buffers of one length that wait for their next use are no hindrance to others.
    drop((lab, hoarder));
    for len in [1_usize, 2, 3, 5, 8, 13, 21] {
        let buffers: Vec<_> = (0..32 / len.next_power_of_two()).map(|_| MsgBuf::with_len(len * MIB).unwrap()).collect();
        drop(buffers);
    }
}
