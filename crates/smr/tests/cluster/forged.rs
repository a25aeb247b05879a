//! Messages that no replica sends, with the right cluster number and in the names of its members: impossible ones are
//! counted, and change nothing.

use std::time::Duration;

use dunlin_net::Addr;
use dunlin_net::random::Random;
use dunlin_rpc::{CallOptions, MsgBuf};
use dunlin_smr::wire;
use dunlin_smr::wire::response::Status;

use super::harness::{Cluster, ClusterOf, config};
use super::storage::Storage;

/// Longer than several elections.
pub const LONG: Duration = Duration::from_millis(200);

/// Raft's numbers of message types.
pub const APPEND: u64 = 3;
pub const ANSWER: u64 = 4;
pub const VOTE: u64 = 5;
pub const HEARTBEAT: u64 = 8;
const HEARTBEAT_ANSWER: u64 = 9;
const PRE_VOTE: u64 = 17;
pub const PRE_VOTE_ANSWER: u64 = 18;
const KINDS: [u64; 9] = [APPEND, ANSWER, VOTE, 6, HEARTBEAT, HEARTBEAT_ANSWER, 14, PRE_VOTE, PRE_VOTE_ANSWER];

/// A message as another replica would send it.
#[derive(Debug, Clone, Default)]
pub struct Forged {
    pub group: u16,
    pub kind: u64,
    pub reject: bool,
    pub to: u64,
    pub from: u64,
    pub term: u64,
    pub log_term: u64,
    pub index: u64,
    pub commit: u64,
    pub commit_term: u64,
    pub reject_hint: u64,
    /// The terms of its entries, which follow `index`.
    pub terms: Vec<u64>,
}

impl Forged {
    fn put(&self, bytes: &mut Vec<u8>) {
        let [low, high] = self.group.to_le_bytes();
        bytes.extend_from_slice(&[self.kind as u8, self.reject.into(), low, high, 0, 0, 0, 0]);
        let Forged { to, from, term, log_term, index, commit, commit_term, reject_hint, terms, .. } = self;
        let words = [to, from, term, log_term, index, commit, commit_term, reject_hint, &(terms.len() as u64)];
        words.into_iter().for_each(|word| bytes.extend_from_slice(&word.to_le_bytes()));
        for (number, term) in terms.iter().enumerate() {
            bytes.extend_from_slice(&[0; 8]);
            bytes.extend_from_slice(&term.to_le_bytes());
            bytes.extend_from_slice(&index.wrapping_add(number as u64 + 1).to_le_bytes());
        }
    }

    /// Sends it to its receiver; returns the cluster in the answer, if there is one.
    pub fn send(&self, cluster: &Cluster, number: u64) -> Option<u64> {
        send_all(cluster, number, std::slice::from_ref(self))
    }
}

