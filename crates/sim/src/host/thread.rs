//! The state that the datacenter keeps for a thread, besides its program.

use std::collections::VecDeque;

use super::clock::ThreadClock;
use crate::engine::time::{NEVER, Picos};

/// Whether and when a thread runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It has no program, or its program is done.
    Absent,
    /// It runs at `run_at`, even if packets come.
    Timed,
    /// It runs at `run_at`, or when a packet comes.
    Listening,
}

/// A packet in a receive queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrived {
    /// When the CPU can see it.
    pub visible: Picos,
    /// Its number in the table of packets.
    pub packet: u32,
    pub len: u16,
    pub marked: bool,
}

#[derive(Debug)]
pub(crate) struct Thread {
    pub host: u16,
    pub number: u16,
    pub clock: ThreadClock,
    pub state: State,
    /// The time of the valid [`crate::engine::Event::Run`]; others are stale.
    pub run_at: Picos,
    /// The time of a timer's [`crate::engine::Event::Run`] that is in the queue. A thread that runs for each packet
    /// sets the same timer after each run; one event serves all of them.
    pub timer_at: Picos,
    /// If its program asked to run at a time: the reading of its host's clock, in nanoseconds, at which it runs even
    /// without a packet.
    pub due: Option<u64>,
    /// Which of the successive transports of this thread is alive, if any.
    pub transport: Option<u32>,
    /// How many transports were bound.
    pub incarnations: u32,
    /// The receive queue, in order of arrival.
    pub rx: VecDeque<Arrived>,
    /// Packets dropped because all descriptors were in use.
    pub rx_dropped: u64,
}

impl Thread {
    pub fn new(host: u16, number: u16, clock: ThreadClock) -> Self {
        Thread {
            host,
            number,
            clock,
            state: State::Absent,
            run_at: NEVER,
            timer_at: NEVER,
            due: None,
            transport: None,
            incarnations: 0,
            rx: VecDeque::new(),
            rx_dropped: 0,
        }
    }
}
