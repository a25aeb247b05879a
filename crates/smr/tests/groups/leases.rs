//! Leases of leaders whose groups rest.

use std::time::Duration;

use dunlin_net::loopback::LoopbackTransport;
use dunlin_smr::{Client, ClientConfig, NodeConfig, ReadFrom, Reads};

use super::world::{InMemory, World, config, members};

const GROUPS: u16 = 30;
/// Seven times as long as sessions live without packets.
const LONG_ELECTION: Duration = Duration::from_millis(200);
const MOMENT: Duration = Duration::from_millis(1);

/// Creates a client that knows only these processes.
fn client_of(world: &World<InMemory>, group: u16, ids: &[u64], read_from: ReadFrom) -> Client<LoopbackTransport> {
    let cluster = world.processes[&1].host.node(0).unwrap().status().cluster;
    let (timeout, attempt_timeout) = (Duration::from_millis(30), Duration::from_millis(10));
    let config = ClientConfig { cluster, group, read_from, timeout, attempt_timeout, ..ClientConfig::default() };
    Client::new(&world.endpoint, members().into_iter().filter(|(id, _)| ids.contains(id)), config)
}

/// A leader is cut off while its groups rest. Its followers notice by their sessions, long before its lease is over,
/// and keep their promises.
#[test]
fn a_lost_session_does_not_shorten_a_lease() {
    let election_ticks = LONG_ELECTION.as_millis() as u32;
    let leases = NodeConfig { election_ticks, idle_ticks: Some(8), reads: Reads::Lease, ..config() };
    let world = World::new(InMemory, GROUPS, leases);
    world.all_lead();
    let (_, old) = world.leader(0).unwrap();
    let led: Vec<u16> = (0..GROUPS).filter(|group| world.leader(*group).unwrap().1 == old).collect();
    let others: Vec<u64> = (1..=3).filter(|id| *id != old).collect();
    // They open their sessions before anything is lost: opening one takes a part of a lease.
    let at_old = client_of(&world, led[0], &[old], ReadFrom::Leader);
    let at_others = client_of(&world, led[0], &others, ReadFrom::Leader);
    let read = |group| {
        let sum = world.drive(at_old.of_group(group).query(&[])).ok()?;
        Some(u64::from_le_bytes(sum[..].try_into().unwrap()))
    };
    assert_eq!(read(led[0]), Some(0));
    others.iter().for_each(|id| _ = world.drive(at_others.status(*id)).unwrap());
    world.all_rest();
    world.cut_off(old);
    let (begun, mut under_lease, mut written) = (world.now(), 0, 0);
    while world.now() - begun < 2 * LONG_ELECTION {
        world.turns(MOMENT);
        under_lease += u32::from(read(led[0]).is_some());
        for group in &led {
            let is_replaced = world.leader(*group).is_some_and(|(_, leader)| leader != old);
            if !is_replaced || world.drive(at_others.of_group(*group).execute(&7_u64.to_le_bytes())).is_err() {
                continue;
            }
            written += 1;
            let (sum, after) = (read(*group), world.now() - begun);
            assert!(
                sum.is_none_or(|sum| sum >= 7),
                "group {group}: {sum:?} was read at the old leader {after:?} after the cut"
            );
        }
    }
    assert!(under_lease > 0 && written > 0, "{under_lease} reads under the lease, {written} writes by others");
}
