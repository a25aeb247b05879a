//! A thread beside the cores of a server, with an event loop of its own: an agent at a cluster manager, or a port that
//! serves something else than requests.

use std::fmt::Display;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::error::ServeError;
use crate::interrupt::Interrupt;
use crate::panics::guarded_now;
use crate::waiting::ends_within;

/// How long a companion may take to end, once it is told to.
pub const END_MAX: Duration = Duration::from_secs(10);
/// Stack of its thread, in bytes. Without optimization the futures of an etcd's client overflow the usual 2 MiB.
const STACK_BYTES: usize = 8 << 20;

/// A companion that runs. If it panics, or ends before it is told to, it sets the interrupt of its server, and
/// [`Companion::stop`] returns the reason: a server serves with all of its threads, or not at all.
///
/// When dropped, it is told to end, and waited for.
///
/// ```
/// use dunlin_serve::{Companion, Interrupt, ServeError};
///
/// let interrupt = Interrupt::default();
/// let (port, companion) = Companion::start("counting", &interrupt, |stopped| {
///     // Whatever may fail at the start, on the new thread. Then the work, which ends when it is told to.
///     let work = move || {
///         futures::executor::block_on(stopped);
///         Ok(())
///     };
///     Ok::<_, ServeError>((7700, work))
/// })?;
/// assert_eq!(port, 7700);
/// companion.stop()?;
/// # Ok::<_, ServeError>(())
/// ```
#[must_use = "dropping it ends it"]
pub struct Companion<E: From<ServeError> + Display> {
    name: String,
    is_told: Arc<AtomicBool>,
    tell: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), E>>>,
}

/// Tells a companion to end: a flag for loops, and a future, which ends once, for tasks.
#[derive(Debug)]
pub struct Stopped {
    is_told: Arc<AtomicBool>,
    told: oneshot::Receiver<()>,
}

impl Stopped {
    /// Whether the companion is to end.
    pub fn is_set(&self) -> bool {
        self.is_told.load(Ordering::Relaxed)
    }
}

impl Future for Stopped {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.told).poll(context).map(drop)
    }
}

impl<E: From<ServeError> + Display + Send + 'static> Companion<E> {
    /// Starts a thread with a name, runs `begin` there, and returns what that has made, together with the companion,
    /// which goes on with the work.
    ///
    /// # Errors
    /// That of `begin`; [`ServeError::CompanionFailed`] if it panicked; [`ServeError::System`] if the system has no
    /// thread left.
    pub fn start<R, W>(
        name: &str,
        interrupt: &Interrupt,
        begin: impl FnOnce(Stopped) -> Result<(R, W), E> + Send + 'static,
    ) -> Result<(R, Companion<E>), E>
    where
        R: Send + 'static,
        W: FnOnce() -> Result<(), E>,
    {
        let (is_told, (tell, told)) = (Arc::<AtomicBool>::default(), oneshot::channel());
        let stopped = Stopped { is_told: is_told.clone(), told };
        let (begun, has_begun) = mpsc::channel();
        let (of_thread, interrupt, to_end) = (name.to_owned(), interrupt.clone(), is_told.clone());
        let run = move || {
            let mut why = "it ended before it was told to".to_owned();
            let work = || {
                let (made, work) = begin(stopped)?;
                // The caller waits for it.
                let _ = begun.send(made);
                work().inspect_err(|_| interrupt.set())
            };
            match guarded_now(work, |panic| why = panic) {
                Some(Err(error)) => Err(error),
                Some(Ok(())) if to_end.load(Ordering::Relaxed) => Ok(()),
                _ => {
                    interrupt.set();
                    Err(ServeError::CompanionFailed { name: of_thread, why }.into())
                }
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(run);
        let thread = thread.map_err(|why| ServeError::System { what: "a thread", why: why.to_string() })?;
        let mut companion = Companion { name: name.to_owned(), is_told, tell: Some(tell), thread: Some(thread) };
        match has_begun.recv() {
            Ok(made) => Ok((made, companion)),
            // It has ended, and says why.
            Err(mpsc::RecvError) => Err(companion.end(END_MAX).err().unwrap_or_else(|| ServeError::Ended.into())),
        }
    }

    /// Tells it to end, and waits until it has.
    ///
    /// # Errors
    /// That of its work; [`ServeError::CompanionFailed`] if it panicked, had ended before, or does not end within
    /// [`END_MAX`]: then its thread ends with the process.
    pub fn stop(mut self) -> Result<(), E> {
        self.end(END_MAX)
    }
}

impl<E: From<ServeError> + Display> Companion<E> {
    fn end(&mut self, within: Duration) -> Result<(), E> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.is_told.store(true, Ordering::Relaxed);
        // If it is gone, its result says why.
        let _ = self.tell.take().map(|tell| tell.send(()));
        if !ends_within(within, &thread) {
            let why = format!("it did not end within {within:?}");
            return Err(ServeError::CompanionFailed { name: self.name.clone(), why }.into());
        }
        thread.join().unwrap_or_else(|_| Err(ServeError::Ended.into()))
    }
}

