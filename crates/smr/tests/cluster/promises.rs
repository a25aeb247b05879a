//! A follower's promise to its leader: to vote for nobody else for an election timeout.

use std::time::Duration;

use dunlin_smr::wire::response::{Role, Status};

use super::forged::{Forged, HEARTBEAT, LONG, PRE_VOTE_ANSWER, VOTE, send_all};
use super::harness::{Cluster, config};

/// A follower that just heard from its leader, and the only two others, which stand still from now on: its leader, and
/// a candidate that will ask for its vote.
struct Promised {
    cluster: Cluster,
    number: u64,
    follower: u64,
    leader: u64,
    candidate: u64,
}

fn promised() -> Promised {
    let mut cluster = Cluster::new(3, config());
    cluster.put("a", b"1").unwrap();
    let leader = cluster.leader();
    cluster.turns(LONG);
    let number = cluster.status(leader).cluster.unwrap().bits();
    let (follower, candidate) = (leader % 3 + 1, (leader + 1) % 3 + 1);
    let log = cluster.status(follower);
    assert_eq!((log.leader, log.last), (Some(leader), cluster.status(candidate).last));
    cluster.put("a", b"2").unwrap();
    cluster.paused = vec![leader];
    Promised { cluster, number, follower, leader, candidate }
}

impl Promised {
    /// The candidate asks the follower for its vote in this term; returns whether it gets it.
    fn is_voted_for(&self, term: u64) -> bool {
        let Status { term: log_term, last, .. } = self.cluster.status(self.leader);
        let vote = Forged {
            kind: VOTE,
            to: self.follower,
            from: self.candidate,
            term,
            log_term,
            index: last,
            ..Forged::default()
        };
        vote.send(&self.cluster, self.number);
        let voted = self.cluster.node(self.follower).with_log(|log| log.hard_state().clone());
        (voted.term, voted.vote) == (term, self.candidate)
    }

    /// The follower is in this term, and knows no leader.
    fn has_no_leader_in(&self, term: u64) {
        let status = self.cluster.status(self.follower);
        assert_eq!((status.term, status.leader, status.role), (term, None, Role::Follower));
    }

    /// It keeps its promise in this term, and no longer than it must.
    fn keeps_its_promise_in(mut self, term: u64) {
        self.cluster.paused.push(self.candidate);
        self.has_no_leader_in(term);
        for _ in 0..5 {
            assert!(!self.is_voted_for(term), "its leader has a lease");
            self.cluster.turns(Duration::from_millis(1));
        }
        self.cluster.turns(Duration::from_millis(20));
        assert!(self.is_voted_for(term), "it has promised no more");
    }
}

/// It asked for pre-votes just before it heard from its leader again, and one of the replicas that it asked was a term
/// ahead.
#[test]
fn a_late_rejection_of_a_later_term_ends_no_promise() {
    let promised = promised();
    let (to, from) = (promised.follower, promised.candidate);
    let term = promised.cluster.status(to).term + 1;
    let late = Forged { kind: PRE_VOTE_ANSWER, reject: true, to, from, term, ..Forged::default() };
    late.send(&promised.cluster, promised.number);
    promised.keeps_its_promise_in(term);
}

/// It learns from a member that the member is in a term far ahead, and adopts that.
#[test]
fn a_term_far_ahead_ends_no_promise() {
    let promised = promised();
    let (to, from) = (promised.follower, promised.candidate);
    let term = promised.cluster.status(from).term;
    let beat = |to: u64, from: u64, term: u64| Forged { kind: HEARTBEAT, to, from, term, ..Forged::default() };
    let raised = [1, 2].map(|steps| beat(from, to, term + (steps << 16)));
    send_all(&promised.cluster, promised.number, &raised);
    beat(to, from, term + (2 << 16)).send(&promised.cluster, promised.number);
    promised.cluster.until("it has asked", |cluster| cluster.status(to).term > term);
    promised.keeps_its_promise_in(term + (2 << 16));
}
