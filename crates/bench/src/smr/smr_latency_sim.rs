//! `smr-latency-sim`: Table 6 in the paper's cluster. Writes of one client, one at a time, to three replicas that keep
//! everything in memory, each on its own host.
//!
//! First, the CPU time of replicas and a client on this machine is measured for each kind of work, over shared memory.
//! Then the same code runs on simulated hosts, which are charged that time, and for packets the costs of the paper's
//! cluster. The charges are averages, so every write takes the same time: there is a median and no distribution.

use std::rc::Rc;
use std::time::Duration;

use dunlin_lab::measure::Percentiles;
use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_net::Addr;
use dunlin_rpc::EndpointConfig;
use dunlin_sim::{CostModel, Datacenter, Topology};
use dunlin_smr::{MemoryLog, Probe, Stage};

use super::smr_runs::{self, Ask};
use crate::datacenter::Cluster;
use crate::rpc::roles::Carrier;
use crate::smr::replication::{Both, Charges, Group, KEYS, LeaderCommits, Puts, Replica, StageTimes};
use crate::smr::roles::{Storage, Watch};
use crate::{BenchError, Lab, Trial};

const REPLICAS: u32 = 3;
/// Required medians, in nanoseconds.
const CLIENT_MAX: f64 = 8_000.0;
const LEADER_MAX: f64 = 5_000.0;
/// Virtual time for each second of the run length, and its minimum: a few writes.
const TIME: Duration = Duration::from_millis(100);
const TIME_MIN: u64 = 1_000_000;
/// Virtual time limit of an election, and the interval of checks.
const ELECTION_MAX: u64 = 10_000_000_000;
const LOOK: u64 = 1_000_000;
/// Time of the first writes, which is not counted: sessions are opened.
const WARM_UP: u64 = 1_000_000;
/// The writes from which the costs are measured, over shared memory.
const MEASURED: Ask =
    Ask { carrier: Carrier::Shm, storage: Storage::Memory, groups: 1, window: 1, keys: KEYS, snapshot_entries: None };

/// CPU time of each side, for each run of each stage.
struct Costs {
    leader: StageTimes,
    follower: StageTimes,
    client: StageTimes,
}

/// The result of one run.
struct Seen {
    client: Percentiles,
    leader: Percentiles,
}

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let (figures, seen) = smr_runs::load(lab, MEASURED, Watch::Stages)?;
    let commits = seen.commits as f64;
    let costs = Costs { leader: seen.leader, follower: seen.followers, client: figures.client };
    lab.expect_simulations(2);
    for (case, costs) in [("client and leader", Some(&costs)), ("processors that take no time for replication", None)] {
        let (time, keys) = (lab.virtual_time(TIME).max(TIME_MIN), lab.items(KEYS));
        let seen = lab.simulate(case, |trial| measure(trial, costs, keys, time))?;
        let row = |who: &str, metric, figure: fn(&Seen) -> f64| {
            let name = if costs.is_some() { who.to_owned() } else { format!("{who}, without CPU time of replication") };
            RowBuilder::of_seeds(name, metric, &seen.iter().map(figure).collect::<Vec<_>>())
        };
        let (client, leader) = (
            row("client", Metric::LatencyP50, |seen| seen.client.p50)?,
            row("leader", Metric::LatencyP50, |seen| seen.leader.p50)?,
        );
        if costs.is_none() {
            lab.push(client);
            lab.push(leader);
            continue;
        }
        lab.push(client.target(Target::Absolute(CLIENT_MAX)));
        lab.push(leader.target(Target::Absolute(LEADER_MAX)));
    }
    let each = |times: &StageTimes| {
        let part = |stage: Stage| format!("{stage:?} {:.0}", times.total(stage) / commits);
        Stage::ALL.map(part).join(", ")
    };
    lab.note(format!(
        "CPU time of this machine for a write, in nanoseconds. Leader: {}. Both followers: {}. Client, beside its endpoint: {:.0}.",
        each(&costs.leader),
        each(&costs.follower),
        costs.client.sum() / commits
    ));
    Ok(())
}

fn measure(trial: Trial<'_>, costs: Option<&Costs>, keys: u64, time: u64) -> Result<Seen, BenchError> {
    let mut cluster = Cluster::of_trial(trial, &Topology::cx5(), CostModel::default())?;
    let members: Vec<(u64, Addr)> =
        (0..REPLICAS).map(|host| (u64::from(host) + 1, Datacenter::addr(host, 0))).collect();
    let group = Group::new(members, keys);
    let mut replicas: Vec<(Replica<MemoryLog>, Rc<Charges>, Rc<LeaderCommits>)> = Vec::new();
    for host in 0..REPLICAS {
        let member = cluster.join(host, 0, EndpointConfig::default())?;
        let clock = member.clock();
        let charges = Charges::new(member.clock());
        let commits = LeaderCommits::new(move || clock.now());
        let probe: Rc<dyn Probe> = Rc::new(Both(charges.clone(), commits.clone()));
        let clock = member.clock();
        let config = group.config(u64::from(host) + 1, Rc::new(move || clock.now()));
        let config = dunlin_smr::NodeConfig { seed: Some(cluster.random().next()), ..config };
        let replica = group.start(&member.share_endpoint(), config, vec![MemoryLog::new()], Some(probe))?;
        replicas.push((replica, charges, commits));
    }
    trial.run_until(&mut cluster, (LOOK, ELECTION_MAX), "nobody led", || {
        let is_led = replicas.iter().any(|(replica, ..)| replica.leads());
        is_led && replicas.iter().all(|(replica, ..)| replica.is_up_to_date())
    })?;
    let client = cluster.join(REPLICAS, 0, EndpointConfig::default())?;
    let charges = Charges::new(client.clock());
    if let Some(costs) = costs {
        charges.set(&costs.client);
        for (replica, charges, _) in &replicas {
            charges.set(if replica.leads() { &costs.leader } else { &costs.follower });
        }
    }
    let clock = client.clock();
    let random = cluster.random();
    let puts = Puts::start(&client.share_endpoint(), &group, 1, random, move || clock.now(), Some(charges));
    client.spawn(async { Ok(()) });
    trial.run_for(&mut cluster, WARM_UP)?;
    puts.take();
    replicas.iter().for_each(|(.., commits)| _ = commits.take());
    trial.run_for(&mut cluster, time)?;
    puts.stop();
    puts.check()?;
    replicas.iter().try_for_each(|(replica, ..)| replica.check())?;
    let leader = replicas.iter().find(|(replica, ..)| replica.leads()).ok_or(BenchError::no_samples("a leader"))?;
    let seen = Seen { client: puts.take().latencies.percentiles()?, leader: leader.2.take().percentiles()? };
    trial.run_until(&mut cluster, (LOOK, ELECTION_MAX), "writes did not end", || puts.has_ended())?;
    Ok(seen)
}