/// Puts messages for one replica into one envelope, from the first message's sender.
pub fn envelope(messages: &[Forged], cluster: u64) -> MsgBuf {
    let mut bytes = vec![wire::VERSION, 0];
    bytes.extend_from_slice(&(messages.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&cluster.to_le_bytes());
    bytes.extend_from_slice(&messages[0].from.to_le_bytes());
    messages.iter().for_each(|message| message.put(&mut bytes));
    MsgBuf::written(bytes.len(), |out| {
        out.copy_from_slice(&bytes);
        bytes.len()
    })
    .unwrap()
}

/// Sends messages to their common receiver; returns the cluster in the answer, if there is one.
pub fn send_all<S: Storage>(cluster: &ClusterOf<S>, number: u64, messages: &[Forged]) -> Option<u64> {
    let work = async {
        let session = cluster.endpoint.connect(&Addr::Node(messages[0].to as u32)).await.unwrap();
        let options = CallOptions::timeout(Duration::from_millis(20));
        let answer = session.call_with(wire::PEER, envelope(messages, number), options).await.ok()?;
        Some(u64::from_le_bytes(answer.response[8..16].try_into().unwrap()))
    };
    cluster.drive(work)
}

/// Returns a cluster whose replicas all have the same entries, its number, its leader, and its followers.
fn settled() -> (Cluster, u64, u64, [u64; 2]) {
    let cluster = Cluster::new(3, config());
    cluster.put("a", b"1").unwrap();
    let leader = cluster.leader();
    cluster.turns(LONG);
    assert_eq!(cluster.leader(), leader);
    let number = cluster.node(1).status().cluster.unwrap().bits();
    (cluster, number, leader, [leader % 3 + 1, (leader + 1) % 3 + 1])
}

/// Sends it, and checks that it is counted and changes nothing.
fn is_refused(cluster: &Cluster, number: u64, forged: &Forged) {
    let look = || {
        let status = cluster.node(forged.to).status();
        (status.term, status.last, status.committed, status.role, cluster.node(forged.to).failure())
    };
    let (before, bad) = (look(), cluster.node(forged.to).counters().bad);
    forged.send(cluster, number);
    assert_eq!(look(), before, "{forged:?}");
    assert_eq!(cluster.node(forged.to).counters().bad, bad + 1, "{forged:?}");
}

#[test]
fn one_forged_heartbeat_stops_nobody() {
    let cluster = Cluster::new(3, config());
    cluster.put("a", b"1").unwrap();
    cluster.until("all have it", |cluster| (1..=3).all(|id| cluster.local(id, "a").is_some()));
    let number = cluster.node(1).status().cluster.unwrap().bits();
    for id in 1..=3 {
        let Status { term, leader, last, .. } = cluster.node(id).status();
        let from = leader.filter(|leader| *leader != id).unwrap_or(id % 3 + 1);
        // In the leader's term and in a later one: this replica is said to have more than it has.
        for term in [term, term + 1] {
            Forged { kind: HEARTBEAT, to: id, from, term, commit: last + 1, ..Forged::default() }
                .send(&cluster, number);
            cluster.turns(LONG);
            assert_eq!(cluster.node(id).failure(), None);
        }
    }
    cluster.put("a", b"2").unwrap();
    assert_eq!((1..=3).find_map(|id| cluster.node(id).failure()), None);
}

fn all_execute(cluster: &Cluster, value: &[u8]) {
    cluster.put("a", value).unwrap();
    cluster.until("all have it", |cluster| (1..=3).all(|id| cluster.local(id, "a").as_deref() == Some(value)));
}

/// One after the other they would raise the term so far that no other replica believes this one.
#[test]
fn forged_terms_cut_nobody_off() {
    let (cluster, number, leader, others) = settled();
    for to in others {
        let term = cluster.node(to).status().term;
        let beat = |more| Forged { kind: HEARTBEAT, to, from: leader, term: term + more, ..Forged::default() };
        send_all(&cluster, number, &[beat(1 << 32), beat(1 << 33), beat(3 << 32)]);
        cluster.turns(LONG);
    }
    all_execute(&cluster, b"2");
}

/// Each raises the term by as much as a message may, again and again, until no replica believes another's messages.
#[test]
fn replicas_whose_terms_are_far_apart_find_together() {
    let (cluster, number, ..) = settled();
    for to in 1..=3 {
        let (term, from) = (cluster.node(to).status().term, to % 3 + 1);
        let beat = |steps: u64| Forged { kind: HEARTBEAT, to, from, term: term + (steps << 16), ..Forged::default() };
        send_all(&cluster, number, &(1..=3 * to).map(beat).collect::<Vec<_>>());
        assert!(cluster.node(to).status().term >= term + ((3 * to) << 16));
    }
    all_execute(&cluster, b"2");
    assert!((1..=3).all(|id| cluster.node(id).status().term >= 9 << 16));
}

/// A log on disk would reject them, and stop because of that.
#[test]
fn entries_whose_terms_fall_or_are_later_than_their_leader_are_dropped() {
    let cluster = Cluster::new(3, config());
    cluster.put("a", b"1").unwrap();
    cluster.turns(LONG);
    let leader = cluster.leader();
    let id = leader % 3 + 1;
    let Status { cluster: number, term, last, .. } = cluster.node(id).status();
    let number = number.unwrap().bits();
    for terms in [[term, term - 1], [term - 1, term], [term, term + 1], [0, term]] {
        let before = cluster.node(id).counters().bad;
        let append =
            Forged { kind: APPEND, to: id, from: leader, term, log_term: term, index: last, ..Forged::default() };
        Forged { commit: last, terms: terms.to_vec(), ..append }.send(&cluster, number);
        assert_eq!((cluster.node(id).counters().bad, cluster.node(id).status().last), (before + 1, last), "{terms:?}");
    }
    cluster.put("a", b"2").unwrap();
}

/// The library finds term 0 at every index after its log: with that term, it would believe that it has what it lacks.
#[test]
fn an_append_behind_the_log_is_refused_whatever_its_term() {
    let (cluster, number, leader, [id, _]) = settled();
    let Status { term, last, .. } = cluster.node(id).status();
    let append = Forged { kind: APPEND, to: id, from: leader, term, ..Forged::default() };
    // It is asked to commit what it lacks; to leave a gap; to acknowledge what it lacks.
    is_refused(&cluster, number, &Forged { index: last + 5, commit: last + 3, ..append.clone() });
    is_refused(&cluster, number, &Forged { index: last + 5, terms: vec![term], ..append.clone() });
    is_refused(&cluster, number, &Forged { index: last + 5, terms: vec![0], ..append.clone() });
    is_refused(&cluster, number, &Forged { index: last + 1, ..append.clone() });
    // The same in a later term.
    is_refused(&cluster, number, &Forged { index: last + 5, commit: last + 3, term: term + 1, ..append });
    cluster.put("a", b"2").unwrap();
    cluster.until("it has it", |cluster| cluster.local(id, "a").as_deref() == Some(&b"2"[..]));
}

/// For both followers, as many as fit.
#[test]
fn forged_rejections_starve_no_follower() {
    let (cluster, number, leader, others) = settled();
    let Status { term, last, .. } = cluster.node(leader).status();
    for from in others {
        let answer = Forged { kind: ANSWER, reject: true, to: leader, from, term, ..Forged::default() };
        for (index, reject_hint, log_term) in
            [(last, u64::MAX, 0), (last, u64::MAX, term), (last + 1, last, term), (last, last, term + 1)]
        {
            is_refused(&cluster, number, &Forged { index, reject_hint, log_term, ..answer.clone() });
        }
        // If a message is of an earlier term, nothing else is checked.
        let late = Forged { index: last, reject_hint: u64::MAX, log_term: 1, term: term - 1, ..answer.clone() };
        late.send(&cluster, number);
        // Possible messages.
        for index in 0..=last {
            Forged { index, ..answer.clone() }.send(&cluster, number);
        }
    }
    cluster.put("a", b"2").unwrap();
    cluster.until("all have it", |cluster| (1..=3).all(|id| cluster.local(id, "a").as_deref() == Some(&b"2"[..])));
    assert_eq!(cluster.leader(), leader);
}

/// Each claims something that no replica can claim, in the present term and the next.
#[test]
fn what_is_impossible_is_refused() {
    let (cluster, number, leader, [id, _]) = settled();
    let Status { term, last, .. } = cluster.node(id).status();
    let follower =
        Forged { to: id, from: leader, term, log_term: term, index: last, commit: last, ..Forged::default() };
    for term in [term, term + 1] {
        let vote = |kind, log_term, index, commit| Forged { kind, term, log_term, index, commit, ..follower.clone() };
        for kind in [VOTE, PRE_VOTE] {
            for forged in [
                vote(kind, term, last, last),
                vote(kind, 0, last, last),
                vote(kind, 1, 0, 0),
                vote(kind, 1, last, last + 1),
            ] {
                is_refused(&cluster, number, &forged);
            }
            is_refused(&cluster, number, &Forged { commit_term: term, ..vote(kind, term - 1, last, last) });
        }
        for kind in KINDS.into_iter().filter(|kind| *kind != APPEND) {
            is_refused(&cluster, number, &Forged { kind, term, terms: vec![term], ..follower.clone() });
        }
    }
    for kind in KINDS {
        is_refused(&cluster, number, &Forged { kind, from: 0, ..follower.clone() });
        is_refused(&cluster, number, &Forged { kind, term: u64::MAX, ..follower.clone() });
    }
    let answer = Forged { to: leader, from: id, log_term: 0, ..follower };
    for kind in [ANSWER, HEARTBEAT_ANSWER] {
        is_refused(&cluster, number, &Forged { kind, commit: last + 1, ..answer.clone() });
    }
    is_refused(&cluster, number, &Forged { kind: ANSWER, index: last + 1, ..answer });
    cluster.put("a", b"2").unwrap();
    assert_eq!(cluster.leader(), leader);
}

/// Messages of all types, with every field near the truth or far from it. Some are possible, and may mislead replicas,
/// but must not stop them. `DUNLIN_SEEDS=10000` tries more.
#[test]
fn stray_messages_stop_nobody_whatever_they_say() {
    for seed in 0..std::env::var("DUNLIN_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(60) {
        let mut random = Random::new(seed);
        let cluster = Cluster::new(3, config());
        cluster.put("a", b"1").unwrap();
        let number = cluster.node(1).status().cluster.unwrap().bits();
        for _ in 0..40 {
            let to = random.between(1, 3);
            let Status { term, last, committed, .. } = cluster.node(to).status();
            let kind = KINDS[random.below(KINDS.len() as u64) as usize];
            let mut mostly = |value: u64| if random.below(5) > 0 { value } else { random.next() };
            let (said, from) = (mostly(number), mostly(to % 3 + 1));
            let mut near = |value: u64| match random.below(9) {
                0 => random.next(),
                1 => u64::MAX,
                2 => 0,
                3 => committed,
                4 => value.saturating_add(1 << random.below(40)),
                _ => value.saturating_add(random.below(4)).saturating_sub(1),
            };
            let [term, log_term, commit_term] = [term; 3].map(&mut near);
            let [index, commit, reject_hint] = [last; 3].map(&mut near);
            let terms = (0..near(1) % 3).map(|_| near(log_term)).collect();
            let reject = random.below(2) == 0;
            let forged = Forged {
                group: 0,
                kind,
                reject,
                to,
                from,
                term,
                log_term,
                index,
                commit,
                commit_term,
                reject_hint,
                terms,
            };
            let answer = forged.send(&cluster, said);
            assert!(said == number || answer == Some(number), "seed {seed}: it is told which cluster this is");
        }
        cluster.turns(LONG);
        for id in 1..=3 {
            assert_eq!(cluster.node(id).failure(), None, "seed {seed}");
        }
        cluster.put("b", b"1").unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}
