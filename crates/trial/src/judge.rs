//! Conditions that must hold once the network has healed.

use std::cell::RefCell;
use std::rc::Rc;

use dunlin_rpc::congestion::SwiftConfig;
use dunlin_rpc::{CongestionControl, EndpointConfig, EndpointStats, Session, Switch};

use crate::handlers::Local;
use crate::ledger::{Ledger, Roughness};

/// One endpoint at one moment.
pub struct View<'a> {
    /// State shared by its handlers and tasks.
    pub local: Rc<Local>,
    /// Its settings.
    pub config: &'a EndpointConfig,
    /// Its counters.
    pub stats: EndpointStats,
}

/// Answers all deferred requests of an endpoint; returns whether there were any.
pub fn settle(local: &Local) -> bool {
    let mut settled = false;
    while local.settle_deferred() {
        settled = true;
    }
    local.run_workers() || settled
}

/// Whether no session is being opened or closed and no call is open.
pub fn nothing_pends<'a>(locals: impl IntoIterator<Item = &'a Rc<Local>>, ledger: &RefCell<Ledger>) -> bool {
    locals.into_iter().all(|local| local.connecting.get() == 0 && local.closing.get() == 0)
        && ledger.borrow().open().is_empty()
}

/// How long the packets of all open calls may take, one after the other, in nanoseconds: while the network was faulty,
/// congestion control may have slowed sessions down to their minimum rate. `packet_bytes` is the least data of a
/// packet, `round_trip_ns` the round trip of the idle network.
pub fn time_to_send(ledger: &Ledger, configs: &[EndpointConfig], packet_bytes: usize, round_trip_ns: u64) -> u64 {
    let paced = |rate_min: u64| packet_bytes as u64 * 8 * 1_000_000_000 / rate_min;
    let windowed = |swift: &SwiftConfig| (round_trip_ns as f64 / swift.window_min) as u64;
    let packet_ns = |config: &EndpointConfig| match &config.congestion {
        CongestionControl::Timely(timely) => paced(timely.rate_min),
        CongestionControl::Dcqcn(dcqcn) => paced(dcqcn.rate_min),
        CongestionControl::Swift(swift) => windowed(swift),
        CongestionControl::Auto => windowed(&SwiftConfig::default()),
        CongestionControl::None => 0,
    };
    let packets = |bytes: usize| bytes.div_ceil(packet_bytes).max(1) as u64;
    let open = ledger.open().into_iter().map(|number| &ledger.records[number as usize]);
    let packets: u64 = open.map(|call| packets(call.request_len) + packets(call.response_len)).sum();
    packets * configs.iter().map(packet_ns).max().unwrap_or(0)
}

