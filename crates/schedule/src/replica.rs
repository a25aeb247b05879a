//! The choice of the replica that a client reads from.

use std::fmt::Debug;

/// Chooses the replica that a client reads a partition from. Each client has one: what it knows is its own.
pub trait ChooseReplica: Debug {
    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// Chooses one of `replicas`, numbers of servers, which are not empty. `draw(n)` returns a random number below `n`.
    fn choose(&mut self, partition: u32, replicas: &[u32], draw: &mut dyn FnMut(u64) -> u64) -> u32;

    /// Records operations that were sent to a server.
    fn sent(&mut self, _server: u32, _operations: u32) {}

    /// Records that operations which were sent to a server have ended, and what its answer told; `None` if there was no
    /// answer.
    fn ended(&mut self, _server: u32, _operations: u32, _told: Option<&Told>) {}
}

/// What an answer tells of its server: times in nanoseconds, and the operations that wait or run there.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Told {
    /// From sending until the answer.
    pub response: f64,
    /// Of this, the time in which the server worked on it. Use `response` if the answer does not tell it.
    pub service: f64,
    /// Operations that wait or run at the server; 0 if the answer does not tell it.
    pub backlog: f64,
}

/// Round robin over the replicas of each partition.
#[derive(Debug, Clone)]
pub struct RoundRobin {
    turns: Vec<u16>,
}

impl RoundRobin {
    /// For a cluster with this many partitions. Takes 2 bytes for each.
    pub fn new(partitions: u32) -> RoundRobin {
        RoundRobin { turns: vec![0; partitions as usize] }
    }
}

impl ChooseReplica for RoundRobin {
    fn name(&self) -> &'static str {
        "round robin"
    }

    fn choose(&mut self, partition: u32, replicas: &[u32], _: &mut dyn FnMut(u64) -> u64) -> u32 {
        let turn = &mut self.turns[partition as usize];
        let server = replicas[usize::from(*turn) % replicas.len()];
        *turn = ((usize::from(*turn) + 1) % replicas.len()) as u16;
        server
    }
}

/// The server with the fewest outstanding operations of this client.
#[derive(Debug, Clone)]
pub struct LeastOutstanding {
    counts: Vec<u32>,
}

impl LeastOutstanding {
    /// For a cluster with this many servers.
    pub fn new(servers: u32) -> LeastOutstanding {
        LeastOutstanding { counts: vec![0; servers as usize] }
    }
}

impl ChooseReplica for LeastOutstanding {
    fn name(&self) -> &'static str {
        "least outstanding"
    }

    fn choose(&mut self, _: u32, replicas: &[u32], draw: &mut dyn FnMut(u64) -> u64) -> u32 {
        lowest(replicas, draw, |server| f64::from(self.counts[server as usize]))
    }

    fn sent(&mut self, server: u32, operations: u32) {
        self.counts[server as usize] += operations;
    }

    fn ended(&mut self, server: u32, operations: u32, _: Option<&Told>) {
        self.counts[server as usize] -= operations;
    }
}

/// C3's ranking of replicas (Suresh et al., NSDI 2015, section 3.1), without its rate limiter, which the thesis found to
/// be a bottleneck.
#[derive(Debug, Clone)]
pub struct C3Ranking {
    clients: f64,
    counts: Vec<u32>,
    averages: Vec<Told>,
}

/// Weight of the last answer in C3's averages, as in its implementation.
const LAST: f64 = 0.9;

impl C3Ranking {
    /// For a cluster with this many servers and clients. Each client assumes that all others are as busy as itself.
    pub fn new(servers: u32, clients: u32) -> C3Ranking {
        let servers = servers as usize;
        C3Ranking { clients: f64::from(clients), counts: vec![0; servers], averages: vec![Told::default(); servers] }
    }

    /// The lower, the better.
    fn score(&self, server: u32) -> f64 {
        let Told { response, service, backlog } = self.averages[server as usize];
        let queue = 1.0 + f64::from(self.counts[server as usize]) * self.clients + backlog;
        response - service + queue.powi(3) * service
    }
}

