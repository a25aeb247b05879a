//! The placement of partitions, and the choice of replicas.

use std::collections::VecDeque;

use super::random::Random;
use super::{ReplicaChoice, Setting};

/// The replicas of all partitions.
#[derive(Debug)]
pub(super) struct Placement {
    replicas: usize,
    servers: Vec<u32>,
}

impl Placement {
    /// Partition `p` is on the servers from `p` on, modulo their number, so that loads are even if possible.
    pub fn new(setting: &Setting) -> Self {
        let servers = (0..setting.partitions)
            .flat_map(|partition| (0..setting.replicas).map(move |replica| (partition, replica)))
            .map(|(partition, replica)| (partition % setting.servers + replica) % setting.servers)
            .collect();
        Placement { replicas: setting.replicas as usize, servers }
    }

    pub fn of(&self, partition: u32) -> &[u32] {
        let first = partition as usize * self.replicas;
        &self.servers[first..first + self.replicas]
    }
}

/// The state by which clients choose.
#[derive(Debug)]
pub(super) enum Chooser {
    /// For each client and partition, the number of its operations so far.
    RoundRobin {
        partitions: usize,
        turns: Vec<u16>,
    },
    Drawn(Random),
    DrawnPerOpset(Random),
    Ranked(Ranking),
}

/// The outstanding operations of each client at each server and, for C3, the feedback from answers. A client learns of
/// an answer when that has crossed the network.
#[derive(Debug)]
pub(super) struct Ranking {
    clients: usize,
    servers: usize,
    counts: Vec<u32>,
    /// Averages; empty for least outstanding.
    told: Vec<Told>,
    answers: VecDeque<(u64, usize, Told)>,
    random: Random,
}

/// The server state in an answer: times in nanoseconds, and the operations that wait or run there.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Told {
    pub response: f64,
    pub service: f64,
    pub backlog: f64,
}

/// Weight of the last answer in C3's averages, as in its implementation.
const LAST: f64 = 0.9;

/// The sequence of random numbers for choices.
const CHOICES: u64 = 1;

impl Chooser {
    pub fn new(setting: &Setting) -> Self {
        let random = Random::new(setting.seed, CHOICES);
        let (clients, servers, partitions) =
            (setting.clients as usize, setting.servers as usize, setting.partitions as usize);
        match setting.choice {
            ReplicaChoice::RoundRobin => Chooser::RoundRobin { partitions, turns: vec![0; clients * partitions] },
            ReplicaChoice::Drawn => Chooser::Drawn(random),
            ReplicaChoice::DrawnPerOpset => Chooser::DrawnPerOpset(random),
            ReplicaChoice::LeastOutstanding | ReplicaChoice::C3 => Chooser::Ranked(Ranking {
                clients,
                servers,
                counts: vec![0; clients * servers],
                told: if setting.choice == ReplicaChoice::C3 {
                    vec![Told::default(); clients * servers]
                } else {
                    Vec::new()
                },
                answers: VecDeque::new(),
                random,
            }),
        }
    }

    /// Whether one choice is made for a whole opset.
    pub fn is_per_opset(&self) -> bool {
        matches!(self, Chooser::DrawnPerOpset(_))
    }

    /// The replica for an operation that a client sends now.
    pub fn choose(&mut self, client: u32, partition: u32, replicas: &[u32], now: u64) -> u32 {
        match self {
            Chooser::RoundRobin { partitions, turns } => {
                let turn = &mut turns[client as usize * *partitions + partition as usize];
                let server = replicas[usize::from(*turn) % replicas.len()];
                *turn = ((usize::from(*turn) + 1) % replicas.len()) as u16;
                server
            }
            Chooser::Drawn(random) | Chooser::DrawnPerOpset(random) => {
                replicas[random.below(replicas.len() as u64) as usize]
            }
            Chooser::Ranked(ranking) => ranking.choose(client, replicas, now),
        }
    }

    /// Records that a server has run an operation. Its client learns of it, and of `told`, at `known_at`.
    pub fn answered(&mut self, client: u32, server: u32, known_at: u64, told: Told) {
        if let Chooser::Ranked(ranking) = self {
            ranking.answers.push_back((known_at, client as usize * ranking.servers + server as usize, told));
        }
    }
}

impl Ranking {
    fn choose(&mut self, client: u32, replicas: &[u32], now: u64) -> u32 {
        while let Some((_, place, told)) = self.answers.front().copied().filter(|(known_at, ..)| *known_at <= now) {
            self.answers.pop_front();
            self.counts[place] -= 1;
            if let Some(average) = self.told.get_mut(place) {
                average.add(told);
            }
        }
        // Among equals, a random one: all clients would read a fixed one.
        let first = self.random.below(replicas.len() as u64) as usize;
        let in_turn = (0..replicas.len()).map(|step| replicas[(first + step) % replicas.len()]);
        let place = |server: u32| client as usize * self.servers + server as usize;
        let server =
            in_turn.min_by(|a, b| self.score(place(*a)).total_cmp(&self.score(place(*b)))).unwrap_or(replicas[0]);
        let place = place(server);
        self.counts[place] += 1;
        server
    }

    /// The lower, the better: outstanding operations, or C3's score (Suresh et al., NSDI 2015, section 3.1), in which
    /// each client assumes that all others are as busy as itself.
    fn score(&self, place: usize) -> f64 {
        let outstanding = f64::from(self.counts[place]);
        let Some(told) = self.told.get(place) else { return outstanding };
        let queue = 1.0 + outstanding * self.clients as f64 + told.backlog;
        told.response - told.service + queue.powi(3) * told.service
    }
}

impl Told {
    /// Adds another answer. The first one counts in full.
    fn add(&mut self, told: Told) {
        let weight = if self.service == 0.0 { 1.0 } else { LAST };
        let mix = |average: f64, last: f64| weight * last + (1.0 - weight) * average;
        self.response = mix(self.response, told.response);
        self.service = mix(self.service, told.service);
        self.backlog = mix(self.backlog, told.backlog);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chooser(choice: ReplicaChoice) -> Chooser {
        Chooser::new(&Setting { clients: 2, servers: 3, partitions: 1, choice, ..Setting::default() })
    }

    #[test]
    fn the_least_outstanding_is_read() {
        let mut chooser = chooser(ReplicaChoice::LeastOutstanding);
        let mut chosen = [(); 3].map(|()| chooser.choose(1, 0, &[0, 1, 2], 0));
        chosen.sort_unstable();
        assert_eq!(chosen, [0, 1, 2]);
        chooser.answered(1, 2, 10, Told::default());
        assert_eq!(chooser.choose(1, 0, &[0, 1, 2], 10), 2);
    }

    #[test]
    fn c3_reads_where_answers_tell_of_short_queues() {
        let mut chooser = chooser(ReplicaChoice::C3);
        for (server, backlog, service) in [(0, 9.0, 1.0), (1, 2.0, 1.0), (2, 2.0, 4.0)] {
            assert_eq!(chooser.choose(1, 0, &[server], 0), server);
            chooser.answered(1, server, 1, Told { response: 10.0, service, backlog });
        }
        assert_eq!(chooser.choose(1, 0, &[0, 1, 2], 1), 1);
        // It assumes that the other client has as many outstanding: queues of 5, 7 and 9 are shorter than 10, 11 is
        // not.
        assert_eq!([(); 4].map(|()| chooser.choose(1, 0, &[0, 1], 1)), [1, 1, 1, 0]);
    }
}
