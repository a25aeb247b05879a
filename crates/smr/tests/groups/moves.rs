//! A process that continues at another address is moved in each of its groups, and all of them share one link to it.

use dunlin_net::Addr;
use dunlin_smr::wire::request::Change;
use dunlin_smr::{Beginning, ClientError, NodeConfig};

use super::world::{ELECTION, OnDisk, World, config};

const ELSEWHERE: u32 = 50;

/// Returns two groups that the first process leads, after the second process was started at another address with its
/// log.
fn started_elsewhere() -> World<OnDisk> {
    let mut world = World::new(OnDisk::default(), 2, NodeConfig { snapshot_entries: 20, keep_entries: 1, ..config() });
    world.all_lead();
    for group in 0..2 {
        if world.leader(group).unwrap().1 != 1 {
            world.drive(world.client(group).transfer(1)).unwrap();
        }
        world.until("the first leads", |world| world.leader(group).unwrap().1 == 1);
    }
    world.kill(2);
    world.turns(2 * ELECTION);
    world.moved.insert(2, ELSEWHERE);
    world.start(2, Beginning::Join);
    world.list_where_they_are();
    world
}

/// Retries as `dunlin raft move` does, for ten election timeouts.
fn move_in(world: &World<OnDisk>, group: u16) {
    let change = Change::Move { id: 2, address: Addr::Node(ELSEWHERE).to_string() };
    let end = world.now() + 10 * ELECTION;
    loop {
        match world.drive(world.client(group).change(change.clone())) {
            Err(ClientError::Refused(why)) if why.contains("try again") && world.now() < end => {
                world.turns(ELECTION / 6)
            }
            result => return assert_eq!(result, Ok(()), "group {group}"),
        }
    }
}

/// The third process ends: each group needs the second one.
fn all_need_it(mut world: World<OnDisk>) {
    world.kill(3);
    for group in 0..2 {
        let sum = world.add(group, 1).unwrap();
        let has_it = |world: &World<OnDisk>| {
            let node = world.processes[&2].host.node(group).unwrap();
            node.status().applied == world.processes[&1].host.node(group).unwrap().status().applied
        };
        world.until("it has it", has_it);
        assert_eq!(world.sum(group), Ok(sum));
    }
}

#[test]
fn a_process_that_goes_on_elsewhere_is_moved_group_by_group() {
    let world = started_elsewhere();
    for group in [1, 0] {
        move_in(&world, group);
        world.turns(2 * ELECTION);
    }
    all_need_it(world);
}

/// The group that was not moved names another member's address, and still has the old address of this one.
#[test]
fn a_group_that_was_not_moved_does_not_turn_the_others_back() {
    for moved in 0..2 {
        let world = started_elsewhere();
        move_in(&world, moved);
        let add = Change::AddLearner { id: 9, address: Addr::Node(90).to_string() };
        world.drive(world.client(1 - moved).change(add)).unwrap();
        let begun = world.now();
        let added = world.add(moved, 5).unwrap();
        world.until("it has it", |world| {
            world.processes[&2].host.node(moved).unwrap().with_machine(|sum| sum.sum) == added
        });
        assert!(world.now() - begun < 4 * ELECTION, "after {:?}", world.now() - begun);
        all_need_it(world);
    }
}

/// All processes end when one group was moved and the other was not.
#[test]
fn a_process_that_is_half_moved_is_found_after_a_restart() {
    for moved in 0..2 {
        let mut world = started_elsewhere();
        move_in(&world, moved);
        // The snapshot has the new address.
        (0..50).for_each(|_| _ = world.add(moved, 1).unwrap());
        (1..=3).for_each(|id| world.kill(id));
        (1..=3).for_each(|id| world.start(id, Beginning::Join));
        world.all_lead();
        world.kill(3);
        world.until("both groups are led", |world| (0..2).all(|group| world.leader(group).is_some()));
        let sums = [0, 1].map(|group| world.add(group, 1).unwrap());
        world.start(3, Beginning::Join);
        move_in(&world, 1 - moved);
        assert_eq!([0, 1].map(|group| world.sum(group).unwrap()), sums);
    }
}
