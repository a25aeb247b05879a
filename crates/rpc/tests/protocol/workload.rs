//! What happens at random times: sessions, calls, cancellations, restarts, silences.

use dunlin_net::fault::Faults;
use dunlin_trial::{Roughness, calls};

use crate::world::{Node, World, address};

/// Performs one step.
pub fn step(world: &mut World) {
    let node = world.random.index(world.nodes.len());
    let is_rough = world.scenario.roughness != Roughness::Steady;
    match world.random.between(0, 99) {
        0..=11 => connect(world, node),
        12..=79 => {
            // Several at the same time fill slots, queues and bursts.
            for _ in 0..world.random.between(1, 12) {
                let Node { local, .. } = &world.nodes[node];
                let max = world.scenario.message_bytes_max;
                let endpoint = world.nodes[node].endpoint();
                world.cancels.extend(calls::call(endpoint, local, &mut world.random, max));
            }
        }
        80..=87 => calls::cancel(&world.nodes[node].local, &mut world.random, &mut world.cancels),
        88..=90 => _ = world.nodes[node].local.settle_deferred(),
        91..=92 => _ = world.nodes[node].local.run_workers(),
        93..=94 if is_rough => {
            let Node { local, .. } = &world.nodes[node];
            calls::close(world.nodes[node].endpoint(), local, &mut world.random);
        }
        95 if is_rough => restart(world, node),
        96 if is_rough => silence(world, node),
        97 if is_rough => {
            world.nodes[node].stopped_until = world.now() + world.random.between(1, 60_000_000);
        }
        _ => weather(world, node),
    }
}

fn connect(world: &mut World, node: usize) {
    let to = world.random.index(world.nodes.len());
    let Node { local, .. } = &world.nodes[node];
    let (local, incarnation) = (local.clone(), local.incarnation);
    // One in ten is cancelled at once, or after its first packets.
    if !world.random.chance(10) {
        return calls::connect(world.nodes[node].endpoint(), &local, to, &address(to));
    }
    let handle = calls::connect_in_doubt(world.nodes[node].endpoint(), &local, to, &address(to));
    let end = world.now() + world.random.between(0, 200_000);
    world.run_until(end, |_| false);
    // Only another step could have replaced the endpoint meanwhile, and none ran.
    assert_eq!(world.nodes[node].local.incarnation, incarnation);
    handle.cancel();
}

/// Replaces an endpoint by a new one at the same address. Half of the time the old one dies silently.
fn restart(world: &mut World, node: usize) {
    let crashes = world.random.chance(50);
    let old = &mut world.nodes[node];
    let issuer = (node, old.local.incarnation);
    if crashes {
        let all_lost = Faults { drop: 1.0, ..Faults::default() };
        old.endpoint().with_transport(|transport| transport.set_faults(all_lost).unwrap());
    }
    old.endpoint = None;
    // Workers do not notice, and continue.
    old.local.run_workers();
    // Handles may outlive their endpoint.
    for session in old.local.outbound.borrow().iter() {
        assert!(!session.is_open());
    }
    world.ledger.borrow_mut().abandon(issuer);
    if world.random.chance(50) {
        let end = world.now() + world.random.between(0, 3_000_000);
        let rest: Vec<_> = world.nodes.drain(node..).collect();
        let mut rest = rest.into_iter();
        let dead = rest.next();
        world.nodes.extend(rest);
        world.run_until(end, |_| false);
        let tail: Vec<_> = world.nodes.drain(node..).collect();
        world.nodes.extend(dead);
        world.nodes.extend(tail);
    }
    let new = world.start(node, issuer.1 + 1);
    world.nodes[node] = new;
}

fn silence(world: &mut World, node: usize) {
    let until = world.now() + world.random.between(1_000_000, 1_500_000_000);
    world.nodes[node].silent_until = until;
    let all_lost = Faults { drop: 1.0, ..Faults::default() };
    world.nodes[node].endpoint().with_transport(|transport| transport.set_faults(all_lost).unwrap());
    // Half of the time wait until the silence is over, since steps are much shorter.
    if world.random.chance(50) {
        world.run_until(until, |_| false);
    }
}

/// Changes the faults from now on.
fn weather(world: &mut World, node: usize) {
    let faults = if world.random.chance(30) {
        Faults::default()
    } else {
        world.scenario.faults[world.random.index(world.nodes.len())]
    };
    let node = &mut world.nodes[node];
    node.faults = faults;
    if node.silent_until == 0 {
        node.endpoint().with_transport(|transport| transport.set_faults(faults).unwrap());
    }
}
