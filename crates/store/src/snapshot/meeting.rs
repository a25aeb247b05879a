//! Finds an instant at which no core executes anything.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::error::SaveError;

/// Longest time that a core pauses for others, in one meeting.
pub const PAUSE_MAX: Duration = Duration::from_millis(20);
/// Meetings that may fail because a core was late. After that there is no snapshot.
pub const MEETINGS_MAX: u32 = 20;

/// Checks of the others before a waiting core yields its processor: one of them may need it.
const SPINS_MAX: u32 = 200;
/// The state once all have arrived.
const HELD: u64 = u64::MAX;
/// The state once the meeting is cancelled.
const CANCELLED: u64 = u64::MAX - 1;

/// A meeting of several cores, repeated until all arrive in time.
#[derive(Debug)]
pub struct Meeting {
    cores: usize,
    /// Cores that know of it. No core pauses before all know, because one may have to be woken.
    invited: AtomicUsize,
    /// [`HELD`], [`CANCELLED`], or the number of the attempt and, in the lower half, the number of cores that have
    /// arrived.
    state: AtomicU64,
}

/// The outcome of a meeting for one core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All cores were there, and none continues before it knows that.
    Held,
    /// A core was late.
    Late,
    /// The meeting is cancelled.
    Cancelled,
}

impl Meeting {
    pub fn new(cores: usize) -> Meeting {
        Meeting { cores, invited: AtomicUsize::new(0), state: AtomicU64::new(0) }
    }

    /// Records that a core knows of the meeting. Call once per core.
    pub fn know(&self) {
        self.invited.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether all cores know.
    pub fn is_known(&self) -> bool {
        self.invited.load(Ordering::Acquire) >= self.cores
    }

    /// Cancels it for all cores, unless it was held.
    pub fn cancel(&self) {
        let _ =
            self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| (state != HELD).then_some(CANCELLED));
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.state.load(Ordering::Acquire) == CANCELLED
    }

    /// Pauses until all cores have arrived, or [`PAUSE_MAX`] is over; returns how long it paused.
    pub fn attend(&self) -> (Outcome, Duration) {
        let begun = Instant::now();
        let outcome = self.wait(begun);
        (outcome, begun.elapsed())
    }

    fn wait(&self, begun: Instant) -> Outcome {
        let come = |state| match state {
            HELD | CANCELLED => None,
            state if (state as u32) as usize + 1 == self.cores => Some(HELD),
            state => Some(state + 1),
        };
        // The last core to arrive releases the others, and sees everything that they did before.
        let attempt = match self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, come) {
            Ok(state) if come(state) == Some(HELD) => return Outcome::Held,
            Ok(state) => state >> 32,
            Err(HELD) => return Outcome::Held,
            Err(_) => return Outcome::Cancelled,
        };
        let mut spins = 0;
        loop {
            let state = self.state.load(Ordering::Acquire);
            match state {
                HELD => return Outcome::Held,
                CANCELLED => return Outcome::Cancelled,
                state if state >> 32 != attempt => return Outcome::Late,
                _ => {}
            }
            if begun.elapsed() >= PAUSE_MAX {
                let next = if attempt + 1 >= u64::from(MEETINGS_MAX) { CANCELLED } else { (attempt + 1) << 32 };
                // Fails if a core arrived or gave up just now: look again.
                let _ = self.state.compare_exchange(state, next, Ordering::AcqRel, Ordering::Acquire);
            } else if spins < SPINS_MAX {
                spins += 1;
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Returns why there was no meeting, once it is cancelled.
    pub fn why_cancelled(&self, attempts: u32) -> SaveError {
        if attempts >= MEETINGS_MAX { SaveError::NoMeeting } else { SaveError::Abandoned }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::thread;

    use super::*;

    /// Each of three threads counts; at the meeting no count changes.
    #[test]
    fn nobody_goes_on_before_all_have_come() {
        for _ in 0..50 {
            let meeting = Arc::new(Meeting::new(3));
            let counts: Arc<[AtomicU64; 3]> = Arc::default();
            let threads: Vec<_> = (0..3)
                .map(|core| {
                    let (meeting, counts) = (meeting.clone(), counts.clone());
                    thread::spawn(move || {
                        meeting.know();
                        loop {
                            counts[core].fetch_add(1, Ordering::Relaxed);
                            if meeting.is_known() {
                                match meeting.attend().0 {
                                    Outcome::Held => break,
                                    Outcome::Late => {}
                                    Outcome::Cancelled => panic!("nobody cancels"),
                                }
                            }
                        }
                        [0, 1, 2].map(|core| counts[core].load(Ordering::Relaxed))
                    })
                })
                .collect();
            let seen: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            assert!(seen.iter().all(|counts| *counts == seen[0]), "{seen:?}");
        }
    }

    #[test]
    fn whoever_is_late_does_not_hold_the_others() {
        let meeting = Meeting::new(2);
        let (outcome, pause) = meeting.attend();
        assert_eq!(outcome, Outcome::Late);
        assert!(pause >= PAUSE_MAX);
        // The next attempt counts from zero.
        assert_eq!(meeting.state.load(Ordering::Acquire), 1 << 32);
    }

    #[test]
    fn meetings_that_fail_too_often_are_cancelled() {
        let meeting = Meeting::new(2);
        meeting.state.store(u64::from(MEETINGS_MAX - 1) << 32, Ordering::Release);
        let (outcome, _) = meeting.attend();
        assert_eq!(outcome, Outcome::Cancelled);
    }

    #[test]
    fn a_meeting_that_was_held_cannot_be_cancelled() {
        let meeting = Meeting::new(1);
        assert_eq!(meeting.attend().0, Outcome::Held);
        meeting.cancel();
        assert!(!meeting.is_cancelled());
    }
}