impl ChooseReplica for C3Ranking {
    fn name(&self) -> &'static str {
        "C3"
    }

    fn choose(&mut self, _: u32, replicas: &[u32], draw: &mut dyn FnMut(u64) -> u64) -> u32 {
        lowest(replicas, draw, |server| self.score(server))
    }

    fn sent(&mut self, server: u32, operations: u32) {
        self.counts[server as usize] += operations;
    }

    fn ended(&mut self, server: u32, operations: u32, told: Option<&Told>) {
        self.counts[server as usize] -= operations;
        if let Some(told) = told {
            self.averages[server as usize].add(told);
        }
    }
}

impl Told {
    /// Adds another answer to an average. The first one counts in full.
    fn add(&mut self, told: &Told) {
        let weight = if self.service == 0.0 { 1.0 } else { LAST };
        let mix = |average: f64, last: f64| weight * last + (1.0 - weight) * average;
        self.response = mix(self.response, told.response);
        self.service = mix(self.service, told.service);
        self.backlog = mix(self.backlog, told.backlog);
    }
}

/// The server with the lowest score. Among equals, a random one: all clients would read a fixed one.
fn lowest(replicas: &[u32], draw: &mut dyn FnMut(u64) -> u64, score: impl Fn(u32) -> f64) -> u32 {
    let first = draw(replicas.len() as u64) as usize;
    let in_turn = (0..replicas.len()).map(|step| replicas[(first + step) % replicas.len()]);
    in_turn.min_by(|a, b| score(*a).total_cmp(&score(*b))).unwrap_or(replicas[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws zero.
    fn zero(_: u64) -> u64 {
        0
    }

    fn send(choice: &mut impl ChooseReplica, replicas: &[u32]) -> u32 {
        let server = choice.choose(0, replicas, &mut zero);
        choice.sent(server, 1);
        server
    }

    #[test]
    fn round_robin_takes_turns_for_each_partition() {
        let mut choice = RoundRobin::new(2);
        let mut choose = |partition| choice.choose(partition, &[7, 8, 9], &mut zero);
        assert_eq!([0, 0, 1, 0, 0, 1].map(&mut choose), [7, 8, 7, 9, 7, 8]);
    }

    #[test]
    fn the_least_outstanding_is_read() {
        let mut choice = LeastOutstanding::new(3);
        let mut chosen = [(); 3].map(|()| send(&mut choice, &[0, 1, 2]));
        chosen.sort_unstable();
        assert_eq!(chosen, [0, 1, 2]);
        choice.ended(2, 1, None);
        assert_eq!(send(&mut choice, &[0, 1, 2]), 2);
        choice.sent(0, 9);
        choice.sent(1, 8);
        assert_eq!([(); 3].map(|()| send(&mut choice, &[0, 1])), [1, 0, 1], "equal after the first");
    }

    #[test]
    fn c3_reads_where_answers_tell_of_short_queues() {
        let mut choice = C3Ranking::new(3, 2);
        for (server, backlog, service) in [(0, 9.0, 1.0), (1, 2.0, 1.0), (2, 2.0, 4.0)] {
            assert_eq!(send(&mut choice, &[server]), server);
            choice.ended(server, 1, Some(&Told { response: 10.0, service, backlog }));
        }
        assert_eq!(send(&mut choice, &[0, 1, 2]), 1);
        // It assumes that the other client has as many outstanding: queues of 5, 7 and 9 are shorter than 10, 11 is
        // not.
        assert_eq!([(); 4].map(|()| send(&mut choice, &[0, 1])), [1, 1, 1, 0]);
    }

    #[test]
    fn ties_are_drawn() {
        let mut choice = LeastOutstanding::new(3);
        assert_eq!(choice.choose(0, &[0, 1, 2], &mut |_| 1), 1);
        assert_eq!(choice.choose(0, &[0, 1, 2], &mut |below| below - 1), 2);
    }
}
