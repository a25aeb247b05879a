//! What must hold once the network has healed.

use dunlin_net::fault::Faults;
use dunlin_rpc::{Session, Switch};

use crate::scenario::Roughness;
use crate::world::{Node, World};

const SECOND: u64 = 1_000_000_000;
/// Calls without a deadline end so soon after the network healed: some retransmission timeouts of half a second in a row, for calls
/// that wait for calls that wait, or the time until a silent peer is given up.
const CALLS_END_WITHIN: u64 = 10 * SECOND;
/// A peer that says nothing is given up so soon: its timeout is a second, and then a ping must remain without an answer.
const SILENCE_IS_NOTICED_WITHIN: u64 = 2 * SECOND;
/// Sessions that only one end knows of are found so soon.
const STRAYS_END_WITHIN: u64 = 120 * SECOND;

fn nothing_pends(world: &mut World) -> bool {
    let mut settled = false;
    for node in &world.nodes {
        while node.local.settle_deferred() {
            settled = true;
        }
        settled |= node.local.run_workers();
    }
    let is_over = |node: &Node| node.local.connecting.get() == 0 && node.local.closing.get() == 0;
    !settled && world.nodes.iter().all(is_over) && world.ledger.borrow().open().is_empty()
}

/// Each call ends.
pub fn all_calls_end(world: &mut World) {
    let end = world.now() + CALLS_END_WITHIN;
    let mut ended = world.run_until(end, nothing_pends);
    if !ended && world.scenario.roughness == Roughness::Corrupt {
        // A corrupted packet may have taken the answer away for good; the sessions are at fault, and end it.
        close_sessions(world);
        let end = world.now() + CALLS_END_WITHIN;
        ended = world.run_until(end, nothing_pends);
    }
    if !ended {
        let ledger = world.ledger.borrow();
        let open: Vec<_> = ledger.open().iter().map(|number| (*number, ledger.records[*number as usize].clone())).collect();
        for node in &world.nodes {
            let (connecting, closing) = (node.local.connecting.get(), node.local.closing.get());
            eprintln!("node {}: {connecting} connecting, {closing} closing\n{}", node.local.index, node.endpoint().stats());
            for session in node.local.outbound.borrow().iter().chain(node.local.inbound.borrow().iter()) {
                eprintln!("{session:?}: {:?}", session.stats());
            }
        }
        panic!("after {CALLS_END_WITHIN} ns without faults calls are left: {open:#?}");
    }
}

/// Whether every session has its other end, whoever opened it.
fn sessions_are_paired(world: &mut World) -> bool {
    let is_open = |session: &&Session| session.is_open();
    let opened = |node: &Node| node.local.outbound.borrow().iter().filter(is_open).count();
    let opened: usize = world.nodes.iter().map(opened).sum();
    let known: u32 = world.nodes.iter().map(|node| node.endpoint().stats().sessions).sum();
    known as usize == 2 * opened
}

/// Whether both ends of all sessions count the same credits, and each its own places for them.
fn books_agree(world: &World) -> bool {
    let shares = |node: &Node| world.scenario.configs[node.local.index].credit_sharing == Switch::On;
    if !world.nodes.iter().all(shares) {
        // Who does not share keeps places for credits that the other end has no places for.
        return true;
    }
    let opened = world.nodes.iter().flat_map(|node| node.local.outbound.borrow().clone());
    let credits = opened.filter_map(|session| session.stats()).map(|s| s.credits_max as usize + s.credits_granted as usize);
    let reserved = world.nodes.iter().map(|node| node.endpoint().stats().credits_reserved);
    reserved.sum::<usize>() == 2 * credits.sum::<usize>()
}

/// Nothing waits, every credit is back, no end of a session is alone, and no response is kept that has arrived.
pub fn nothing_is_left_when_quiet(world: &mut World) {
    let end = world.now() + SECOND;
    world.run_until(end, |_| false);
    let end = world.now() + STRAYS_END_WITHIN;
    // A corrupted number may belong to a request that never was, and that nobody releases.
    let corrupts = world.scenario.roughness == Roughness::Corrupt;
    let responses_are_released =
        |world: &World| corrupts || world.nodes.iter().all(|node| node.endpoint().stats().requests_held == 0);
    let is_settled =
        |world: &mut World| sessions_are_paired(world) && responses_are_released(world) && (corrupts || books_agree(world));
    if !world.run_until(end, is_settled) {
        for node in &world.nodes {
            eprintln!("node {}: {:?}\n{}", node.local.index, node.local.outbound.borrow(), node.endpoint().stats());
        }
        panic!(
            "after {STRAYS_END_WITHIN} ns without faults some sessions have no other end, keep responses, or count other credits"
        );
    }
    for node in &world.nodes {
        let stats = node.endpoint().stats();
        let counters = stats.counters;
        assert_eq!((stats.calls_pending, stats.tasks), (0, 0), "{stats}");
        let ended = counters.calls_completed + counters.calls_failed + counters.calls_cancelled;
        assert_eq!(counters.calls_started, ended, "{stats}");
        for (name, value) in counters.iter() {
            assert!(value < 1 << 32, "{name} is {value}");
        }
        let config = &world.scenario.configs[node.local.index];
        assert!(stats.credits_reserved <= world.scenario.network.queue_len, "{stats}");
        assert!(stats.sessions <= config.sessions_max);
        for session in node.local.outbound.borrow().iter().chain(node.local.inbound.borrow().iter()) {
            let Some(stats) = session.stats() else { continue };
            assert_eq!((stats.calls_in_progress, stats.calls_queued), (0, 0), "{session:?}: {stats:?}");
            assert_eq!(stats.credits, stats.credits_max, "{session:?}: {stats:?}");
        }
        if !corrupts {
            assert_eq!(counters.dropped_malformed, 0, "{stats}");
        }
    }
}

/// An endpoint that vanishes without a word is given up by all others.
pub fn the_silent_are_given_up(world: &mut World) {
    let Some(vanishing) = world.nodes.pop() else { return };
    vanishing.endpoint().with_transport(|transport| {
        transport.set_faults(Faults { drop: 1.0, ..Faults::default() }).expect("a probability of one");
    });
    let vanished = vanishing.local.index;
    drop(vanishing);
    let end = world.now() + SILENCE_IS_NOTICED_WITHIN;
    world.run_until(end, |_| false);
    for node in &world.nodes {
        let opened = node.local.opened.borrow();
        let left = opened.iter().find(|(to, session)| *to == vanished && session.is_open());
        assert!(left.is_none(), "node {} still has a session with one that has vanished: {left:?}", node.local.index);
    }
}

fn close_sessions(world: &mut World) {
    for node in &world.nodes {
        for session in node.local.outbound.borrow().iter().chain(node.local.inbound.borrow().iter()) {
            drop(Session::close(session));
        }
    }
}

/// Once every session is closed, no endpoint has one, nor anything that belonged to one.
pub fn nothing_is_left_when_closed(world: &mut World) {
    close_sessions(world);
    let end = world.now() + STRAYS_END_WITHIN;
    let is_clear = |world: &mut World| world.nodes.iter().all(|node| node.endpoint().stats().sessions == 0);
    let cleared = world.run_until(end, is_clear);
    for node in &world.nodes {
        let stats = node.endpoint().stats();
        assert!(cleared, "node {} still has sessions: {stats}", node.local.index);
        assert_eq!((stats.requests_held, stats.credits_reserved), (0, 0), "node {}: {stats}", node.local.index);
    }
}
