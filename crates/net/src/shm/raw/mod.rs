//! What shared memory itself can do: the floors that benchmarks put beside the transport's results.
//!
//! Two threads on a shared mapping, without what a transport needs: there is one sender, nothing is lost, nothing is
//! checked, and there are no names.

use std::panic::resume_unwind;
use std::ptr::NonNull;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::error::NetError;
use crate::shm::mapping::Mapping;

mod wake;

pub use wake::wake_ups;

/// Round trips measured at most.
const SAMPLES_MAX: usize = 1 << 24;
/// Messages of the ring.
const RING_LEN: u64 = 1024;
/// Words of a message of 64 B; the first of them is its number.
const MESSAGE_WORDS: usize = 8;
/// Messages consumed before the producer sees the new head.
const HEAD_INTERVAL: u64 = 64;
/// Bytes from one shared word to the next: processors fetch cache lines in pairs.
const WORD_SPACING: usize = 128;

/// Times, in nanoseconds, that a cache line took to the other thread and back: one word each way, both sides polling.
/// Runs for about `duration`, each thread on its processor if `cpus` names them. Each sample contains one read of the
/// clock.
///
/// # Errors
/// [`NetError::Io`] if memory cannot be mapped or a thread cannot be pinned.
pub fn ping_pong(cpus: Option<[usize; 2]>, duration: Duration) -> Result<Vec<u64>, NetError> {
    const DONE: u64 = u64::MAX;
    let words = Words::new(WORD_SPACING * 2)?;
    let (ping, pong) = (words.at(0), words.at(WORD_SPACING));
    let caller = || {
        let clock = Clock::new();
        let mut samples = Vec::with_capacity((duration.as_micros() as usize * 10).min(SAMPLES_MAX));
        let mut before = clock.now();
        let end = before + duration.as_nanos() as u64;
        while before < end && samples.len() < samples.capacity() {
            let round = samples.len() as u64 + 1;
            ping.store(round, Ordering::Release);
            while pong.load(Ordering::Acquire) != round {}
            let now = clock.now();
            samples.push(now - before);
            before = now;
        }
        ping.store(DONE, Ordering::Release);
        samples
    };
    let echo = || {
        let mut seen = 0;
        while seen != DONE {
            let now = ping.load(Ordering::Acquire);
            if now != seen {
                seen = now;
                pong.store(now, Ordering::Release);
            }
        }
    };
    run_pair(cpus, caller, echo)
}

/// Times, in nanoseconds, that a message of 64 B took through a ring to the other thread, and back through another,
/// every byte written, copied by the echo and checked: a lower bound for the round trip of a transport. Runs for about
/// `duration`, each thread on its processor if `cpus` names them. Each sample contains one read of the clock.
///
/// # Errors
/// As [`ping_pong`].
///
/// # Panics
/// If a message arrives garbled.
pub fn ring_ping_pong(cpus: Option<[usize; 2]>, duration: Duration) -> Result<Vec<u64>, NetError> {
    let rings = Rings::new()?;
    let caller = || {
        let clock = Clock::new();
        let mut samples = Vec::with_capacity((duration.as_micros() as usize * 10).min(SAMPLES_MAX));
        let mut differs = 0;
        let mut before = clock.now();
        let end = before + duration.as_nanos() as u64;
        while before < end && samples.len() < samples.capacity() {
            let number = samples.len() as u64 + 1;
            rings.write(number);
            while !rings.has(Ring::Answers, number) {}
            differs |= rings.differs(number);
            let now = clock.now();
            samples.push(now - before);
            before = now;
        }
        rings.finish();
        (samples, differs)
    };
    let (samples, differs) = run_pair(cpus, caller, || rings.echo())?;
    assert_eq!(differs, 0, "a message arrived garbled");
    Ok(samples)
}

