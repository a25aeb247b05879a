//! Packets of old and new cuts of one message arrive in any order, late and twice, while the MTU of the path changes
//! again and again.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::Addr;
use dunlin_net::fault::{FaultInjector, Faults};
use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};
use dunlin_rpc::{Call, CallError, Endpoint, EndpointConfig, MsgBuf, Recovery};

use crate::pair::config;
use crate::stage::{AGREED, SIZED};

/// Calls in progress at the same time.
const CALLS: usize = 6;
const TIME: Duration = Duration::from_secs(6);
const STEP: Duration = Duration::from_micros(40);

fn byte(call: u32, i: usize) -> u8 {
    ((call as usize).wrapping_mul(31).wrapping_add(i).wrapping_mul(0x9e37_79b9) >> 13) as u8
}

fn message(call: u32, response_len: usize, len: usize) -> MsgBuf {
    let mut buf = MsgBuf::with_len(len).unwrap();
    buf.iter_mut().enumerate().for_each(|(i, b)| *b = byte(call, i));
    buf[..4].copy_from_slice(&call.to_le_bytes());
    buf[4..8].copy_from_slice(&(response_len as u32).to_le_bytes());
    buf
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[..4].try_into().unwrap())
}

fn is_intact(call: u32, bytes: &[u8]) -> bool {
    number(bytes) == call && bytes.iter().enumerate().skip(8).all(|(i, b)| *b == byte(call, i))
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27) % limit
    }
}

/// The numbers of messages that were recut, of calls that succeeded, and of calls that failed.
fn run(seed: u64) -> (u64, u32, u32) {
    let mut random = Random(seed);
    let network = LoopbackNetwork::new(LoopbackConfig {
        mtu: AGREED,
        delay: Duration::from_micros(10),
        ..LoopbackConfig::default()
    });
    network.advance_to(1_000_000_000);
    network.make_mtu_uncertain();
    let faults = Faults {
        drop: 0.01,
        duplicate: 0.05,
        reorder: 0.05,
        delay: 0.05,
        delay_max: Duration::from_millis(900),
        ..Faults::default()
    };
    let recovery = if seed.is_multiple_of(3) { Recovery::GoBackN } else { Recovery::Selective };
    let config = EndpointConfig { recovery, rto_min: Duration::from_millis(1), ..config() };
    let start = |node: u32| {
        let transport =
            FaultInjector::new(network.endpoint(node).unwrap(), seed ^ u64::from(node) << 40, faults).unwrap();
        Endpoint::new(transport, EndpointConfig { seed: Some(seed + u64::from(node)), ..config.clone() }).unwrap()
    };
    let (server, client) = (start(1), start(2));
    let runs: Rc<RefCell<HashMap<u32, u32>>> = Rc::default();
    let counted = runs.clone();
    let serve = move |request: dunlin_rpc::Request<'_>| {
        let payload = request.payload();
        let call = number(payload);
        assert!(is_intact(call, payload), "seed {seed}: request {call} is damaged");
        *counted.borrow_mut().entry(call).or_default() += 1;
        let len = u32::from_le_bytes(payload[4..8].try_into().unwrap()) as usize;
        request.respond_with(len, |out| out.copy_from_slice(&message(call, 0, len)));
    };
    server.register(SIZED, serve).unwrap();
    let mut connecting = std::pin::pin!(client.connect(&Addr::Node(1)));
    let turn = || {
        server.run_once();
        client.run_once();
        network.advance(STEP);
    };
    let session = loop {
        turn();
        if let Some(session) = client.poll_once(connecting.as_mut()) {
            break session.unwrap();
        }
    };
    let mut calls: Vec<(u32, std::pin::Pin<Box<Call<MsgBuf>>>)> = Vec::new();
    let (mut next, mut good, mut bad) = (0, 0, 0);
    let (end, mut changes_at) = (network.now() + TIME.as_nanos() as u64, 0);
    while network.now() < end || !calls.is_empty() {
        assert!(network.now() < end + 120_000_000_000, "seed {seed}: {} calls never end", calls.len());
        if network.now() >= changes_at && network.now() < end {
            changes_at = network.now() + 200_000_000 + random.below(900_000_000);
            for (from, to) in [(1, 2), (2, 1)] {
                let carries = [1200, 1222, 1300, 1400, AGREED, AGREED][random.below(6) as usize];
                network.set_path_mtu(from, to, carries).unwrap();
            }
        }
        while calls.len() < CALLS && network.now() < end {
            let mut len = || {
                let longest = [40, 1500, 3_000, 40_000][random.below(4) as usize];
                8 + random.below(longest) as usize
            };
            let (request_len, response_len) = (len(), len());
            let call = session.call(SIZED, message(next, response_len, request_len));
            calls.push((next, Box::pin(call)));
            next += 1;
        }
        turn();
        calls.retain_mut(|(call, future)| {
            let Some(reply) = client.poll_once(future.as_mut()) else { return true };
            match reply {
                Ok(reply) => {
                    assert!(is_intact(*call, &reply.response), "seed {seed}: response {call} is damaged");
                    assert_eq!(runs.borrow().get(call), Some(&1), "seed {seed}: handlers run once");
                    good += 1;
                }
                Err(failure) => {
                    // The path changed so often that the server gave up the request before it was complete, or the
                    // response before it was requested.
                    let ran = match failure.error {
                        CallError::Busy => None,
                        CallError::ResponseTooLarge => Some(&1),
                        error => panic!("seed {seed}: call {call}: {error}"),
                    };
                    assert_eq!(runs.borrow().get(call), ran, "seed {seed}: call {call}");
                    bad += 1;
                }
            }
            false
        });
    }
    assert!(runs.borrow().values().all(|count| *count == 1), "seed {seed}: a handler ran twice");
    let stats = session.stats().unwrap();
    assert_eq!(stats.credits, stats.credits_max, "seed {seed}");
    let recut = [&server, &client].map(|endpoint| endpoint.stats().counters.messages_recut);
    (recut[0] + recut[1], good, bad)
}

#[test]
fn cuts_may_mix_in_any_order() {
    let seeds = std::env::var("DUNLIN_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(12);
    let (mut recut, mut good, mut bad) = (0, 0, 0);
    for seed in 0..seeds {
        let (cuts, well, badly) = run(seed);
        (recut, good, bad) = (recut + cuts, good + well, bad + badly);
    }
    let counts = format!("{recut} messages were cut anew, {good} calls were answered, {bad} were not");
    println!("{counts}");
    assert!(recut >= seeds && u64::from(good) > 50 * seeds && bad < good / 100, "{counts}");
}
