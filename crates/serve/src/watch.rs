//! Finds cores that hang, while the server runs and while it ends, so that nothing waits for them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dunlin_net::AnyTransport;

use crate::config::ServeConfig;
use crate::error::ServeError;
use crate::failure::Failure;
use crate::long_work::LongWork;
use crate::mailbox::{Control, Mailboxes};
use crate::panics::guarded_now;
use crate::service::Service;
use crate::side;
use crate::thread::Letter;

/// Longest time between two looks.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// Shortest.
const LOOK_MIN: Duration = Duration::from_millis(1);

/// A thread that asks every core again and again whether it is there. Dropped, it ends.
pub(crate) struct HangWatch {
    hung: Hung,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<Option<()>>>,
}

/// The cores that were given up.
#[derive(Clone, Default)]
struct Hung(Arc<Mutex<Vec<u16>>>);

impl Hung {
    fn lock(&self) -> MutexGuard<'_, Vec<u16>> {
        // A list of numbers is sound whatever panicked meanwhile.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long a core may be silent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    answer_max: Duration,
    long_work_max: Duration,
}

impl Patience {
    pub fn of(config: &ServeConfig) -> Patience {
        Patience { answer_max: config.answer_max.max(LOOK_MIN), long_work_max: config.long_work_max }
    }
}

/// What is known of one core.
#[derive(Default)]
struct Pulse {
    long_work: LongWork,
    /// For how long it has been at that.
    at_work: Duration,
    /// Set by its answer. `None` before the first ping.
    answered: Option<Arc<AtomicBool>>,
    /// For how long it has not answered.
    silence: Duration,
}

/// What the thread works with.
struct Watch<S: Service<AnyTransport>> {
    service: Arc<S>,
    mailboxes: Mailboxes<Letter<S>>,
    failure: Failure,
    patience: Patience,
    hung: Hung,
    pulses: Vec<Pulse>,
}

impl HangWatch {
    /// Starts to watch cores. One that has not answered for so long is given up, and is a failure.
    ///
    /// A process may stand still as a whole; so no time between two looks counts for more than [`LOOK_MAX`], and a core is
    /// looked at twice at least.
    ///
    /// # Errors
    /// [`ServeError::System`].
    pub fn start<S: Service<AnyTransport>>(
        service: &Arc<S>,
        mailboxes: &Mailboxes<Letter<S>>,
        failure: &Failure,
        patience: Patience,
        long_works: Vec<LongWork>,
    ) -> Result<HangWatch, ServeError> {
        let hung = Hung::default();
        let mut watch = Watch {
            service: service.clone(),
            mailboxes: mailboxes.clone(),
            failure: failure.clone(),
            patience,
            hung: hung.clone(),
            pulses: long_works.into_iter().map(|long_work| Pulse { long_work, ..Pulse::default() }).collect(),
        };
        let look_time = (patience.answer_max / 2).clamp(LOOK_MIN, LOOK_MAX);
        let (stop, stopped) = mpsc::channel();
        let look = move || {
            let mut looked = Instant::now();
            watch.look(Duration::ZERO);
            while stopped.recv_timeout(look_time) == Err(mpsc::RecvTimeoutError::Timeout) {
                let passed = looked.elapsed().min(look_time);
                looked = Instant::now();
                watch.look(passed);
            }
        };
        let thread = side::start("watch", look)?;
        Ok(HangWatch { hung, stop: Some(stop), thread: Some(thread) })
    }

    /// Whether a core was given up.
    pub fn is_given_up(&self, core: u16) -> bool {
        self.hung.lock().contains(&core)
    }
}

impl Drop for HangWatch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the service was logged.
            let _ = thread.join();
        }
    }
}

impl<S: Service<AnyTransport>> Watch<S> {
    /// Asks those that have answered again, and gives those up that were silent for too long.
    fn look(&mut self, passed: Duration) {
        let known = self.hung.lock().clone();
        let watched = (0..).zip(&mut self.pulses).filter(|(core, _)| !known.contains(core));
        let (mailboxes, Patience { answer_max, long_work_max }) = (&self.mailboxes, self.patience);
        let hangs = |(core, pulse): (u16, &mut Pulse)| {
            let silence = pulse.look(core, mailboxes, passed);
            (silence >= answer_max || pulse.at_work >= long_work_max).then_some(core)
        };
        let hung: Vec<u16> = watched.filter_map(hangs).collect();
        let Some(first) = hung.first() else { return };
        self.failure.note(*first, format!("it has not answered for {answer_max:?}"));
        // Before anybody goes on without them. The next ones are given up although this panics.
        guarded_now(|| self.service.give_up(&hung), |why| tracing::error!(why, "a service could not give up cores"));
        self.hung.lock().extend(&hung);
    }
}

impl Pulse {
    /// Asks the core, unless it has not answered yet. Returns how long it has been silent.
    fn look<L>(&mut self, core: u16, mailboxes: &Mailboxes<L>, passed: Duration) -> Duration {
        if self.answered.as_ref().is_some_and(|answered| !answered.load(Ordering::Acquire)) {
            if self.long_work.is_under_way() {
                // Its silence counts from the end of that.
                (self.at_work, self.silence) = (self.at_work.saturating_add(passed), Duration::ZERO);
                return self.silence;
            }
            self.silence = self.silence.saturating_add(passed);
            return self.silence;
        }
        let answered = Arc::new(AtomicBool::new(false));
        let answer = answered.clone();
        let ping = Control::Ping(Box::new(move |_| answer.store(true, Ordering::Release)));
        // One that has ended does not hang.
        self.answered = mailboxes.command(core, ping).is_ok().then_some(answered);
        (self.at_work, self.silence) = (Duration::ZERO, Duration::ZERO);
        self.silence
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::mailbox::{Mail, Mailbox, mailboxes};

    const SECOND: Duration = Duration::from_secs(1);

    fn answer(mailbox: &mut Mailbox<()>) {
        match mailbox.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(Mail::Control(Control::Ping(answer)))) => answer(0),
            other => panic!("no ping but {other:?}"),
        }
    }

    #[test]
    fn a_core_at_long_work_is_not_silent() {
        let (mailboxes, mut cores) = mailboxes::<()>(1, 1);
        let own = LongWork::default();
        let mut pulse = Pulse { long_work: own.clone(), ..Pulse::default() };
        own.attach();
        crate::long_work(|| {
            let looks = [(); 4].map(|()| pulse.look(0, &mailboxes, SECOND));
            assert_eq!((looks, pulse.at_work), ([Duration::ZERO; 4], 3 * SECOND));
        });
        assert_eq!([(); 2].map(|()| pulse.look(0, &mailboxes, SECOND)), [SECOND, 2 * SECOND], "it hangs after that");
        answer(&mut cores[0]);
        assert_eq!((pulse.look(0, &mailboxes, SECOND), pulse.at_work), (Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn silence_counts_from_the_last_answer_and_not_once_the_core_has_ended() {
        let (mailboxes, mut cores) = mailboxes::<()>(1, 1);
        mailboxes.try_send(0, ()).unwrap();
        let mut pulse = Pulse::default();
        let mut look = || pulse.look(0, &mailboxes, SECOND);
        assert_eq!([look(), look(), look()], [Duration::ZERO, SECOND, 2 * SECOND]);
        // It was asked once, before its letter.
        answer(&mut cores[0]);
        assert_eq!([look(), look()], [Duration::ZERO, SECOND]);
        answer(&mut cores[0]);
        cores.clear();
        assert_eq!([look(), look(), look()], [Duration::ZERO; 3]);
    }
}
