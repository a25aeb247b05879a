//! All state of a datacenter except the programs, and the effect of each event on it.

pub(crate) mod faults;
pub(crate) mod flight;
mod runs;
mod traces;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use dunlin_net::random::Random;
use faults::Blow;
use serde::Serialize;

use crate::engine::time::{NEVER, Picos, from_nanos};
use crate::engine::{Event, EventQueue};
use crate::error::SimError;
use crate::fabric::PortCounters;
use crate::fabric::build::{Shape, build};
use crate::fabric::link::Link;
use crate::fabric::packet::Packets;
use crate::fabric::switch::Switch;
use crate::fault::ActiveFaults;
use crate::host::CostModel;
use crate::host::clock::{HostClock, ThreadClock};
use crate::host::nic::Nic;
use crate::host::thread::Thread;
use crate::topology::Topology;
use crate::trace::capture::Capture;
use crate::trace::series::Sampler;

/// Threads of one host are numbered below this.
pub const THREADS_PER_HOST_MAX: u16 = 1024;

/// The state that the datacenter and its transports share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub now: Rc<Cell<Picos>>,
    pub world: RefCell<World>,
    pub wakes: Arc<Wakes>,
}

/// Threads that were woken through their wakers, by any OS thread.
#[derive(Debug, Default)]
pub(crate) struct Wakes {
    any: AtomicBool,
    threads: Mutex<Vec<u32>>,
}

impl Wakes {
    pub fn wake(&self, thread: u32) {
        // A poisoned list is still valid.
        self.threads.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(thread);
        self.any.store(true, Ordering::Release);
    }

    /// Takes the list, if it may have entries.
    pub fn take(&self) -> Option<Vec<u32>> {
        // Checked before every run of a program: a load is cheaper than a swap.
        (self.any.load(Ordering::Relaxed) && self.any.swap(false, Ordering::Acquire))
            .then(|| std::mem::take(&mut *self.threads.lock().unwrap_or_else(|poisoned| poisoned.into_inner())))
    }
}

/// Counters of the whole datacenter since the run began. Every packet sent is in exactly one of the other counters, or
/// in flight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Counters {
    /// Packets that programs sent, and copies that faults made.
    pub sent: u64,
    /// Packets that programs received.
    pub received: u64,
    /// Packets in flight and in queues.
    pub in_flight: u64,
    /// Packets for which a switch had no room.
    pub dropped_buffer: u64,
    /// Packets for which a NIC had no receive descriptor.
    pub dropped_descriptors: u64,
    /// Packets to a thread without a transport, or to or from a host that crashed.
    pub dropped_nobody: u64,
    /// Packets lost to faults of links.
    pub lost: u64,
    /// Packets marked by switches (ECN).
    pub marked: u64,
    /// Events handled: the cost of a run.
    pub events: u64,
}

#[derive(Debug)]
pub(crate) struct Host {
    pub nic: Nic,
    pub is_up: bool,
    pub is_paused: bool,
    pub clock: Rc<Cell<HostClock>>,
    /// Index of each of its threads, by number.
    pub threads: Vec<Option<u32>>,
}

#[derive(Debug)]
pub(crate) struct World {
    pub now: Rc<Cell<Picos>>,
    pub events: EventQueue,
    pub packets: Packets,
    pub shape: Shape,
    pub links: Vec<Link>,
    pub switches: Vec<Switch>,
    pub hosts: Vec<Host>,
    pub threads: Vec<Thread>,
    /// Host and number of each thread.
    pub places: Vec<(u16, u16)>,
    pub cost: CostModel,
    pub mtu: usize,
    /// Whether transports report that paths may carry less than `mtu`.
    pub is_mtu_uncertain: bool,
    pub wire_overhead: u64,
    pub rx_latency: Picos,
    pub rx_descriptors: usize,
    pub faults: ActiveFaults,
    /// For ECN marking.
    pub random: Random,
    /// For faults. Separate, so that a run without faults equals one whose faults affect no packet.
    pub fault_random: Random,
    pub counters: Counters,
    pub capture: Option<Capture>,
    pub sampler: Option<Sampler>,
}

/// Work for the datacenter, which holds the programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Run {
        thread: u32,
    },
    /// A host crashed or restarts.
    Blow(Blow),
    /// No event up to the limit.
    Quiet,
}

