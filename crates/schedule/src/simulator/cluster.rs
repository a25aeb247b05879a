//! The placement of partitions, and the choice of replicas.

use std::collections::VecDeque;

use super::random::Random;
use super::workload::partition;
use super::{ReplicaChoice, Setting};
use crate::replica::{C3Ranking, ChooseReplica, LeastOutstanding, RoundRobin, Told};

/// The replicas of all partitions.
#[derive(Debug)]
pub struct Placement {
    partitions: u32,
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
        Placement { partitions: setting.partitions, replicas: setting.replicas as usize, servers }
    }

    /// The partition of a key.
    pub fn partition(&self, key: u64) -> u32 {
        partition(key, self.partitions)
    }

    /// The servers with a replica of a partition.
    ///
    /// # Panics
    /// If there is no such partition.
    pub fn of(&self, partition: u32) -> &[u32] {
        let first = partition as usize * self.replicas;
        &self.servers[first..first + self.replicas]
    }
}

/// The state by which clients choose.
#[derive(Debug)]
pub(super) enum Chooser {
    Drawn(Random),
    DrawnPerOpset(Random),
    /// Each client for itself.
    Each(Clients),
}

/// The choices of all clients. A client learns of an answer when that has crossed the network.
#[derive(Debug)]
pub(super) struct Clients {
    choices: Vec<Box<dyn ChooseReplica>>,
    /// When it is known, its client and its server, and what it tells.
    answers: VecDeque<(u64, u32, u32, Told)>,
    random: Random,
}

/// The sequence of random numbers for choices.
const CHOICES: u64 = 1;

impl Chooser {
    pub fn new(setting: &Setting) -> Self {
        let random = Random::new(setting.seed, CHOICES);
        let &Setting { clients, servers, partitions, .. } = setting;
        let choice = || -> Box<dyn ChooseReplica> {
            match setting.choice {
                ReplicaChoice::LeastOutstanding => Box::new(LeastOutstanding::new(servers)),
                ReplicaChoice::C3 => Box::new(C3Ranking::new(servers, clients)),
                _ => Box::new(RoundRobin::new(partitions)),
            }
        };
        match setting.choice {
            ReplicaChoice::Drawn => Chooser::Drawn(random),
            ReplicaChoice::DrawnPerOpset => Chooser::DrawnPerOpset(random),
            ReplicaChoice::RoundRobin | ReplicaChoice::LeastOutstanding | ReplicaChoice::C3 => {
                let choices = std::iter::repeat_with(choice).take(clients as usize).collect();
                Chooser::Each(Clients { choices, answers: VecDeque::new(), random })
            }
        }
    }

    /// Whether one choice is made for a whole opset.
    pub fn is_per_opset(&self) -> bool {
        matches!(self, Chooser::DrawnPerOpset(_))
    }

    /// The replica for an operation that a client sends now.
    pub fn choose(&mut self, client: u32, partition: u32, replicas: &[u32], now: u64) -> u32 {
        match self {
            Chooser::Drawn(random) | Chooser::DrawnPerOpset(random) => {
                replicas[random.below(replicas.len() as u64) as usize]
            }
            Chooser::Each(clients) => clients.choose(client, partition, replicas, now),
        }
    }

    /// Records that a server has run an operation. Its client learns of it, and of `told`, at `known_at`.
    pub fn answered(&mut self, client: u32, server: u32, known_at: u64, told: Told) {
        if let Chooser::Each(clients) = self {
            clients.answers.push_back((known_at, client, server, told));
        }
    }
}

impl Clients {
    fn choose(&mut self, client: u32, partition: u32, replicas: &[u32], now: u64) -> u32 {
        while let Some((_, client, server, told)) =
            self.answers.front().copied().filter(|(known_at, ..)| *known_at <= now)
        {
            self.answers.pop_front();
            self.choices[client as usize].ended(server, 1, Some(&told));
        }
        let choice = &mut self.choices[client as usize];
        let server = choice.choose(partition, replicas, &mut |below| self.random.below(below));
        choice.sent(server, 1);
        server
    }
}
