//! Many groups on three processes: what they share, what idle groups cost, and what a failure moves.

mod clusters;
mod copies;
mod kept;
mod leases;
mod moves;
mod snapshots;
mod world;

use std::time::Duration;

use dunlin_smr::wire::response::Role;
use dunlin_smr::{Beginning, ClientError, NodeConfig};

use world::{ELECTION, InMemory, OnDisk, World, config};

const MANY: u16 = 1000;

fn many() -> World<InMemory> {
    let world = World::new(InMemory, MANY, config());
    world.all_lead();
    world
}

#[test]
fn idle_groups_cost_a_heartbeat_of_their_process() {
    let world = many();
    for group in (0..MANY).step_by(97) {
        assert_eq!(world.add(group, 7).unwrap(), 7);
    }
    world.all_rest();
    let traffic = || {
        let counters = world.processes.values().map(|process| process.host.node(0).unwrap().counters());
        counters.fold((0, 0), |(envelopes, messages), counters| {
            (envelopes + counters.envelopes, messages + counters.messages)
        })
    };
    let (before, leaders) = (traffic(), world.leaders());
    let beats = 100;
    world.turns(beats * Duration::from_millis(4));
    let after = traffic();
    assert_eq!(after.1, before.1, "no messages of any group");
    // Each of three processes to each of two others, with an answer.
    assert!((after.0 - before.0) as u32 <= 3 * 2 * 2 * (beats + 1), "{before:?} {after:?}");
    assert_eq!(world.leaders(), leaders, "nobody was missed");
    for group in (0..MANY).step_by(97) {
        assert_eq!((world.sum(group).unwrap(), world.add(group, 1).unwrap()), (7, 8));
    }
    assert_eq!(world.leaders(), leaders, "those who woke up lead on");
}

#[test]
fn the_loss_of_a_process_moves_all_its_groups() {
    let mut world = many();
    for group in 0..MANY {
        if group % 50 == 0 {
            world.add(group, u64::from(group)).unwrap();
        }
    }
    world.all_rest();
    let before = world.leaders();
    let lost = before[0].unwrap().1;
    let led = before.iter().filter(|leader| leader.unwrap().1 == lost).count();
    assert!(led > 100, "elections spread: {led} groups");
    let begun = world.now();
    world.kill(lost);
    world.all_lead();
    // One election timeout until the process is missed, up to one more that each draws, and the time of an election.
    let took = world.now() - begun;
    assert!(took < 4 * ELECTION, "{took:?}");
    for (group, (old, new)) in before.iter().zip(world.leaders()).enumerate() {
        let ((old_term, old), (term, new)) = (old.unwrap(), new.unwrap());
        assert!(new != lost && (old == lost || (term, new) == (old_term, old)), "group {group}");
    }
    world.all_rest();
    for group in (0..MANY).step_by(50) {
        assert_eq!(world.sum(group).unwrap(), u64::from(group));
    }
}

#[test]
fn a_fail_over_of_one_group_is_not_noticed_by_others() {
    let world = many();
    world.all_rest();
    let before = world.leaders();
    let (_, old) = before[5].unwrap();
    let client = world.client(5);
    world.drive(client.transfer(old % 3 + 1)).unwrap();
    world.until("another leads it", |world| world.leader(5).is_some_and(|(_, new)| new == old % 3 + 1));
    assert!(world.processes.values().all(|process| process.host.resting() >= usize::from(MANY) - 1));
    let others = |leaders: &[Option<(u64, u64)>]| [&leaders[..5], &leaders[6..]].concat();
    assert_eq!(others(&world.leaders()), others(&before));
    assert_eq!(world.add(5, 3).unwrap(), 3);
    world.all_rest();
}

/// A process that was paused returns in its old role: its groups have other leaders by then, and it follows.
#[test]
fn a_process_that_stood_still_follows() {
    let mut world = World::new(InMemory, 50, config());
    world.all_lead();
    world.all_rest();
    let paused = world.leader(0).unwrap().1;
    world.paused.push(paused);
    world.turns(4 * ELECTION);
    let moved = (0..50).filter(|group| world.leader(*group).unwrap().1 != paused).count();
    assert_eq!(moved, 50);
    assert_eq!(world.add(0, 4).unwrap(), 4);
    world.paused.clear();
    world.all_rest();
    for group in 0..50 {
        let status = world.processes[&paused].host.node(group).unwrap().status();
        assert_ne!(status.role, Role::Leader, "group {group}");
    }
    assert_eq!(world.sum(0).unwrap(), 4);
}

