//! Waking a thread that sleeps at a word of memory: what the wake-up of an endpoint can at best come near to.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Words, run_pair};
use crate::clock::Clock;
use crate::error::NetError;

/// The word while its owner may sleep.
const SLEEPING: u32 = 1;
/// The word once someone wrote.
const WRITTEN: u32 = 0;
/// The word when it is over.
const OVER: u32 = 2;
/// A sleep that ends after this without a word: the other thread may be gone.
const LOST_AFTER: Duration = Duration::from_millis(50);
/// How long past its time a measurement goes on that has nothing yet, as when other work has the cores.
const GIVE_UP_AFTER: Duration = Duration::from_secs(3);

/// Nanoseconds from writing a word of shared memory until the thread that slept at it (`futex`) ran, again and again for about
/// `duration`. Between two writes the writer polls for as long as `gap` says, which gives the other time to fall asleep; a sample in
/// which it did not sleep is left out. The first of `cpus` is the writer's.
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

/// Polls a word until it is not zero, or until a time.
fn await_nonzero(word: &AtomicU64, clock: &Clock, until: u64) -> u64 {
    loop {
        match word.load(Ordering::Acquire) {
            0 if clock.now() < until => {}
            value => return value,
        }
    }
}

/// Wakes one sleeper and says how many there were.
fn wake(word: &AtomicU32) -> libc::c_long {
    // SAFETY: the word is mapped, and the kernel only compares addresses.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) }
}

/// Sleeps while the word is [`SLEEPING`].
fn sleep(word: &AtomicU32) {
    // SAFETY: the word is readable through the call; without a time to wait for there is no other pointer.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, SLEEPING, std::ptr::null::<libc::timespec>()) };
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
