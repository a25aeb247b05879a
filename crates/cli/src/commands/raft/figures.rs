//! The counters of a replica, as metrics.

use dunlin_serve::metrics::{Family, Kind};
use dunlin_smr::wire::response::{Role, Status};
use dunlin_smr::{Counters, Host, LogStore, StateMachine};

/// A counter of a group, or of all groups of the process.
type Count = fn(&Counters) -> u64;

/// Counters that each group has.
const OF_GROUPS: [(&str, Count); 17] = [
    ("proposed", |counters| counters.proposed),
    ("applied", |counters| counters.applied),
    ("reads", |counters| counters.reads),
    ("lease_reads", |counters| counters.lease_reads),
    ("follower_reads", |counters| counters.follower_reads),
    ("index_questions", |counters| counters.index_questions),
    ("kept_answered", |counters| counters.kept_answered),
    ("kept_swept", |counters| counters.kept_swept),
    ("elected", |counters| counters.elected),
    ("pushed_back", |counters| counters.pushed_back),
    ("bad", |counters| counters.bad),
    ("foreign", |counters| counters.foreign),
    ("snapshots_taken", |counters| counters.snapshots_taken),
    ("snapshots_sent", |counters| counters.snapshots_sent),
    ("snapshots_restored", |counters| counters.snapshots_restored),
    ("snapshots_rejected", |counters| counters.snapshots_rejected),
    ("left_unread", |counters| counters.left_unread),
];

/// Counters that all groups have in common.
const OF_ALL: [(&str, Count); 2] =
    [("envelopes", |counters| counters.envelopes), ("messages", |counters| counters.messages)];

/// The metrics of all groups of a replica together. Reads each group.
pub fn families<M: StateMachine + 'static, L: LogStore + 'static>(host: &Host<M, L>) -> Vec<Family> {
    let groups = host.nodes().map(|node| (node.status(), node.counters()));
    let (statuses, counters): (Vec<Status>, Vec<Counters>) = groups.unzip();
    let mut all = of_statuses(&statuses);
    let gauge = |name, help, value| Family::one(Kind::Gauge, name, help, value);
    all.extend([
        gauge(
            "kept_questions",
            "Questions that wait until there is an answer.",
            sum(&counters, |of| of.kept_questions),
        ),
        gauge("groups", "Groups of which it has a replica.", statuses.len() as u64),
        gauge("groups_led", "Groups that it leads.", host.led() as u64),
        gauge("groups_resting", "Groups that have nothing to do.", host.resting() as u64),
    ]);
    let of_groups = OF_GROUPS.map(|(name, count)| (name, sum(&counters, count)));
    // They share a disk, so each counts the same hang.
    let disk_hangs = counters.iter().map(|of| of.disk_hangs).max().unwrap_or(0);
    let of_all = OF_ALL.map(|(name, count)| (name, counters.first().map_or(0, count)));
    let help = "Counts of the replica, by their names in the documentation of dunlin_smr.";
    all.push(Family::events("events", help, of_groups.into_iter().chain([("disk_hangs", disk_hangs)]).chain(of_all)));
    all
}

fn of_statuses(all: &[Status]) -> Vec<Family> {
    let gauge = |name, help, value| Family::one(Kind::Gauge, name, help, value);
    let most = |of: fn(&Status) -> usize| all.iter().map(of).max().unwrap_or(0) as u64;
    let is_any = |holds: fn(&Status) -> bool| all.iter().any(holds).into();
    let fewest = |of: fn(&Status) -> usize| all.iter().map(of).min().unwrap_or(0) as u64;
    vec![
        gauge("is_leader", "1 if this replica leads a group, else 0.", is_any(|of| of.role == Role::Leader)),
        gauge("term", "The highest term of a group.", all.iter().map(|of| of.term).max().unwrap_or(0)),
        gauge(
            "committed_entry",
            "Last entry of the log that it knows is committed, summed over groups.",
            sum(all, |of| of.committed),
        ),
        gauge(
            "applied_entry",
            "Last entry of the log that it has executed, summed over groups.",
            sum(all, |of| of.applied),
        ),
        gauge("first_entry", "First entry of the log that it still has, summed over groups.", sum(all, |of| of.first)),
        gauge("voters", "Replicas with a vote, of the group with the fewest.", fewest(|of| of.voters.len())),
        gauge("learners", "Replicas without one, of the group with the most.", most(|of| of.learners.len())),
        gauge("client_sessions", "Sessions of clients, of all groups.", sum(all, |of| of.sessions)),
        gauge("disk_hangs_now", "1 while a write or flush takes too long, else 0.", is_any(|of| of.disk_hangs)),
    ]
}

fn sum<T>(all: &[T], of: impl Fn(&T) -> u64) -> u64 {
    all.iter().map(of).sum()
}