impl<E: From<ServeError> + Display> Drop for Companion<E> {
    fn drop(&mut self) {
        if let Err(why) = self.end(END_MAX) {
            tracing::error!(why = format!("{why:#}"), "a thread beside the cores has failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;

    /// Long enough for any thread to come to its end.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn start<W: FnOnce() -> Result<(), ServeError>>(
        interrupt: &Interrupt,
        begin: impl FnOnce(Stopped) -> Result<(u32, W), ServeError> + Send + 'static,
    ) -> Result<Companion<ServeError>, ServeError> {
        Companion::start("beside", interrupt, begin).map(|(made, companion)| {
            assert_eq!(made, 7);
            companion
        })
    }

    fn why(ended: Result<(), ServeError>) -> String {
        ended.unwrap_err().to_string()
    }

    #[test]
    fn it_ends_when_it_is_told_to() {
        let interrupt = Interrupt::default();
        let by_future = |stopped| {
            let work = move || {
                block_on(stopped);
                Ok(())
            };
            Ok((7, work))
        };
        start(&interrupt, by_future).unwrap().stop().unwrap();
        let by_flag = |stopped: Stopped| {
            let work = move || {
                while !stopped.is_set() {
                    thread::yield_now();
                }
                Ok(())
            };
            Ok((7, work))
        };
        start(&interrupt, by_flag).unwrap().stop().unwrap();
        drop(start(&interrupt, by_flag).unwrap());
        assert!(!interrupt.is_set());
    }

    #[test]
    fn its_failure_interrupts_the_server_and_is_its_result() {
        type Work = fn() -> Result<(), ServeError>;
        let cases: [(Work, &str); 3] = [
            (|| panic!("a fault"), "the thread beside has failed: it panicked: a fault"),
            (|| Ok(()), "the thread beside has failed: it ended before it was told to"),
            (|| Err(ServeError::NoAddress), "no address to listen at"),
        ];
        for (work, expected) in cases {
            let interrupt = Interrupt::default();
            let companion = start(&interrupt, move |_| Ok((7, work))).unwrap();
            while !interrupt.is_set() {
                interrupt.wait(PATIENCE);
            }
            let told = why(companion.stop());
            assert!(told.starts_with(expected), "{told}");
        }
    }

    #[test]
    fn a_failed_start_is_told_to_who_starts_it() {
        type Made = Result<(u32, fn() -> Result<(), ServeError>), ServeError>;
        let interrupt = Interrupt::default();
        let refused = start(&interrupt, |_| Made::Err(ServeError::NoAddress)).map(drop);
        assert!(why(refused).starts_with("no address"));
        assert!(!interrupt.is_set(), "who starts it knows");
        let failed = start(&interrupt, |_| -> Made { panic!("a fault") }).map(drop);
        assert!(why(failed).contains("it panicked: a fault"));
    }

    #[test]
    fn one_that_hangs_is_not_waited_for_beyond_the_bound() {
        let (release, held) = mpsc::channel::<()>();
        let hang = move |_| {
            let work = move || {
                let _ = held.recv();
                Ok(())
            };
            Ok((7, work))
        };
        let mut companion = start(&Interrupt::default(), hang).unwrap();
        assert!(why(companion.end(Duration::from_millis(20))).contains("it did not end within 20ms"));
        drop(release);
    }
}
