//! A core, from its first letter to its last. What runs it is not its concern: a thread, a tokio runtime, or a test.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use dunlin_net::Transport;
use dunlin_rpc::Endpoint;
use tokio::task::yield_now;

use crate::failure::Health;
use crate::mailbox::{Answer, Mail, Mailbox};
use crate::panics::{guarded, guarded_now};
use crate::service::{Core, Pace};

/// Letters that are read one after the other before the other tasks of the core have their turn.
const LETTERS_PER_TURN: u32 = 8;
/// How long peers have to learn that the endpoint has shut down. Those that do not answer are not waited for.
const GOODBYE: Duration = Duration::from_secs(1);

/// A core that was built, with all that it runs with.
pub(crate) struct Attendant<T: Transport, C: Core> {
    pub number: u16,
    pub core: C,
    pub endpoint: Rc<Endpoint<T>>,
    pub mailbox: Mailbox<C::Letter>,
    pub health: Health,
    pub patience: Duration,
    pub draining: Option<Draining>,
}

/// Work that ends what is in progress, and whoever waits for that.
pub(crate) struct Draining {
    work: Pin<Box<dyn Future<Output = ()>>>,
    done: Answer,
}

impl<T: Transport + 'static, C: Core> Attendant<T, C> {
    /// Reads letters until the last.
    pub async fn attend(&mut self) {
        let mut read = 0;
        while let Some(mail) = self.next().await {
            let pace = match mail {
                Mail::Exit => return,
                Mail::Letter(letter) => self.read(letter),
                other => {
                    self.obey(other);
                    Pace::Go
                }
            };
            read += 1;
            if pace == Pace::Yield || read >= LETTERS_PER_TURN {
                read = 0;
                yield_now().await;
            }
        }
    }

    /// The same for a core that has failed, whose event loop is gone.
    pub fn attend_after_failure(&mut self) {
        // Nothing drains it any more.
        self.obey(Mail::Failed);
        while let Some(mail) = self.mailbox.0.blocking_recv() {
            match mail {
                Mail::Exit => return,
                Mail::Letter(letter) => drop(self.read(letter)),
                other => self.obey(other),
            }
        }
    }

    /// The next letter. What drains the core goes on meanwhile.
    async fn next(&mut self) -> Option<Mail<C::Letter>> {
        poll_fn(|context| {
            if let Some(draining) = &mut self.draining
                && draining.work.as_mut().poll(context).is_ready()
                && let Some(Draining { done, .. }) = self.draining.take()
            {
                guarded_now(|| self.core.drained(), |why| self.health.fail(why));
                done(self.number);
            }
            self.mailbox.0.poll_recv(context)
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

    fn obey(&mut self, mail: Mail<C::Letter>) {
        match mail {
            Mail::Ping(answer) => answer(self.number),
            // Whoever is told when it is over waits no longer.
            Mail::Drain(done) if self.health.has_failed() => done(self.number),
            Mail::Drain(done) => {
                let draining = self.drain(done);
                self.draining = draining;
            }
            Mail::Failed => {
                if let Some(Draining { done, work }) = self.draining.take() {
                    guarded_now(|| drop(work), |_| ());
                    done(self.number);
                }
            }
            Mail::Letter(_) | Mail::Exit => {}
        }
    }

    /// Begins to end what is in progress.
    fn drain(&mut self, done: Answer) -> Option<Draining> {
        let (endpoint, patience, health, number) = (self.endpoint.clone(), self.patience, self.health.clone(), self.number);
        let Some(first) = guarded_now(|| self.core.drain(patience), |why| health.fail(why)) else {
            done(number);
            return None;
        };
        let work = async move {
            first.await;
            let unfinished = within(patience + GOODBYE, &endpoint, endpoint.shutdown(patience)).await;
            match unfinished {
                Some(unfinished) if unfinished.is_nothing() => {}
                Some(unfinished) => {
                    tracing::warn!(core = number, ?unfinished, "a core left requests unanswered when it stopped")
                }
                None => tracing::warn!(core = number, "peers did not answer when a core stopped"),
            }
        };
        let work = Box::pin(async move {
            guarded(work, |why| health.fail(why)).await;
        });
        Some(Draining { work, done })
    }
}

/// Does some work, for so long at most.
async fn within<T: Transport, R>(time: Duration, endpoint: &Endpoint<T>, work: impl Future<Output = R>) -> Option<R> {
    let timers = endpoint.timers();
    let (mut work, mut end) = (pin!(work), pin!(timers.sleep(time)));
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => end.as_mut().poll(context).map(|()| None),
    })
    .await
}