/// The process that led is back before it is missed, and does not know that it led. It restores the states of its
/// groups, and does not stand for election before that.
#[test]
fn a_leader_that_restarts_at_once_is_replaced() {
    const GROUPS: u16 = 100;
    let pieces = NodeConfig { snapshot_step_bytes: 4, ..config() };
    let mut world = World::padded(OnDisk::default(), GROUPS, pieces, |_| 6000);
    world.all_lead();
    world.all_rest();
    let before = world.leaders();
    let lost = before[0].unwrap().1;
    world.kill(lost);
    world.start(lost, Beginning::Join);
    world.turns(3 * ELECTION);
    let led = |world: &World<OnDisk>| (0..GROUPS).filter(|group| world.leader(*group).is_some()).count();
    assert_eq!(led(&world), usize::from(GROUPS));
    assert!(world.leaders().into_iter().all(|leader| leader.unwrap().1 != lost), "it restores its states");
}

#[test]
fn a_group_that_is_not_there_is_refused() {
    let world = World::new(InMemory, 3, config());
    world.all_lead();
    assert_eq!(world.add(3, 1), Err(ClientError::NoGroup { group: 3, groups: 3 }));
    assert_eq!(world.add(2, 1), Ok(1));
}

#[test]
fn groups_without_rest_share_their_heartbeats() {
    let world = World::new(InMemory, 100, NodeConfig { idle_ticks: None, ..config() });
    world.all_lead();
    world.turns(4 * ELECTION);
    let counters = || world.processes[&1].host.node(0).unwrap().counters();
    let before = counters();
    let ticks = 400;
    world.turns(ticks * Duration::from_millis(1));
    let after = counters();
    let (envelopes, messages) = (after.envelopes - before.envelopes, after.messages - before.messages);
    // At most one per tick to each of two processes, and an answer to each of theirs.
    assert!(envelopes <= u64::from(2 * 2 * (ticks + 1)), "{envelopes} envelopes");
    assert!(messages > 3 * envelopes, "{messages} messages in {envelopes} envelopes");
}

/// All processes crash at once, in the middle of writes: each group has what it acknowledged.
#[test]
fn every_group_survives_a_power_failure() {
    let mut world = World::new(OnDisk::default(), 20, config());
    world.all_lead();
    let mut sums = [0; 20];
    for round in 1..=3 {
        for group in 0..20_u16 {
            sums[usize::from(group)] = world.add(group, round).unwrap();
        }
        (1..=3).for_each(|id| world.kill(id));
        (1..=3).for_each(|id| world.start(id, Beginning::Join));
        for group in 0..20_u16 {
            assert_eq!(world.sum(group).unwrap(), sums[usize::from(group)], "group {group} in round {round}");
        }
    }
    world.all_rest();
}

/// A flush of a process serves all groups that have something to write.
#[test]
fn groups_share_flushes() {
    let world = World::new(OnDisk::default(), 100, config());
    world.all_lead();
    world.all_rest();
    let flushes = |id| world.processes[&id].host.node(0).unwrap().with_log(|log| log.wal().flushes());
    let before: u64 = (1..=3).map(flushes).sum();
    let clients: Vec<_> = (0..100).map(|group| world.client(group)).collect();
    let commands = clients.iter().map(|client| client.execute(&[1, 0, 0, 0, 0, 0, 0, 0]));
    let replies = world.drive(futures::future::join_all(commands));
    assert!(replies.iter().all(Result::is_ok));
    let flushes = (1..=3).map(flushes).sum::<u64>() - before;
    // Each group has a session opened and a command executed, at three replicas.
    assert!(flushes < 3 * 2 * 100 / 4, "{flushes} flushes for 200 commands of 100 groups");
}