impl World {
    pub fn new(topology: &Topology, cost: CostModel, now: Rc<Cell<Picos>>, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (shape, links, switches) = build(topology, &mut random);
        let host = || Host {
            nic: Nic::new(&topology.nic),
            is_up: true,
            is_paused: false,
            clock: Rc::default(),
            threads: Vec::new(),
        };
        World {
            now,
            events: EventQueue::new(),
            packets: Packets::new(topology.mtu),
            shape,
            links,
            switches,
            hosts: (0..topology.hosts()).map(|_| host()).collect(),
            threads: Vec::new(),
            places: Vec::new(),
            cost,
            mtu: topology.mtu,
            is_mtu_uncertain: false,
            wire_overhead: topology.wire_overhead as u64,
            rx_latency: from_nanos(topology.nic.rx_latency_ns),
            rx_descriptors: topology.nic.rx_descriptors,
            faults: ActiveFaults::default(),
            random: Random::new(random.next()),
            fault_random: Random::new(random.next()),
            counters: Counters::default(),
            capture: None,
            sampler: None,
        }
    }

    pub fn now(&self) -> Picos {
        self.now.get()
    }

    /// The index of a thread; adds the thread to the table if it is new.
    pub fn thread_index(&mut self, host: u32, number: u16) -> Result<u32, SimError> {
        let hosts = self.hosts.len() as u32;
        let (threads, clock) = match self.hosts.get_mut(host as usize) {
            Some(host) => (&mut host.threads, &host.clock),
            None => return Err(SimError::NoHost { host, hosts }),
        };
        if number >= THREADS_PER_HOST_MAX {
            return Err(SimError::NoThread { host, thread: number, limit: THREADS_PER_HOST_MAX });
        }
        if threads.len() <= number as usize {
            threads.resize(number as usize + 1, None);
        }
        Ok(*threads[number as usize].get_or_insert_with(|| {
            self.places.push((host as u16, number));
            let clock = ThreadClock::new(self.now.clone(), clock.clone());
            self.threads.push(Thread::new(host as u16, number, clock));
            self.threads.len() as u32 - 1
        }))
    }

    /// Handles events up to `limit`, until one needs a program.
    pub fn advance(&mut self, limit: Picos) -> Step {
        loop {
            let next_sample = self.next_sample();
            let step = self.advance_between_samples(limit.min(next_sample));
            // Without a limit, samples continue as long as there are events.
            if step != Step::Quiet || next_sample > limit || (limit == NEVER && self.events.is_empty()) {
                return step;
            }
            self.sample();
        }
    }

    fn advance_between_samples(&mut self, limit: Picos) -> Step {
        while let Some((time, event)) = self.events.pop_until(limit) {
            self.now.set(time);
            self.counters.events += 1;
            match event {
                Event::Arrive(transit) => self.arrive(transit),
                Event::Transmit { host } => self.transmit(host),
                Event::Run { thread } => {
                    if self.may_run(thread) {
                        return Step::Run { thread };
                    }
                }
                Event::Fault { id, begins } => match self.set_fault(id, begins) {
                    Blow::Harmless => {}
                    blow => return Step::Blow(blow),
                },
            }
        }
        if limit != NEVER {
            self.now.set(self.now().max(limit));
        }
        Step::Quiet
    }

    pub fn counters(&self) -> Counters {
        Counters { in_flight: self.packets.live() as u64, ..self.counters }
    }
}

impl World {
    /// Removes the transport of a thread, and the packets that it had received. Packets that it sent stay in flight.
    pub fn unbind(&mut self, index: u32) {
        let thread = &mut self.threads[index as usize];
        thread.transport = None;
        for arrived in std::mem::take(&mut thread.rx) {
            self.counters.dropped_nobody += 1;
            self.packets.discard(arrived.packet);
        }
    }

    pub fn port_counters(&self, link: u16) -> PortCounters {
        let Link { packets, bytes, dropped, lost, marked, .. } = self.links[link as usize];
        let queued_bytes = self.links[link as usize].queued(self.now());
        PortCounters { packets, bytes, queued_bytes, dropped, lost, marked }
    }
}
