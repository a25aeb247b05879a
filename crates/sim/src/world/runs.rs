//! When threads run.

use super::World;
use crate::engine::Event;
use crate::engine::time::{NEVER, Picos, from_nanos};
use crate::host::Next;
use crate::host::thread::State;

/// Delay of a program that wants to run again at once, so that time advances.
const SOON: Picos = from_nanos(1);

impl World {
    /// Lets a thread run at `time`, or when its CPU is free, unless it runs before.
    pub fn run_by(&mut self, index: u32, time: Picos) {
        let thread = &mut self.threads[index as usize];
        let time = time.max(thread.clock.picos());
        if time < thread.run_at {
            thread.run_at = time;
            self.events.push(time, Event::Run { thread: index });
        }
    }

    /// Schedules a program that was just given to a thread.
    pub fn start(&mut self, index: u32) {
        let thread = &mut self.threads[index as usize];
        (thread.state, thread.due) = (State::Timed, None);
        self.run_by(index, self.now());
    }

    /// Whether a thread runs now.
    pub fn may_run(&mut self, index: u32) -> bool {
        let now = self.now();
        let thread = &mut self.threads[index as usize];
        if thread.timer_at == now {
            thread.timer_at = NEVER;
        }
        if thread.run_at != now || thread.state == State::Absent {
            return false;
        }
        // It runs when the pause is over, because its time is past then.
        if self.hosts[thread.host as usize].is_paused {
            return false;
        }
        thread.run_at = NEVER;
        // A clock that has become slower may not have reached the program's time yet.
        if let (State::Timed, Some(due)) = (thread.state, thread.due)
            && due > thread.clock.now()
        {
            let time = thread.clock.time_of(due);
            if time != NEVER {
                self.run_by_timer(index, time.max(now + SOON));
            }
            return false;
        }
        true
    }

    /// Adjusts a thread to a new rate of its host's clock: its timer may be due sooner. A thread that also waits for
    /// packets may run too early, which does no harm.
    pub fn retime(&mut self, index: u32) {
        let thread = &self.threads[index as usize];
        let time = thread.due.filter(|_| thread.state != State::Absent).map_or(NEVER, |due| thread.clock.time_of(due));
        if time != NEVER {
            self.run_by(index, time.max(self.now()));
        }
    }

    /// Records when a program that has run wants to run again.
    pub fn after_run(&mut self, index: u32, next: Next) {
        let soonest = self.now() + SOON;
        let thread = &mut self.threads[index as usize];
        thread.state = match next {
            Next::OnPacket { .. } => State::Listening,
            Next::Soon | Next::At(_) => State::Timed,
            Next::Done => State::Absent,
        };
        thread.due = match next {
            Next::At(time) => Some(time),
            Next::OnPacket { or_at } => or_at,
            Next::Soon | Next::Done => None,
        };
        let timer = match next {
            Next::Soon => soonest,
            _ => thread.due.map_or(NEVER, |due| thread.clock.time_of(due)),
        };
        let packet = match next {
            Next::OnPacket { .. } => thread.rx.front().map_or(NEVER, |arrived| arrived.visible),
            _ => NEVER,
        };
        if packet < timer {
            self.run_by(index, packet.max(soonest));
        } else if timer != NEVER {
            self.run_by_timer(index, timer.max(soonest));
        }
    }

    /// As [`World::run_by`], for a time that a program requested.
    fn run_by_timer(&mut self, index: u32, time: Picos) {
        let thread = &mut self.threads[index as usize];
        let time = time.max(thread.clock.picos());
        if time >= thread.run_at {
            return;
        }
        thread.run_at = time;
        if thread.timer_at != time {
            thread.timer_at = time;
            self.events.push(time, Event::Run { thread: index });
        }
    }

    /// Handles the use of a thread's waker.
    pub fn wake(&mut self, index: u32) {
        if self.threads[index as usize].state == State::Listening {
            self.run_by(index, self.now());
        }
    }
}
