//! What must hold once the network has healed, and by when.

use dunlin_net::fault::Faults;
use dunlin_trial::Roughness;
use dunlin_trial::judge::{self, View};

use crate::scenario::Scenario;
use crate::world::World;

const SECOND: u64 = 1_000_000_000;
/// How soon calls without a deadline end after the network healed, besides the time that their packets take: some
/// retransmission timeouts of half a second in a row, for calls that wait for calls that wait, or the time until a
/// silent peer is given up.
const CALLS_END_WITHIN: u64 = 10 * SECOND;
/// What clocks that move from event to event add to a round trip.
const CLOCK_STEP: u64 = 50_000;
/// How soon a silent peer is given up: its timeout is a second, and then a ping must stay unanswered.
const SILENCE_IS_NOTICED_WITHIN: u64 = 2 * SECOND;
/// How soon sessions that only one end knows are found.
const STRAYS_END_WITHIN: u64 = 120 * SECOND;

fn views(world: &World) -> Vec<View<'_>> {
    let view = |node: &crate::world::Node| View {
        local: node.local.clone(),
        config: &world.scenario.configs[node.local.index],
        stats: node.endpoint().stats(),
    };
    world.nodes.iter().map(view).collect()
}

fn nothing_pends(world: &mut World) -> bool {
    let settled = world.nodes.iter().filter(|node| judge::settle(&node.local)).count();
    settled == 0 && judge::nothing_pends(world.nodes.iter().map(|node| &node.local), &world.ledger)
}

/// Each call ends.
pub fn all_calls_end(world: &mut World) {
    let Scenario { network, configs, .. } = &world.scenario;
    let round_trip = 2 * network.delay.as_nanos() as u64 + CLOCK_STEP;
    let sending = judge::time_to_send(&world.ledger.borrow(), configs, network.mtu / 2, round_trip);
    let within = CALLS_END_WITHIN + sending;
    let end = world.now() + within;
    let mut ended = world.run_until(end, nothing_pends);
    if !ended && world.scenario.roughness == Roughness::Corrupt {
        // A corrupted packet may have destroyed the answer for ever; the sessions are to blame, and closing them ends
        // the call.
        close_sessions(world);
        let end = world.now() + within;
        ended = world.run_until(end, nothing_pends);
    }
    let story = || judge::describe(&views(world), &world.ledger.borrow());
    assert!(ended, "after {within} ns without faults {}", story());
}

/// Nothing waits, every credit is back, each session exists at both ends, and no response is kept that has arrived.
pub fn nothing_is_left_when_quiet(world: &mut World) {
    let end = world.now() + SECOND;
    world.run_until(end, |_| false);
    let end = world.now() + STRAYS_END_WITHIN;
    let roughness = world.scenario.roughness;
    let settled = world.run_until(end, |world| judge::is_settled(&views(world), roughness));
    let views = views(world);
    assert!(
        settled,
        "after {STRAYS_END_WITHIN} ns without faults some sessions have no other end, keep responses, or count other credits: {}",
        judge::describe(&views, &world.ledger.borrow())
    );
    views.iter().for_each(|view| judge::check_quiet(view, world.scenario.network.queue_len, roughness));
}

/// All others give up an endpoint that vanishes silently.
pub fn the_silent_are_given_up(world: &mut World) {
    let Some(vanishing) = world.nodes.pop() else { return };
    vanishing.endpoint().with_transport(|transport| {
        transport.set_faults(Faults { drop: 1.0, ..Faults::default() }).expect("a probability of one");
    });
    let vanished = vanishing.local.index;
    drop(vanishing);
    let end = world.now() + SILENCE_IS_NOTICED_WITHIN;
    world.run_until(end, |_| false);
    world.nodes.iter().for_each(|node| judge::check_given_up(&node.local, vanished));
}

fn close_sessions(world: &mut World) {
    world.nodes.iter().for_each(|node| judge::close_sessions(&node.local));
}

/// Once every session is closed, no endpoint has one, nor anything that belonged to one.
pub fn nothing_is_left_when_closed(world: &mut World) {
    close_sessions(world);
    let end = world.now() + STRAYS_END_WITHIN;
    world.run_until(end, |world| world.nodes.iter().all(|node| node.endpoint().stats().sessions == 0));
    views(world).iter().for_each(judge::check_closed);
}
