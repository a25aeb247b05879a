//! The instant at which no core executes anything.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::error::SaveError;

/// Longest time that a core stands still for others, in one meeting.
pub const PAUSE_MAX: Duration = Duration::from_millis(20);
/// Meetings that may fail because a core was late. Then there is no snapshot.
pub const MEETINGS_MAX: u32 = 20;

/// Looks at the others before a waiting core gives its processor away: one of them may need it.
const SPINS_MAX: u32 = 200;
/// The state once all have met.
const HELD: u64 = u64::MAX;
/// The state once it is clear that there will be no meeting.
const CANCELLED: u64 = u64::MAX - 1;

/// A meeting of some cores, repeated until all are there in time.
#[derive(Debug)]
pub struct Meeting {
    cores: usize,
    /// Cores that know of it. Nobody stands still before all do, for one may have to be woken.
    invited: AtomicUsize,
    /// [`HELD`], [`CANCELLED`], or the number of the attempt and in its lower half how many have come to it.
    state: AtomicU64,
}

/// How a meeting went for one who came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All were there, and none goes on before it knows.
    Held,
    /// Somebody was late.
    Late,
    /// There will be none.
    Cancelled,
}

impl Meeting {
    pub fn new(cores: usize) -> Meeting {
        Meeting { cores, invited: AtomicUsize::new(0), state: AtomicU64::new(0) }
    }

    /// Says that a core knows of the meeting. Once for each.
    pub fn know(&self) {
        self.invited.fetch_add(1, Ordering::AcqRel);
    }

    /// Whether all know.
    pub fn is_known(&self) -> bool {
        self.invited.load(Ordering::Acquire) >= self.cores
    }

    /// Ends it for all, unless it was held.
    pub fn cancel(&self) {
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| (state != HELD).then_some(CANCELLED));
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.state.load(Ordering::Acquire) == CANCELLED
    }

    /// Stands still until all have come, or [`PAUSE_MAX`] is over; says for how long.
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
        // The last to come releases the others, and sees all that they did before.
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
                // Fails if somebody came, or gave up, just now: look again.
                let _ = self.state.compare_exchange(state, next, Ordering::AcqRel, Ordering::Acquire);
            } else if spins < SPINS_MAX {
                spins += 1;
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Why there was no meeting, once it is cancelled.
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

    /// Each of three threads counts; at the meeting all counts stand still.
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
        // The next attempt counts afresh.
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
