//! The watchman beside the leader.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use dunlin_net::Transport;
use dunlin_rpc::{Endpoint, Timers};
use dunlin_smr::wire::response::{Role, Status};
use dunlin_smr::{Client, LogStore, Node, ReadFrom, StateMachine};

use super::client::{answer_of, astray, execute, query};
use crate::either::until;
use crate::error::CoordError;
use crate::model::Hearing;
use crate::watchman::{Pulse, Reign, WatchmanConfig, WatchmanCounters};
use crate::wire::{Answer, Command, Query};

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A watchman. Dropping it ends it. Drop it before its endpoint, since its client holds the endpoint.
pub struct Watchman {
    counters: Rc<Cell<WatchmanCounters>>,
    task: Rc<RefCell<Option<Task>>>,
}

impl Drop for Watchman {
    fn drop(&mut self) {
        // The task is borrowed while it runs; then it cannot be dropped here, since it holds no handle to itself.
        if let Ok(mut task) = self.task.try_borrow_mut() {
            *task = None;
        }
    }
}

struct Work<T: Transport, L> {
    client: Client<T>,
    timers: Timers,
    config: WatchmanConfig,
    hearing: Hearing,
    leads: L,
    counters: Rc<Cell<WatchmanCounters>>,
}

/// If dropped in the middle of a reign, it closes the hearing.
impl<T: Transport, L> Drop for Work<T, L> {
    fn drop(&mut self) {
        self.hearing.close();
    }
}

impl Watchman {
    /// Watches beside a replica, whenever that replica leads. `client` is on `endpoint`, which may be that of the
    /// replica or another one of its thread. The cluster number and the members are taken from the replica, whatever
    /// the client was made with. `hearing` is that of the replica's [machine](crate::model::Machine).
    ///
    /// # Errors
    /// [`CoordError::Backend`] if a setting is out of range.
    pub fn start<T, M, L>(
        endpoint: &Endpoint<T>,
        node: &Node<M, L>,
        client: Client<T>,
        hearing: Hearing,
        config: WatchmanConfig,
    ) -> Result<Watchman, CoordError>
    where
        T: Transport + 'static,
        M: StateMachine + 'static,
        L: LogStore + 'static,
    {
        config.check()?;
        let (node, counters) = (node.clone(), Rc::<Cell<WatchmanCounters>>::default());
        let leads =
            move || node.failure().is_none().then(|| node.status()).filter(|status| status.role == Role::Leader);
        // It decides by what its own replica has heard.
        let client = client.reading_from(ReadFrom::Leader);
        let work = Work { timers: client.timers(), client, config, hearing, leads, counters: counters.clone() };
        let task: Rc<RefCell<Option<Task>>> = Rc::new(RefCell::new(Some(Box::pin(work.run()))));
        let running = task.clone();
        endpoint.spawn(poll_fn(move |context| {
            running.borrow_mut().as_mut().map_or(Poll::Ready(()), |task| task.as_mut().poll(context))
        }));
        Ok(Watchman { counters, task })
    }

    /// Its counters.
    pub fn counters(&self) -> WatchmanCounters {
        self.counters.get()
    }
}

impl<T: Transport, L: Fn() -> Option<Status>> Work<T, L> {
    async fn run(self) {
        loop {
            if let Some(status) = (self.leads)() {
                self.client.follow(&status);
                let ended = self.reign().await;
                self.hearing.close();
                match ended {
                    Err(error) if (self.leads)().is_some() => {
                        tracing::warn!(id = status.id, %error, "members and leases are not watched until the watchman begins anew");
                    }
                    Err(error) => tracing::debug!(id = status.id, %error, "the watchman ends its reign"),
                    Ok(()) => {}
                }
            }
            self.timers.sleep(self.config.look_every).await;
        }
    }

    fn count(&self, count: impl FnOnce(&mut WatchmanCounters)) {
        let mut counters = self.counters.get();
        count(&mut counters);
        self.counters.set(counters);
    }

    /// Watches as long as the replica leads and no other watchman reigns.
    async fn reign(&self) -> Result<(), CoordError> {
        let reigns = Command::Reign { failure_timeout_ms: self.config.failure_timeout_ms() };
        let number = answer_of!(execute(&self.client, reigns).await?, Answer::Reigns { reign } => reign)?;
        self.count(|counters| counters.reigns += 1);
        tracing::info!(reign = number, "this replica watches members and leases from now on");
        self.hearing.open(number);
        let mut reign = Reign::new(number, self.timers.now());
        while (self.leads)().is_some() {
            self.look(&mut reign).await?;
            self.timers.sleep(self.config.look_every).await;
        }
        Ok(())
    }

    /// Reads the counts, and has silent members marked as failed and unrenewed leases ended.
    async fn look(&self, reign: &mut Reign) -> Result<(), CoordError> {
        let number = reign.number();
        let looking = query(&self.client, Query::Pulse { reign: number });
        // A later answer would be useless: all waiting would begin anew.
        let answer = until(looking, self.timers.sleep(self.config.gap_max())).await;
        let answer = answer.ok_or(CoordError::TimedOut { may_have_run: false })??;
        answer_of!(answer, Answer::Reigns { .. } => ())?;
        // If another replica leads by now, the counts were taken there and not here.
        let pulse = self.hearing.pulse().ok_or(CoordError::ReignOver { reign: number })?;
        self.count(|counters| counters.looks += 1);
        let seen = reign.see(self.timers.now(), pulse, &self.config);
        self.count(|counters| counters.late_looks += u64::from(seen.was_late));
        for part in seen.parts() {
            self.decide(number, part).await?;
        }
        Ok(())
    }

    /// Has one part of the findings decided, with a command that is one step. Without an answer the reign ends, and
    /// with it everything that is condemned.
    async fn decide(&self, reign: u64, over: Pulse) -> Result<(), CoordError> {
        let found = (over.members.len() + over.leases.len()) as u64;
        let (members, leases) = self.hearing.condemn(over);
        let heard_since = found - (members.len() + leases.len()) as u64;
        self.count(|counters| counters.refused += heard_since);
        if members.is_empty() && leases.is_empty() {
            return Ok(());
        }
        let decided = answer_of!(
            execute(&self.client, Command::Decide { reign, members, leases }).await?,
            Answer::Decided { failures, lapses, refused } => [failures, lapses, refused]
        );
        let [failures, lapses, refused] = decided.inspect_err(|_| self.count(|counters| counters.refused += 1))?;
        self.hearing.pardon_all();
        self.count(|counters| {
            counters.steps += 1;
            counters.failures += failures;
            counters.lapses += lapses;
            counters.refused += refused;
        });
        Ok(())
    }
}