/// Messages of 64 B per second that went through a ring and back through another, with at most `in_flight` (up to
/// 1,024) of them in flight, every byte written, copied by the echo and checked. Runs for about `duration`, each thread
/// on its processor if `cpus` names them.
///
/// # Errors
/// As [`ping_pong`].
///
/// # Panics
/// If a message arrives garbled.
pub fn ring_echo_rate(cpus: Option<[usize; 2]>, in_flight: u64, duration: Duration) -> Result<f64, NetError> {
    let in_flight = in_flight.clamp(1, RING_LEN);
    let rings = Rings::new()?;
    let caller = || {
        let start = Instant::now();
        let (mut sent, mut answered, mut differs) = (0, 0, 0);
        // The other thread may be descheduled for all of the time.
        while answered == 0 || start.elapsed() < duration {
            for _ in 0..HEAD_INTERVAL {
                while sent - answered < in_flight {
                    sent += 1;
                    rings.write(sent);
                }
                while rings.has(Ring::Answers, answered + 1) {
                    answered += 1;
                    differs |= rings.differs(answered);
                }
            }
        }
        rings.finish();
        (answered as f64 / start.elapsed().as_secs_f64(), differs)
    };
    let (rate, differs) = run_pair(cpus, caller, || rings.echo())?;
    assert_eq!(differs, 0, "a message arrived garbled");
    Ok(rate)
}

/// Messages of 64 B per second through a ring with one producer and one consumer, every byte written and checked. Runs
/// for about `duration`, each thread on its processor if `cpus` names them.
///
/// # Errors
/// As [`ping_pong`].
///
/// # Panics
/// If a message arrives garbled.
pub fn ring_rate(cpus: Option<[usize; 2]>, duration: Duration) -> Result<f64, NetError> {
    let words = Words::new(WORD_SPACING + RING_LEN as usize * MESSAGE_WORDS * 8)?;
    let head = words.at(0);
    let message =
        |number: u64, word: usize| words.at(WORD_SPACING + ((number % RING_LEN) as usize * MESSAGE_WORDS + word) * 8);
    let stop = AtomicBool::new(false);
    let consumer = || {
        let start = Instant::now();
        let (mut number, mut differs) = (0, 0);
        while differs == 0 && (number == 0 || start.elapsed() < duration) {
            for next in number + 1..=number + HEAD_INTERVAL {
                while message(next, 0).load(Ordering::Acquire) != next {}
                for word in 1..MESSAGE_WORDS {
                    differs |= message(next, word).load(Ordering::Relaxed) ^ next ^ word as u64;
                }
            }
            number += HEAD_INTERVAL;
            head.store(number, Ordering::Release);
        }
        stop.store(true, Ordering::Relaxed);
        (number as f64 / start.elapsed().as_secs_f64(), differs)
    };
    let producer = || {
        let mut head_seen = 0;
        for number in 1.. {
            while number - head_seen > RING_LEN {
                head_seen = head.load(Ordering::Acquire);
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
            for word in 1..MESSAGE_WORDS {
                message(number, word).store(number ^ word as u64, Ordering::Relaxed);
            }
            message(number, 0).store(number, Ordering::Release);
        }
    };
    let (rate, differs) = run_pair(cpus, consumer, producer)?;
    assert_eq!(differs, 0, "a message arrived garbled");
    Ok(rate)
}

/// Runs two functions that poll for each other, each on a thread of its own; neither starts before both threads are
/// pinned.
fn run_pair<R: Send>(
    cpus: Option<[usize; 2]>,
    first: impl FnOnce() -> R + Send,
    second: impl FnOnce() + Send,
) -> Result<R, NetError> {
    let (pinned, both) = (AtomicUsize::new(0), Barrier::new(2));
    let place = |cpu: Option<usize>| {
        let result = cpu.map_or(Ok(()), pin);
        pinned.fetch_add(usize::from(result.is_ok()), Ordering::SeqCst);
        both.wait();
        result.map(|()| pinned.load(Ordering::SeqCst) == 2)
    };
    let place = &place;
    thread::scope(|scope| {
        let second = scope.spawn(move || place(cpus.map(|c| c[1])).map(|both| both.then(second)));
        let first = scope.spawn(move || place(cpus.map(|c| c[0])).map(|both| both.then(first)));
        let second = second.join().unwrap_or_else(|panic| resume_unwind(panic));
        let first = first.join().unwrap_or_else(|panic| resume_unwind(panic));
        second.and(first).map(|result| result.expect("both threads were placed, so both ran"))
    })
}

/// Keeps the calling thread on one processor.
fn pin(cpu: usize) -> Result<(), NetError> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(NetError::BadSetting { name: "cpus", why: format!("there is no processor {cpu}") });
    }
    // SAFETY: the set is plain data that lives through the call, and `cpu` lies within it.
    let result = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if result == 0 { Ok(()) } else { Err(NetError::last_os(format!("pin a thread to processor {cpu}"))) }
}

