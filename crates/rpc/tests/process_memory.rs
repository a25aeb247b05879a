//! Endpoints that share one limit of message buffers, which is that of the process: so this has one of its own.

#[path = "pair/mod.rs"]
mod pair;

use dunlin_rpc::{EndpointConfig, MsgBuf, Session, msgbuf};
use pair::{Lab, address, config};

const LARGE: u8 = 1;
const MIB: u64 = 1 << 20;
const SERVERS: usize = 3;

/// Three servers, as a service with a thread for each core has them, and a client that fills all slots of all of them with responses.
#[test]
fn endpoints_of_one_process_share_its_memory() {
    let limit = msgbuf::allocated_bytes() + 256 * MIB;
    let configs: Vec<_> = (0..SERVERS + 2).map(|i| EndpointConfig { seed: Some(7 + i as u64), ..config() }).collect();
    let lab = Lab::new(&configs);
    let responses = bytes::Bytes::from(vec![5; MIB as usize]);
    for server in &lab.endpoints[..SERVERS] {
        let response = responses.clone();
        let serve = move |request: dunlin_rpc::Request<'_>| {
            let _ = request.respond_from(response.clone());
        };
        server.register(LARGE, serve).unwrap();
    }
    let before = msgbuf::limit_bytes();
    msgbuf::set_limit_bytes(limit);
    let connect = |owner: usize, server| -> Vec<Session> {
        (0..20).map(|_| lab.drive(owner, lab.endpoints[owner].connect(&address(server))).unwrap()).collect()
    };
    let held = || lab.endpoints[..SERVERS].iter().map(|server| server.stats().held_bytes).sum::<u64>();
    let mut sessions = Vec::new();
    for server in 0..SERVERS {
        // Its responses are kept until it asks for them, which it does not get to.
        let opened = connect(SERVERS, server);
        let mut calls: Vec<_> = Vec::new();
        for session in &opened {
            calls.extend((0..8).map(|_| Box::pin(session.call(LARGE, MsgBuf::copy_from(b"all").unwrap()))));
        }
        for _ in 0..20 {
            lab.endpoints[SERVERS].run_once();
            lab.endpoints[server].run_once();
            lab.network.advance(std::time::Duration::from_micros(1));
        }
        sessions.push((opened, calls));
        assert!(held() <= limit / 4 * 3, "{} MiB", held() / MIB);
        assert!(lab.endpoints[server].stats().held_bytes >= 16 * MIB, "each finds something");
    }
    msgbuf::set_limit_bytes(before);
}
