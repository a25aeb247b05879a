//! Endpoints that share one limit of message buffers. The limit belongs to the process, so these tests have a process
//! of their own, and run one at a time.

#[path = "pair/mod.rs"]
mod pair;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use dunlin_rpc::{DeferredRequest, EndpointConfig, MsgBuf, Session, msgbuf};
use pair::{Lab, address, config};

const LARGE: u8 = 1;
const KEEP: u8 = 2;
const MIB: u64 = 1 << 20;
const SERVERS: usize = 8;
const HOARDER: usize = SERVERS;
const HONEST: usize = SERVERS + 1;

static TURN: Mutex<()> = Mutex::new(());

/// The limit of message buffers while one test runs.
struct Limited {
    before: u64,
    _turn: MutexGuard<'static, ()>,
}

impl Limited {
    fn to(limit: u64) -> Limited {
        let turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
        let before = msgbuf::limit_bytes();
        msgbuf::set_limit_bytes(limit);
        Limited { before, _turn: turn }
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        msgbuf::set_limit_bytes(self.before);
    }
}

fn lab(endpoints: usize) -> Lab {
    let configs: Vec<_> = (0..endpoints).map(|i| EndpointConfig { seed: Some(7 + i as u64), ..config() }).collect();
    Lab::new(&configs)
}

fn connect(lab: &Lab, owner: usize, server: usize) -> Session {
    lab.drive(owner, lab.endpoints[owner].connect(&address(server))).unwrap()
}

/// Several servers in one process, like a service with a thread for each core, and a client that fills all slots of all
/// of them with responses.
#[test]
fn a_host_has_one_share_of_all_endpoints_of_a_process() {
    const LIMIT: u64 = 256 * MIB;
    let _limited = Limited::to(LIMIT);
    let lab = lab(SERVERS + 2);
    let responses = bytes::Bytes::from(vec![5; MIB as usize]);
    for server in &lab.endpoints[..SERVERS] {
        let response = responses.clone();
        let serve = move |request: dunlin_rpc::Request<'_>| {
            let _ = request.respond_from(response.clone());
        };
        server.register(LARGE, serve).unwrap();
    }
    let held = || lab.endpoints[..SERVERS].iter().map(|server| server.stats().held_bytes).sum::<u64>();
    let mut hoarded = Vec::new();
    for server in 0..SERVERS {
        // Its responses are kept until it asks for them, which it never does.
        let opened: Vec<_> = (0..20).map(|_| connect(&lab, HOARDER, server)).collect();
        let mut calls = Vec::new();
        for session in &opened {
            calls.extend((0..8).map(|_| Box::pin(session.call(LARGE, MsgBuf::copy_from(b"all").unwrap()))));
        }
        for _ in 0..20 {
            lab.endpoints[HOARDER].run_once();
            lab.endpoints[server].run_once();
            lab.network.advance(Duration::from_micros(1));
        }
        hoarded.push((opened, calls));
        assert!(held() <= LIMIT / 8 * 3, "{} MiB at {} servers", held() / MIB, server + 1);
    }
    assert!(held() >= LIMIT / 16 * 5, "{} MiB: it has its share", held() / MIB);
    // Another host gets its share at whichever server it asks.
    for server in [0, SERVERS - 1] {
        let session = connect(&lab, HONEST, server);
        let mut call = Box::pin(session.call(LARGE, MsgBuf::with_len(MIB as usize).unwrap()));
        let reply = loop {
            lab.endpoints[HONEST].run_once();
            lab.endpoints[server].run_once();
            lab.network.advance(Duration::from_micros(1));
            if let Some(reply) = lab.endpoints[HONEST].poll_once(call.as_mut()) {
                break reply;
            }
        };
        assert_eq!(reply.unwrap().response.len() as u64, MIB);
    }
}

/// What a handler keeps outlives the sessions, and the ticks, of its endpoint.
#[test]
fn a_late_end_is_told_to_the_other_endpoints() {
    let _limited = Limited::to(64 * MIB);
    let lab = lab(3);
    let kept: Rc<RefCell<Vec<DeferredRequest>>> = Rc::default();
    for server in &lab.endpoints[..2] {
        let at = kept.clone();
        let keep = move |request: dunlin_rpc::Request<'_>| match request.defer() {
            Ok(request) => at.borrow_mut().push(request),
            Err(request) => request.push_back(),
        };
        server.register(KEEP, keep).unwrap();
    }
    let session = connect(&lab, 2, 0);
    let call = session.call(KEEP, MsgBuf::with_len(3 * MIB as usize).unwrap());
    lab.run_until(|| kept.borrow().len() == 1);
    drop(call);
    lab.drive(2, session.close());
    lab.run_for(Duration::from_millis(500));
    kept.borrow_mut().clear();
    // Half of three quarters of the limit: three of the longest messages, sent one at a time.
    let session = connect(&lab, 2, 1);
    for count in 1..=3 {
        let call = session.call(KEEP, MsgBuf::with_len(8 * MIB as usize).unwrap());
        let busy = || lab.endpoints[1].stats().counters.requests_over_memory_share;
        lab.run_until(|| kept.borrow().len() == count || busy() > 0);
        assert_eq!(busy(), 0, "of request {count}");
        drop(call);
    }
}

/// A message for which there is no room even when nothing else is held would always get an answer that asks to repeat
/// it.
#[test]
fn the_longest_message_fits_the_limit_of_buffers() {
    let message_bytes_max = 1 << 30;
    let error = EndpointConfig { message_bytes_max, ..config() }.check().unwrap_err().to_string();
    assert!(error.contains("message_bytes_max is 1073741824") && error.contains("set_limit_bytes"), "{error}");
    let _limited = Limited::to(16 * MIB);
    let error = config().check().unwrap_err().to_string();
    assert!(error.contains("message_bytes_max is 8388608"), "{error}");
    EndpointConfig { message_bytes_max: 2 * MIB as usize, ..config() }.check().unwrap();
}