/// Two rings of 64 B messages, and a word that says when the measurement is over.
struct Rings(Words);

/// A ring, named for what it carries.
#[derive(Clone, Copy)]
enum Ring {
    Questions,
    Answers,
}

impl Rings {
    const RING_BYTES: usize = RING_LEN as usize * MESSAGE_WORDS * 8;

    fn new() -> Result<Self, NetError> {
        Words::new(2 * Self::RING_BYTES + WORD_SPACING).map(Rings)
    }

    #[inline(always)]
    fn word(&self, ring: Ring, number: u64, word: usize) -> &AtomicU64 {
        self.0.at(ring as usize * Self::RING_BYTES + ((number % RING_LEN) as usize * MESSAGE_WORDS + word) * 8)
    }

    /// Asks a question.
    #[inline(always)]
    fn write(&self, number: u64) {
        for word in 1..MESSAGE_WORDS {
            self.word(Ring::Questions, number, word).store(number ^ word as u64, Ordering::Relaxed);
        }
        self.word(Ring::Questions, number, 0).store(number, Ordering::Release);
    }

    #[inline(always)]
    fn has(&self, ring: Ring, number: u64) -> bool {
        self.word(ring, number, 0).load(Ordering::Acquire) == number
    }

    /// Bits in which an answer differs from what it should be.
    #[inline(always)]
    fn differs(&self, number: u64) -> u64 {
        let word = |word| self.word(Ring::Answers, number, word).load(Ordering::Relaxed) ^ number ^ word as u64;
        (1..MESSAGE_WORDS).fold(0, |differs, i| differs | word(i))
    }

    /// Answers questions until the measurement is over.
    fn echo(&self) {
        for number in 1.. {
            while !self.has(Ring::Questions, number) {
                if self.over().load(Ordering::Relaxed) != 0 {
                    return;
                }
            }
            for word in 1..MESSAGE_WORDS {
                let bits = self.word(Ring::Questions, number, word).load(Ordering::Relaxed);
                self.word(Ring::Answers, number, word).store(bits, Ordering::Relaxed);
            }
            self.word(Ring::Answers, number, 0).store(number, Ordering::Release);
        }
    }

    fn finish(&self) {
        self.over().store(1, Ordering::Release);
    }

    fn over(&self) -> &AtomicU64 {
        self.0.at(2 * Self::RING_BYTES)
    }
}

/// Zeroed shared words.
struct Words(Mapping);

impl Words {
    fn new(bytes: usize) -> Result<Self, NetError> {
        let map = Mapping::anonymous(bytes)
            .map_err(|cause| NetError::Io { doing: format!("map {bytes} bytes of shared memory"), cause })?;
        map.populate(bytes);
        Ok(Words(map))
    }

    #[inline(always)]
    fn at(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.0.len(), "word outside the mapping");
        let word: NonNull<AtomicU64> = self.0.start().cast();
        // SAFETY: the word is aligned and mapped, as just checked, and only accessed as an atomic.
        unsafe { word.byte_add(offset).as_ref() }
    }

    /// The first half of a word.
    fn word32(&self, offset: usize) -> &AtomicU32 {
        let word: NonNull<AtomicU32> = NonNull::from(self.at(offset)).cast();
        // SAFETY: the lower half of a word that is aligned, mapped and only accessed as an atomic of this size from
        // here on.
        unsafe { word.as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floors_are_measured() {
        let samples = ping_pong(None, Duration::from_millis(20)).unwrap();
        assert!(!samples.is_empty() && samples.iter().all(|&ns| ns > 0));
        let samples = ring_ping_pong(None, Duration::from_millis(20)).unwrap();
        assert!(!samples.is_empty() && samples.iter().all(|&ns| ns > 0));
        assert!(ring_rate(None, Duration::from_millis(20)).unwrap() > 0.0);
        for in_flight in [1, 60, u64::MAX] {
            assert!(ring_echo_rate(None, in_flight, Duration::from_millis(20)).unwrap() > 0.0);
        }
    }

    #[test]
    fn a_processor_that_does_not_exist_is_an_error() {
        let message = ping_pong(Some([0, 1000]), Duration::from_millis(1)).unwrap_err().to_string();
        assert!(message.contains("processor 1000"), "{message}");
    }
}
