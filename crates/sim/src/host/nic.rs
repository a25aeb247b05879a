//! NICs: transmit queues that share the line in turn.

use std::collections::VecDeque;

use dunlin_net::prefetch;

use crate::engine::time::{NEVER, Picos, from_nanos};
use crate::fabric::packet::Transit;
use crate::topology::Nic as Settings;

/// A packet that waits for the line.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    transit: Transit,
    /// When the NIC has fetched it.
    ready: Picos,
    /// When its last bit will have left, as estimated when it was queued.
    leaves: Picos,
}

/// The transmit queue of one thread.
///
/// Threads run ahead of the rest of the datacenter by the CPU time that they are charged, so a queue also holds packets
/// of the future.
#[derive(Debug, Default)]
pub(crate) struct TxQueue {
    waiting: VecDeque<Waiting>,
    last_leaves: Picos,
}

/// A queue that is not empty. The ready times of all queues are kept together here, since all are read for each packet,
/// and reading each queue would be a cache miss.
#[derive(Debug, Clone, Copy)]
struct Head {
    thread: u16,
    /// When its first packet is ready.
    ready: Picos,
}

/// The NIC of one host.
#[derive(Debug)]
pub(crate) struct Nic {
    tx_latency: Picos,
    tx_queue_len: usize,
    /// Transmit queues of its threads, by thread number.
    queues: Vec<TxQueue>,
    /// Queues that are not empty, in order of their turns.
    turns: VecDeque<Head>,
    /// The time of the valid [`crate::engine::Event::Transmit`]; others are stale.
    pub next_transmit: Picos,
}

/// What a NIC does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It sends this packet.
    Send(Transit),
    /// Nothing is ready before this time.
    Later(Picos),
}

impl Nic {
    pub fn new(settings: &Settings) -> Self {
        Nic {
            tx_latency: from_nanos(settings.tx_latency_ns),
            tx_queue_len: settings.tx_queue,
            queues: Vec::new(),
            turns: VecDeque::new(),
            next_transmit: NEVER,
        }
    }

    /// Makes sure that a thread has a queue.
    pub fn add_queue(&mut self, thread: u16) {
        if self.queues.len() <= thread as usize {
            self.queues.resize_with(thread as usize + 1, TxQueue::default);
        }
    }

    /// When the queue of a thread has room for one more packet; a time in the past if it has room now.
    ///
    /// Exact for a thread that has the line to itself. If several share it, each is assumed to get an equal share from
    /// now on.
    #[inline]
    pub fn room_at(&self, thread: u16) -> Picos {
        let queue = &self.queues[thread as usize];
        match queue.waiting.len().checked_sub(self.tx_queue_len) {
            Some(before) => queue.waiting[before].leaves,
            None => 0,
        }
    }

    /// Queues a packet for which a thread rings the doorbell at `now` (its own time), and that takes `time` on the
    /// line. Returns when the NIC has fetched it.
    #[inline]
    pub fn queue(&mut self, thread: u16, transit: Transit, now: Picos, time: Picos, line_free_at: Picos) -> Picos {
        let ready = now + self.tx_latency;
        let queue = &mut self.queues[thread as usize];
        if queue.waiting.is_empty() {
            self.turns.push_back(Head { thread, ready });
        }
        let share = time * self.turns.len() as u64;
        let leaves = queue.last_leaves.max(ready).max(line_free_at) + share;
        queue.last_leaves = leaves;
        queue.waiting.push_back(Waiting { transit, ready, leaves });
        ready
    }

    /// Takes the next packet; the line is free.
    #[inline]
    pub fn next(&mut self, now: Picos) -> Turn {
        let mut earliest = NEVER;
        for _ in 0..self.turns.len() {
            let Some(head) = self.turns.pop_front() else { break };
            if head.ready > now {
                earliest = earliest.min(head.ready);
                self.turns.push_back(head);
                continue;
            }
            let waiting = &mut self.queues[head.thread as usize].waiting;
            // A queue with a turn is not empty.
            let Some(first) = waiting.pop_front() else { continue };
            match waiting.front() {
                Some(next) => self.turns.push_back(Head { ready: next.ready, ..head }),
                // Start again at the front, so that a queue that is usually short uses little memory.
                None => waiting.clear(),
            }
            return Turn::Send(first.transit);
        }
        Turn::Later(earliest)
    }

    /// Prefetches the queue whose turn is next; it will be read some events later.
    #[inline]
    pub fn prefetch(&self) {
        if let Some(next) = self.turns.front().and_then(|head| self.queues[head.thread as usize].waiting.front()) {
            prefetch::read(next);
        }
    }

    /// When the next packet is ready.
    #[inline]
    pub fn next_ready(&self) -> Picos {
        self.turns.iter().map(|head| head.ready).min().unwrap_or(NEVER)
    }

    /// Removes all packets of a crashing host, and returns their numbers.
    pub fn drain(&mut self) -> Vec<u32> {
        self.turns.clear();
        self.next_transmit = NEVER;
        let mut packets = Vec::new();
        for queue in &mut self.queues {
            queue.last_leaves = 0;
            packets.extend(queue.waiting.drain(..).map(|waiting| waiting.transit.number()));
        }
        packets
    }
}
