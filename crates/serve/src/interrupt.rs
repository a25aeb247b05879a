//! A request to stop: a flag that a signal handler may set, and a bell that wakes the waiting thread.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// How often the flag is checked if the system provides no bell.
const LOOK: Duration = Duration::from_millis(50);

/// Set when the process, or a part of its work, should stop. Clones share the flag.
///
/// ```
/// use std::time::Duration;
///
/// use dunlin_serve::Interrupt;
///
/// let interrupt = Interrupt::default();
/// let other = interrupt.clone();
/// let waiting = std::thread::spawn(move || {
///     while !other.is_set() {
///         other.wait(Duration::from_secs(60));
///     }
/// });
/// interrupt.set();
/// waiting.join().unwrap();
/// ```
#[derive(Clone, Default)]
pub struct Interrupt(Arc<Inner>);

#[derive(Default)]
struct Inner {
    flag: Arc<AtomicBool>,
    /// `None` if the system has no descriptor left.
    bell: OnceLock<Option<Bell>>,
}

/// A pair of sockets: ringing writes a byte to one, the waiting thread polls whether the other is readable.
struct Bell {
    button: UnixStream,
    clapper: UnixStream,
}

impl Bell {
    fn new() -> io::Result<Bell> {
        let (button, clapper) = UnixStream::pair()?;
        button.set_nonblocking(true)?;
        clapper.set_nonblocking(true)?;
        Ok(Bell { button, clapper })
    }

    /// Drains all rings so far.
    fn silence(&self) {
        while (&self.clapper).read(&mut [0; 64]).is_ok_and(|bytes| bytes == 64) {}
    }
}

impl Interrupt {
    /// The flag, for a signal handler to set.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0.flag)
    }

    /// The socket to which a signal handler writes a byte; `None` if the system has no descriptor left.
    pub(crate) fn button(&self) -> Option<UnixStream> {
        self.bell()?.button.try_clone().ok()
    }

    fn bell(&self) -> Option<&Bell> {
        self.0.bell.get_or_init(|| Bell::new().ok()).as_ref()
    }

    /// Whether it is set.
    #[inline]
    pub fn is_set(&self) -> bool {
        self.0.flag.load(Ordering::Relaxed)
    }

    /// Sets it, and wakes the waiting thread.
    pub fn set(&self) {
        self.0.flag.store(true, Ordering::Relaxed);
        self.ring();
    }

    /// Wakes the waiting thread without setting the flag, so that it checks something else.
    pub fn ring(&self) {
        if let Some(bell) = self.bell() {
            // If it is full, it is readable already.
            let _ = (&bell.button).write(&[0]);
        }
    }

    /// Sleeps until it is set or rung, for at most `limit`. For one thread at a time.
    pub fn wait(&self, limit: Duration) {
        let Some(bell) = self.bell() else { return thread::sleep(limit.min(LOOK)) };
        // It may have been set before there was a bell.
        let limit = if self.is_set() { Duration::ZERO } else { limit };
        let limit = Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 });
        // A timeout is no error.
        let _ = poll(&mut [PollFd::new(&bell.clapper, PollFlags::IN)], Some(&limit));
        bell.silence();
    }

    /// Waits in a tokio task until it is set. An [`Interrupt::ring`] does not end the wait. For one task or thread at a
    /// time, including [`Interrupt::wait`].
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O and time drivers.
    pub async fn until_set(&self) {
        let clapper = self.bell().and_then(|bell| bell.clapper.try_clone().ok());
        #[allow(
            deprecated,
            reason = "what replaces it is an unsafe function; for a descriptor that is owned the two are alike"
        )]
        let clapper = clapper.and_then(|clapper| AsyncFd::with_interest(clapper, Interest::READABLE).ok());
        while !self.is_set() {
            match &clapper {
                Some(clapper) => {
                    if let Ok(mut rung) = clapper.readable().await {
                        rung.clear_ready();
                    }
                    self.bell().into_iter().for_each(Bell::silence);
                }
                // The system has no descriptor left.
                None => tokio::time::sleep(LOOK).await,
            }
        }
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Interrupt").field(&self.is_set()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn a_ring_before_the_wait_is_not_lost_and_counts_once() {
        let interrupt = Interrupt::default();
        interrupt.ring();
        interrupt.ring();
        let begun = Instant::now();
        interrupt.wait(LONG);
        assert!(begun.elapsed() < LONG && !interrupt.is_set());
        interrupt.wait(Duration::from_millis(1));
        interrupt.set();
        interrupt.wait(LONG);
        // A handler set the flag without the bell.
        interrupt.wait(LONG);
        assert!(begun.elapsed() < LONG);
    }

    #[test]
    fn a_task_waits_until_it_is_set_however_often_it_is_rung() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let interrupt = Interrupt::default();
        runtime.block_on(async {
            let mut waiting = std::pin::pin!(interrupt.until_set());
            for _ in 0..3 {
                interrupt.ring();
                let waited = tokio::time::timeout(Duration::from_millis(5), waiting.as_mut()).await;
                assert!(waited.is_err(), "it is not set");
            }
            let setting = interrupt.clone();
            let setter = thread::spawn(move || setting.set());
            waiting.await;
            setter.join().unwrap();
            interrupt.until_set().await;
        });
    }

    #[test]
    fn a_bell_that_nobody_hears_blocks_nobody() {
        let interrupt = Interrupt::default();
        (0..1_000_000).for_each(|_| interrupt.ring());
        interrupt.wait(LONG);
        let begun = Instant::now();
        interrupt.wait(Duration::from_millis(1));
        assert!(begun.elapsed() < LONG);
    }
}
