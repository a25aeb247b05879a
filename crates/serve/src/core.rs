//! A core, from its first letter to its last. It does not matter what runs it: a thread, a tokio runtime, or a test.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::Transport;
use dunlin_rpc::Endpoint;
use tokio::task::yield_now;

use crate::failure::Health;
use crate::mailbox::{Answer, Control, Mail, Mailbox};
use crate::panics::{guarded, guarded_now};
use crate::service::{Core, Pace};
use crate::waiting::within;

/// Letters read in a row before the other tasks of the core get their turn.
const LETTERS_PER_TURN: u32 = 8;
/// How long peers have to learn that the endpoint has shut down. Those that do not answer by then are not waited for.
const GOODBYE: Duration = Duration::from_secs(1);

/// A core that was built, with everything it needs to run.
pub(crate) struct Attendant<T: Transport, C: Core> {
    pub number: u16,
    pub core: C,
    pub endpoint: Rc<Endpoint<T>>,
    /// Whether the endpoint ends with the core. If not, it also runs other things, which continue.
    pub owns_endpoint: bool,
    pub mailbox: Mailbox<C::Letter>,
    pub health: Health,
    pub patience: Duration,
    pub draining: Option<Draining>,
}

/// The work of draining the core, and the callback for its end.
pub(crate) struct Draining {
    work: Pin<Box<dyn Future<Output = ()>>>,
    done: Answer,
}

impl<T: Transport + 'static, C: Core> Attendant<T, C> {
    /// Reads letters until the last one, or until the core fails.
    pub async fn attend(&mut self) {
        let mut read = 0;
        while let Some(mail) = self.next().await {
            let pace = match mail {
                Mail::Control(Control::Failed) => return,
                Mail::Control(control) => {
                    self.obey(control);
                    Pace::Go
                }
                Mail::Letter(letter) => self.read(letter),
            };
            read += 1;
            if pace == Pace::Yield || read >= LETTERS_PER_TURN {
                read = 0;
                yield_now().await;
            }
        }
    }

    /// Reads the remaining letters of a core that has failed. If the core owns its endpoint, the endpoint's handlers
    /// and tasks are dropped: they execute nothing more.
    pub async fn attend_after_failure(&mut self) {
        if self.owns_endpoint {
            guarded_now(|| self.endpoint.drop_application(), |why| self.health.fail(why));
        }
        // Nothing drains it any more.
        if let Some(Draining { done, work }) = self.draining.take() {
            guarded_now(|| drop(work), |_| ());
            done(self.number);
        }
        while let Some(mail) = self.next().await {
            match mail {
                Mail::Control(control) => self.obey(control),
                Mail::Letter(letter) => drop(self.read(letter)),
            }
        }
    }

    /// The next mail. Draining continues meanwhile.
    async fn next(&mut self) -> Option<Mail<C::Letter>> {
        poll_fn(|context| {
            if let Some(draining) = &mut self.draining
                && draining.work.as_mut().poll(context).is_ready()
                && let Some(Draining { done, .. }) = self.draining.take()
            {
                guarded_now(|| self.core.drained(), |why| self.health.fail(why));
                done(self.number);
            }
            self.mailbox.poll(context)
        })
        .await
    }

    fn read(&mut self, letter: C::Letter) -> Pace {
        let has_failed = self.health.has_failed();
        let core = &mut self.core;
        let read = || {
            if !has_failed {
                return core.read(letter);
            }
            core.read_after_failure(letter);
            Pace::Go
        };
        // A panic here would take the state with it before it is saved.
        guarded_now(read, |why| self.health.fail(why)).unwrap_or(Pace::Go)
    }

    fn obey(&mut self, control: Control) {
        match control {
            Control::Ping(answer) => answer(self.number),
            // Report its end, so that nobody waits any longer.
            Control::Drain(done) if self.health.has_failed() => done(self.number),
            Control::Drain(done) => {
                let draining = self.drain(done);
                self.draining = draining;
            }
            Control::Exit => self.mailbox.close(),
            // Known already.
            Control::Failed => {}
        }
    }

    /// Begins to drain the core.
    fn drain(&mut self, done: Answer) -> Option<Draining> {
        let (endpoint, patience, health, number) =
            (self.endpoint.clone(), self.patience, self.health.clone(), self.number);
        let Some(first) = guarded_now(|| self.core.drain(patience), |why| health.fail(why)) else {
            done(number);
            return None;
        };
        let owns_endpoint = self.owns_endpoint;
        let work = async move {
            first.await;
            if !owns_endpoint {
                return;
            }
            let time = patience.saturating_add(GOODBYE);
            let unfinished = within(&endpoint.timers(), time, endpoint.shutdown(patience)).await;
            match unfinished {
                Some(unfinished) if unfinished.is_nothing() => {}
                Some(unfinished) => {
                    tracing::warn!(core = number, ?unfinished, "a core left requests unanswered when it stopped")
                }
                None => {
                    tracing::warn!(core = number, "peers did not answer when a core stopped");
                    // The shutdown would have done this at its end.
                    endpoint.drop_application();
                }
            }
        };
        let work = Box::pin(async move {
            guarded(work, |why| health.fail(why)).await;
        });
        Some(Draining { work, done })
    }
}
