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

/// Longest time between two checks.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// Shortest time between two checks.
const LOOK_MIN: Duration = Duration::from_millis(1);

/// A thread that pings every core repeatedly. It ends when this is dropped.
pub(crate) struct HangWatch {
    hung: Hung,
    excuses_nothing: Arc<AtomicBool>,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<Option<()>>>,
}

/// The cores that were given up.
#[derive(Clone, Default)]
struct Hung(Arc<Mutex<Vec<u16>>>);

impl Hung {
    fn lock(&self) -> MutexGuard<'_, Vec<u16>> {
        // The list of numbers is valid, whatever panicked meanwhile.
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

/// The state of one core.
#[derive(Default)]
struct Pulse {
    long_work: LongWork,
    /// How long the present long work has lasted.
    at_work: Duration,
    /// Set by its answer. `None` before the first ping.
    answered: Option<Arc<AtomicBool>>,
    /// How long it has not answered.
    silence: Duration,
}

/// What the thread works on.
struct Watch<S: Service<AnyTransport>> {
    service: Arc<S>,
    mailboxes: Mailboxes<Letter<S>>,
    failure: Failure,
    patience: Patience,
    hung: Hung,
    /// Once set, long work counts as silence.
    excuses_nothing: Arc<AtomicBool>,
    pulses: Vec<Pulse>,
}

impl HangWatch {
    /// Starts to watch cores. A core that does not answer for longer than `patience` allows is given up, which is a
    /// failure.
    ///
    /// A process may stand still as a whole; so no time between two checks counts for more than [`LOOK_MAX`], and a
    /// core is checked at least twice.
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
        let (hung, excuses_nothing) = (Hung::default(), Arc::<AtomicBool>::default());
        let mut watch = Watch {
            service: service.clone(),
            mailboxes: mailboxes.clone(),
            failure: failure.clone(),
            patience,
            hung: hung.clone(),
            excuses_nothing: excuses_nothing.clone(),
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
        Ok(HangWatch { hung, excuses_nothing, stop: Some(stop), thread: Some(thread) })
    }

    /// From now on, a core that does long work and does not answer is treated like any other that does not answer.
    pub fn excuse_nothing(&self) {
        self.excuses_nothing.store(true, Ordering::Release);
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
    /// Pings the cores that have answered, and gives up those that were silent for too long.
    fn look(&mut self, passed: Duration) {
        let known = self.hung.lock().clone();
        if self.excuses_nothing.load(Ordering::Acquire) {
            // Replace them by one that is never under way.
            self.pulses.iter_mut().for_each(|pulse| pulse.long_work = LongWork::default());
        }
        let watched = (0..).zip(&mut self.pulses).filter(|(core, _)| !known.contains(core));
        let hangs = |(core, pulse): (u16, &mut Pulse)| {
            pulse.look(core, &self.mailboxes, passed);
            Some((core, pulse.complaint(self.patience)?))
        };
        let (hung, complaints): (Vec<u16>, Vec<String>) = watched.filter_map(hangs).unzip();
        let Some((first, why)) = hung.first().zip(complaints.into_iter().next()) else { return };
        self.failure.note(*first, why);
        // Before anything continues without them. If this panics, later ones are given up all the same.
        guarded_now(|| self.service.give_up(&hung), |why| tracing::error!(why, "a service could not give up cores"));
        self.hung.lock().extend(&hung);
    }
}

impl Pulse {
    /// Why the core should be given up, if so.
    fn complaint(&self, patience: Patience) -> Option<String> {
        let Patience { answer_max, long_work_max } = patience;
        if self.silence >= answer_max {
            return Some(format!("it has not answered for {answer_max:?}"));
        }
        let is_too_long = self.at_work >= long_work_max;
        is_too_long.then(|| format!("what it announced as long work has taken more than {long_work_max:?}"))
    }

    /// Pings the core, unless it has not answered the last ping yet.
    fn look<L>(&mut self, core: u16, mailboxes: &Mailboxes<L>, passed: Duration) {
        if self.answered.as_ref().is_some_and(|answered| !answered.load(Ordering::Acquire)) {
            if self.long_work.is_under_way() {
                // Its silence counts from the end of the long work.
                (self.at_work, self.silence) = (self.at_work.saturating_add(passed), Duration::ZERO);
            } else {
                self.silence = self.silence.saturating_add(passed);
            }
            return;
        }
        let answered = Arc::new(AtomicBool::new(false));
        let answer = answered.clone();
        let ping = Control::Ping(Box::new(move |_| answer.store(true, Ordering::Release)));
        // A core that has ended does not hang.
        self.answered = mailboxes.command(core, ping).is_ok().then_some(answered);
        (self.at_work, self.silence) = (Duration::ZERO, Duration::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::mailbox::{Mail, Mailbox, mailboxes};

    const SECOND: Duration = Duration::from_secs(1);

    /// How long the core counts as silent at the next check, a second after the previous one.
    fn silence(pulse: &mut Pulse, mailboxes: &Mailboxes<()>) -> Duration {
        pulse.look(0, mailboxes, SECOND);
        pulse.silence
    }

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
            let looks = [(); 4].map(|()| silence(&mut pulse, &mailboxes));
            assert_eq!((looks, pulse.at_work), ([Duration::ZERO; 4], 3 * SECOND));
        });
        assert_eq!([(); 2].map(|()| silence(&mut pulse, &mailboxes)), [SECOND, 2 * SECOND], "it hangs after that");
        answer(&mut cores[0]);
        assert_eq!((silence(&mut pulse, &mailboxes), pulse.at_work), (Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn silence_counts_from_the_last_answer_and_not_once_the_core_has_ended() {
        let (mailboxes, mut cores) = mailboxes::<()>(1, 1);
        mailboxes.try_send(0, ()).unwrap();
        let mut pulse = Pulse::default();
        let mut look = || silence(&mut pulse, &mailboxes);
        assert_eq!([look(), look(), look()], [Duration::ZERO, SECOND, 2 * SECOND]);
        // It was pinged once, before its letter.
        answer(&mut cores[0]);
        assert_eq!([look(), look()], [Duration::ZERO, SECOND]);
        answer(&mut cores[0]);
        cores.clear();
        assert_eq!([look(), look(), look()], [Duration::ZERO; 3]);
    }
}
