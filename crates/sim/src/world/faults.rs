//! The effect of faults on packets, links and hosts.

use super::World;
use crate::engine::Event;
use crate::engine::time::{NEVER, Picos, from_nanos};
use crate::error::SimError;
use crate::fabric::link::Node;
use crate::fabric::packet::Transit;
use crate::fault::{Fault, FaultId, FaultPlan};
use crate::host::thread::State;

/// The effect of a fault on the programs of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blow {
    /// None, or one that programs notice by themselves.
    Harmless,
    /// The programs vanish.
    Crash { host: u16 },
    /// The programs are made anew.
    Restart { host: u16 },
}

impl World {
    /// Schedules the faults of a plan; those that are due begin when time advances.
    pub fn schedule(&mut self, plan: &FaultPlan) -> Result<(), SimError> {
        for scheduled in &plan.faults {
            scheduled.fault.check(&self.shape)?;
            if scheduled.until_ns.is_some_and(|until| until < scheduled.from_ns) {
                return Err(SimError::setting("until_ns", format!("it is before from_ns, {}", scheduled.from_ns)));
            }
        }
        for scheduled in &plan.faults {
            let id = self.faults.announce(scheduled.fault.clone());
            let now = self.now();
            self.events.push(from_nanos(scheduled.from_ns).max(now), Event::Fault { id, begins: true });
            if let Some(until) = scheduled.until_ns {
                self.events.push(from_nanos(until).max(now), Event::Fault { id, begins: false });
            }
        }
        Ok(())
    }

    /// Puts a fault in force, or lifts it.
    pub fn set_fault(&mut self, id: FaultId, in_force: bool) -> Blow {
        if !self.faults.set(id, in_force) {
            return Blow::Harmless;
        }
        self.faults.apply(&mut self.links, &self.shape);
        match self.faults.get(id) {
            Some(&Fault::Pause { host }) => self.update_pause(host as u16),
            Some(&Fault::ClockRate { host, .. }) => {
                let (clock, ppm) = (&self.hosts[host as usize].clock, self.faults.clock_ppm(host));
                clock.set(clock.get().with_rate(ppm, self.now.get()));
                self.threads_of(host as u16).into_iter().for_each(|thread| self.retime(thread));
            }
            Some(&Fault::Crash { host }) => return self.update_crash(host as u16),
            _ => {}
        }
        Blow::Harmless
    }

    fn update_pause(&mut self, host: u16) {
        let (was_paused, is_paused) = (self.hosts[host as usize].is_paused, self.faults.is_paused(host.into()));
        self.hosts[host as usize].is_paused = is_paused;
        if was_paused && !is_paused {
            let now = self.now();
            for thread in self.threads_of(host) {
                // A thread that was due meanwhile runs now.
                let run_at = self.threads[thread as usize].run_at;
                if run_at <= now {
                    self.threads[thread as usize].run_at = NEVER;
                    self.run_by(thread, now);
                }
            }
        }
    }

    fn update_crash(&mut self, host: u16) -> Blow {
        let (was_up, is_up) = (self.hosts[host as usize].is_up, !self.faults.is_crashed(host.into()));
        self.hosts[host as usize].is_up = is_up;
        match (was_up, is_up) {
            (true, false) => {
                self.crash(host);
                Blow::Crash { host }
            }
            (false, true) => Blow::Restart { host },
            _ => Blow::Harmless,
        }
    }

    /// Empties the queues of a host and forgets its transports.
    fn crash(&mut self, host: u16) {
        for packet in self.hosts[host as usize].nic.drain() {
            self.counters.dropped_nobody += 1;
            self.packets.discard(packet);
        }
        for index in self.threads_of(host) {
            self.unbind(index);
            let thread = &mut self.threads[index as usize];
            (thread.state, thread.run_at) = (State::Absent, NEVER);
            thread.clock.reset();
        }
    }

    /// The threads of a host, by number.
    pub fn threads_of(&self, host: u16) -> Vec<u32> {
        self.hosts[host as usize].threads.iter().copied().flatten().collect()
    }

    /// Counts a packet that is lost to a fault of a link.
    pub(super) fn lose(&mut self, transit: Transit) {
        self.links[transit.link() as usize].lost += 1;
        self.counters.lost += 1;
        self.packets.discard(transit.number());
    }

    /// Puts a packet, whose last bit would arrive at `arrival`, on a link with faults.
    #[cold]
    pub(super) fn put_on_faulty_wire(&mut self, transit: Transit, arrival: Picos) {
        let line = &mut self.links[transit.link() as usize];
        let is_separated = match line.from {
            Node::Host(from) => self.faults.separates(from, transit.to_host()),
            Node::Switch(_) => false,
        };
        if line.is_down || is_separated {
            return self.lose(transit);
        }
        let Some(faults) = line.faults.as_deref().copied() else {
            // A fault that delayed packets may be over. Those packets stay in front, and the link is healthy once the
            // last of them has arrived.
            if line.last_arrival > arrival {
                return self.events.push(line.last_arrival, Event::Arrive(transit));
            }
            line.last_arrival = 0;
            line.is_faulty = self.faults.cuts() && matches!(line.from, Node::Host(_));
            return self.events.push(arrival, Event::Arrive(transit));
        };
        if faults.longest.is_some_and(|longest| transit.len() > longest) {
            return self.lose(transit);
        }
        let random = &mut self.fault_random;
        if random.chance(faults.loss) {
            return self.lose(transit);
        }
        if random.chance(faults.corrupt) && transit.len() > 0 {
            let bit = random.below(u64::from(transit.len()) * 8);
            self.packets[transit.number()].buffer[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        let copy = random.chance(faults.duplicate).then(|| self.packets.duplicate(transit));
        self.counters.sent += u64::from(copy.is_some());
        for transit in std::iter::once(transit).chain(copy) {
            let mut arrival = arrival;
            if random.chance(faults.reorder) {
                arrival += random.between(0, from_nanos(faults.reorder_max_ns));
            } else {
                if random.chance(faults.delay) {
                    arrival += random.between(0, from_nanos(faults.delay_max_ns));
                }
                arrival = arrival.max(line.last_arrival);
                line.last_arrival = arrival;
            }
            self.events.push(arrival, Event::Arrive(transit));
        }
    }
}