/// A report on a run that did not end: open calls, and each endpoint.
pub fn describe(views: &[View<'_>], ledger: &Ledger) -> String {
    let open = ledger.open();
    let mut text = format!("{} calls are left", open.len());
    for number in open.iter().take(8) {
        text += &format!("\ncall {number}: {:?}", ledger.records[*number as usize]);
    }
    for View { local, stats, .. } in views {
        let (connecting, closing) = (local.connecting.get(), local.closing.get());
        text +=
            &format!("\nendpoint {}.{}: {connecting} connecting, {closing} closing", local.index, local.incarnation);
        for session in local.outbound.borrow().iter().chain(local.inbound.borrow().iter()).filter(|s| s.is_open()) {
            text += &format!("\n{session:?}: {:?}", session.stats());
        }
        text += &format!("\n{stats}");
    }
    text
}

/// Whether every session has its other end, whichever side opened it.
pub fn sessions_are_paired(views: &[View<'_>]) -> bool {
    let is_open = |session: &&Session| session.is_open();
    let opened: usize = views.iter().map(|view| view.local.outbound.borrow().iter().filter(is_open).count()).sum();
    let known: usize = views.iter().map(|view| view.stats.sessions as usize).sum();
    known == 2 * opened
}

/// Whether both ends of all sessions agree on the credits, and each has counted its own places for them.
pub fn books_agree(views: &[View<'_>]) -> bool {
    if views.iter().any(|view| view.config.credit_sharing == Switch::Off) {
        // An endpoint that does not share keeps places for credits for which the other end has none.
        return true;
    }
    let of_sessions = |view: &View<'_>| -> usize {
        let outbound = view.local.outbound.borrow();
        let stats = outbound.iter().filter_map(Session::stats);
        stats.map(|stats| stats.credits_max as usize + stats.credits_granted as usize).sum()
    };
    let places = |view: &View<'_>| view.stats.credits_reserved + view.stats.credits_unplaced;
    views.iter().map(places).sum::<usize>() == 2 * views.iter().map(of_sessions).sum::<usize>()
}

/// Whether no session lacks its other end, no delivered response is still held, and all ends agree on the credits. That
/// takes some seconds: pings must find the ends of lost sessions.
pub fn is_settled(views: &[View<'_>], roughness: Roughness) -> bool {
    // A corrupted number may belong to a request that never existed, so that its response is never released.
    let corrupts = roughness == Roughness::Corrupt;
    let is_released = || views.iter().all(|view| view.stats.requests_held == 0);
    sessions_are_paired(views) && (corrupts || is_released() && books_agree(views))
}

/// Panics if a quiet endpoint still has calls, tasks or outstanding credits, or if its counters are inconsistent.
/// `queue_len` is the length of its receive queue.
pub fn check_quiet(view: &View<'_>, queue_len: usize, roughness: Roughness) {
    let View { local, config, stats } = view;
    let counters = stats.counters;
    assert_eq!((stats.calls_pending, stats.tasks), (0, 0), "calls or tasks are left: {stats}");
    let ended = counters.calls_completed + counters.calls_failed + counters.calls_cancelled;
    assert_eq!(counters.calls_started, ended, "calls started are not calls ended: {stats}");
    for (name, value) in counters.iter() {
        assert!(value < 1 << 32, "{name} is {value}");
    }
    check_limits(view, queue_len);
    for session in local.outbound.borrow().iter().chain(local.inbound.borrow().iter()) {
        let Some(stats) = session.stats() else { continue };
        assert_eq!((stats.calls_in_progress, stats.calls_queued), (0, 0), "{session:?}: {stats:?}");
        assert_eq!(stats.credits, stats.credits_max, "{session:?} lost credits: {stats:?}");
        assert!(stats.credits_max <= stats.credits_agreed.max(config.credits), "{session:?}: {stats:?}");
    }
    if roughness != Roughness::Corrupt {
        assert_eq!(counters.dropped_malformed, 0, "{stats}");
    }
}

/// Panics if an endpoint exceeds its limits. Holds at any time.
pub fn check_limits(view: &View<'_>, queue_len: usize) {
    let View { config, stats, .. } = view;
    assert!(stats.credits_reserved <= queue_len, "more credits than the receive queue has places: {stats}");
    assert!(stats.sessions <= config.sessions_max, "more sessions than allowed: {stats}");
}

/// Panics if an endpoint whose sessions were all closed still holds any of their state.
pub fn check_closed(view: &View<'_>) {
    let View { local, stats, .. } = view;
    assert_eq!(stats.sessions, 0, "endpoint {} still has sessions: {stats}", local.index);
    assert_eq!((stats.requests_held, stats.credits_reserved), (0, 0), "endpoint {}: {stats}", local.index);
}

/// Panics if an endpoint still has a session that it opened to an endpoint that vanished.
pub fn check_given_up(local: &Local, vanished: usize) {
    let opened = local.opened.borrow();
    let left = opened.iter().find(|(to, session)| *to == vanished && session.is_open());
    assert!(left.is_none(), "endpoint {} still has a session with one that has vanished: {left:?}", local.index);
}

/// Closes every session of an endpoint.
pub fn close_sessions(local: &Local) {
    for session in local.outbound.borrow().iter().chain(local.inbound.borrow().iter()) {
        drop(Session::close(session));
    }
}
