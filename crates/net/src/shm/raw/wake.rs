//! Waking a thread that sleeps on a word of memory: a lower bound for the wake-up of an endpoint.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Words, run_pair};
use crate::clock::Clock;
use crate::error::NetError;

/// Value of the word while its owner may sleep.
const SLEEPING: u32 = 1;
/// Value of the word once the writer wrote it.
const WRITTEN: u32 = 0;
/// Value of the word when the measurement is over.
const OVER: u32 = 2;
/// Time after which a sleep ends without a write: the other thread may be gone.
const LOST_AFTER: Duration = Duration::from_millis(50);
/// How long a measurement without any sample continues past its time, as when other work has the cores.
const GIVE_UP_AFTER: Duration = Duration::from_secs(3);

/// Measures, again and again for about `duration`, the nanoseconds from writing a word of shared memory until the
/// thread that slept on it (`futex`) ran. Between two writes the writer polls for `gap`, so that the other thread falls
/// asleep; a sample in which it did not sleep is left out. The first of `cpus` is the writer's.
///
/// # Errors
/// [`NetError::Io`] if memory cannot be mapped or a thread cannot be pinned.
pub fn wake_ups(
    cpus: Option<[usize; 2]>,
    mut gap: impl FnMut() -> Duration + Send,
    duration: Duration,
) -> Result<Vec<u64>, NetError> {
    let words = Words::new(super::WORD_SPACING * 2)?;
    let word = words.word32(0);
    let woken_at = words.at(super::WORD_SPACING);
    let clock = Clock::new();
    let writer = || {
        let start = Instant::now();
        let mut samples = Vec::new();
        while start.elapsed() < duration || samples.is_empty() && start.elapsed() < duration + GIVE_UP_AFTER {
            let gap_end = clock.now() + gap().as_nanos() as u64;
            while clock.now() < gap_end {}
            woken_at.store(0, Ordering::Release);
            let written_at = clock.now();
            word.store(WRITTEN, Ordering::SeqCst);
            let woken = wake(word);
            let woken_at = await_nonzero(woken_at, &clock, written_at + LOST_AFTER.as_nanos() as u64);
            if woken == 1 && woken_at > 0 {
                samples.push(woken_at.saturating_sub(written_at));
            }
        }
        word.store(OVER, Ordering::SeqCst);
        wake(word);
        samples
    };
    let sleeper = || {
        loop {
            match word.compare_exchange(WRITTEN, SLEEPING, Ordering::SeqCst, Ordering::SeqCst) {
                Err(OVER) => return,
                _ => sleep(word),
            }
            match word.load(Ordering::SeqCst) {
                WRITTEN => woken_at.store(clock.now().max(1), Ordering::Release),
                OVER => return,
                _ => {}
            }
        }
    };
    run_pair(cpus, writer, sleeper)
}

/// Polls a word until it is not zero, or until the time `until`.
fn await_nonzero(word: &AtomicU64, clock: &Clock, until: u64) -> u64 {
    loop {
        match word.load(Ordering::Acquire) {
            0 if clock.now() < until => {}
            value => return value,
        }
    }
}

/// Wakes one sleeper and returns how many there were.
fn wake(word: &AtomicU32) -> libc::c_long {
    // SAFETY: the word is mapped, and the kernel only compares addresses.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) }
}

/// Sleeps while the word is [`SLEEPING`].
fn sleep(word: &AtomicU32) {
    // SAFETY: the word is readable through the call; without a timeout there is no other pointer.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, SLEEPING, std::ptr::null::<libc::timespec>())
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_is_woken() {
        let samples = wake_ups(None, || Duration::from_micros(200), Duration::from_millis(20)).unwrap();
        assert!(!samples.is_empty() && samples.iter().all(|&ns| ns > 0));
    }
}
