//! The scenarios.

use dunlin_sim::Fault;
use dunlin_sim::fault::FaultId;
use dunlin_trial::Random;

use super::harness::{Keeps, MILLISECOND, Seen, Shape, World};

/// Packet faults; one sequencer.
pub fn harmed_packets(seed: u64) -> Seen {
    let mut world = World::new(seed, Shape::draw(seed, Keeps::Nothing));
    world.harm_packets();
    world.run_for(100 * MILLISECOND);
    world.finish()
}

/// Hosts stop in turn, the sequencer's most often.
pub fn paused_hosts(seed: u64) -> Seen {
    let mut world = World::new(seed, Shape::draw(seed, Keeps::Nothing));
    let mut random = Random::new(seed ^ 0x9a5e);
    world.harm_packets();
    for _ in 0..6 {
        world.run_for(random.between(1, 20) * MILLISECOND);
        let hosts = world.shape.rpc_clients + world.shape.direct_clients;
        let host = if random.chance(50) { 0 } else { random.between(0, u64::from(hosts)) as u32 };
        let pause = world.datacenter.inject(Fault::Pause { host }).unwrap();
        world.run_for(random.between(1, 30) * MILLISECOND);
        world.datacenter.lift(pause);
    }
    world.finish()
}

/// The sequencer crashes, and restarts above all numbers that it handed out, as its operator must ensure.
pub fn restarts(seed: u64) -> Seen {
    let mut world = World::new(seed, Shape::draw(seed, Keeps::Nothing));
    let mut random = Random::new(seed ^ 0x4e57);
    world.harm_packets();
    for _ in 0..5 {
        world.run_for(random.between(1, 20) * MILLISECOND);
        let gap = if random.chance(30) { random.between(0, 3) << 32 } else { random.between(0, 100) };
        world.restart(0, random.between(0, 15_000) * 1000, gap);
    }
    world.run_for(20 * MILLISECOND);
    world.finish()
}

/// What a hunt saw.
pub struct Hunted {
    pub seen: Seen,
    /// How often a sequencer took office.
    pub taken: u64,
    /// How often one learned that it was fenced.
    pub fenced: u64,
    pub expired: u64,
    pub ranges: u64,
}

/// Several sequencers that reserve numbers on three replicas, which are of a cluster manager or of the reservations
/// alone: they crash and restart, stop, are cut off, and their
/// clocks run fast or slow; so do the replicas, which never lose their memory.
pub fn replicated(seed: u64, keeps: Keeps) -> Hunted {
    let mut world = World::new(seed, Shape::draw(seed, keeps));
    let mut random = Random::new(seed ^ 0x4a17);
    let shape = world.shape;
    // Long enough for one of them to serve.
    world.run_for(60 * MILLISECOND);
    let harm = random.chance(70).then(|| world.harm_packets());
    for host in 0..shape.replicas + shape.sequencers {
        if random.chance(50) {
            // Up to a tenth.
            let ppm = random.between(0, 200_000) as i32 - 100_000;
            world.datacenter.inject(Fault::ClockRate { host, ppm }).unwrap();
        }
    }
    let mut going_on: Vec<FaultId> = Vec::new();
    for _ in 0..random.between(5, 12) {
        world.run_for(random.between(1, 80) * MILLISECOND);
        if random.chance(60) {
            going_on.drain(..).for_each(|fault| world.datacenter.lift(fault));
        }
        let sequencer = random.between(0, u64::from(shape.sequencers) - 1) as u32;
        let replica = random.between(0, u64::from(shape.replicas) - 1) as u32;
        let host = world.host(sequencer);
        let replicas: Vec<u32> = (0..shape.replicas).collect();
        match random.between(0, 9) {
            0..=2 => world.restart(sequencer, random.between(0, 20_000) * 1000, 0),
            // Its clients reach it, but the replicas do not.
            3 | 4 => {
                going_on
                    .push(world.datacenter.inject(Fault::OneWay { from: vec![host], to: replicas.clone() }).unwrap());
                if random.chance(70) {
                    let back = Fault::OneWay { from: replicas, to: vec![host] };
                    going_on.push(world.datacenter.inject(back).unwrap());
                }
            }
            5 => going_on.push(world.datacenter.inject(Fault::Partition { hosts: vec![host] }).unwrap()),
            6 => going_on.push(world.datacenter.inject(Fault::Partition { hosts: vec![replica] }).unwrap()),
            7 => going_on.push(world.datacenter.inject(Fault::OneWay { from: replicas, to: vec![host] }).unwrap()),
            8 => going_on.push(world.datacenter.inject(Fault::Pause { host: replica }).unwrap()),
            _ => {
                let pause = world.datacenter.inject(Fault::Pause { host }).unwrap();
                world.run_for(random.between(1, 200) * MILLISECOND);
                world.datacenter.lift(pause);
            }
        }
    }
    going_on.into_iter().chain(harm).for_each(|fault| world.datacenter.lift(fault));
    world.run_for(250 * MILLISECOND);
    let keepers = world.keepers();
    let before = world.seen.borrow().drawn.len();
    world.run_for(100 * MILLISECOND);
    assert!(world.seen.borrow().drawn.len() > before, "seed {seed}: nobody serves at the end: {}", world.state());
    let (taken, fenced, expired, ranges) = (keepers.taken, keepers.fenced, keepers.expired, keepers.ranges);
    Hunted { seen: world.finish(), taken, fenced, expired, ranges }
}

/// A sequencer whose clock runs at a quarter of its rate, and which the cluster manager does not reach: it goes on in its
/// term when another one has taken office. Its clients reach both.
pub fn slow_clock(seed: u64) -> Seen {
    let mut world = World::new(seed, Shape { sequencers: 2, ..Shape::draw(seed, Keeps::Manager) });
    let mut random = Random::new(seed ^ 0x510c);
    world.run_for(150 * MILLISECOND);
    world.harm_packets();
    for _ in 0..3 {
        let slow = world.holder().unwrap_or(random.between(0, 1) as u32);
        let (host, replicas) = (world.host(slow), (0..world.shape.replicas).collect::<Vec<u32>>());
        let faults = [
            Fault::ClockRate { host, ppm: -750_000 },
            Fault::OneWay { from: vec![host], to: replicas.clone() },
            Fault::OneWay { from: replicas, to: vec![host] },
        ];
        let faults = faults.map(|fault| world.datacenter.inject(fault).unwrap());
        world.run_for(random.between(150, 250) * MILLISECOND);
        faults.into_iter().for_each(|fault| world.datacenter.lift(fault));
        world.run_for(random.between(100, 200) * MILLISECOND);
    }
    world.finish_without_clocks()
}
