//! One core of a server: an endpoint, a partition and its memcached connections, in one event loop.

use std::error::Error;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dunlin_net::{Addr, Transport};
use dunlin_rpc::{DeferredRequest, Endpoint};
use dunlin_serve::{Core, Draining, Health, Pace, ServeError, guarded, guarded_now};
use dunlin_store::snapshot::{Part, Turn};
use dunlin_store::{Moment, Sweep};
use tokio::sync::Mutex;
use tokio::task::{AbortHandle, spawn_local, yield_now};

use super::clock::{moment, ticks};
use super::config::ServerConfig;
use super::error::ServerError;
use super::mail::{Mail, Mailboxes};
use super::memcached::Memcached;
use super::saving::{Saver, Saving};
use crate::memcached::Ran;
use crate::metrics::CoreStats;
use crate::service::{Identity, KvService};
use crate::shard::Shard;
use crate::tier::{Desk, desk};
use crate::wire::{ServerMap, Status};

/// How long a core waits for the disk before it checks again.
const SNAPSHOT_WAIT: Duration = Duration::from_millis(1);

/// What a core reports when it is built: its partition is filled, and it listens.
pub(super) struct Ready {
    pub addresses: Vec<Addr>,
    pub memcached: Vec<String>,
    pub value_bytes_max: u64,
}

/// What all cores are built from.
pub(super) struct Plan {
    pub map: ServerMap,
    /// The addresses for memcached clients.
    pub memcached: Vec<String>,
    /// Held by the core that has all of them flushed.
    pub flushing: Arc<Mutex<()>>,
}

/// A running core.
pub(super) struct KvCore<T: Transport, P> {
    pub endpoint: Rc<Endpoint<T>>,
    pub shard: Rc<Shard<P>>,
    pub memcached: Memcached<P>,
    pub config: Arc<ServerConfig>,
    pub identity: Identity,
    pub saving: Saving,
    pub mailboxes: Mailboxes,
    pub health: Health,
    /// The task that updates the partition's time.
    pub ticking: Option<AbortHandle>,
}

impl<T: Transport + 'static, P: Sweep + 'static> Core for KvCore<T, P> {
    type Letter = Mail;
    type Plan = Plan;
    type Error = ServerError;

    fn begin(&mut self, plan: &Arc<Plan>) -> Result<(), ServerError> {
        self.memcached.begin(&self.shard, &self.config, &self.mailboxes, &plan.flushing, &self.health);
        let service = KvService::new(self.shard.clone(), plan.map.clone()).with_identity(self.identity.clone());
        service.add_stats(self.memcached.stats());
        if self.saving.has_file() {
            let saver = self.saving.of(&self.mailboxes);
            service.on_snapshot(move |request| answer_snapshot(&saver, request));
        }
        service.register(&self.endpoint).map_err(ServeError::from)?;
        self.ticking = Some(self.tick());
        let (attending, health) = (desk::attend(self.shard.clone()), self.health.clone());
        let attending = spawn_local(async move { guarded(attending, |why| health.fail(why)).await }).abort_handle();
        self.health.on_failure(move || attending.abort());
        Ok(())
    }

    fn read(&mut self, letter: Mail) -> Pace {
        match letter {
            Mail::Snapshot(part) => self.take_part(part),
            Mail::Stats(answer) => {
                let endpoint = self.endpoint.stats();
                let mut stats =
                    CoreStats::take(&self.shard.metrics.borrow(), self.shard.store.borrow().stats(), &endpoint);
                stats.tier = self.shard.tier_stats();
                stats.multi_gets = self.shard.line.stats();
                self.memcached.stats()(&mut stats);
                let _ = answer.send(stats);
            }
            Mail::Adopt(socket) => self.memcached.adopt(socket),
            Mail::Run(mut batch, answer) => match self.memcached.run(&mut batch) {
                // The sender may be gone.
                Ran::Over => drop(answer.send(batch)),
                Ran::More | Ran::Turn | Ran::Tier => {
                    self.memcached.run_rest(batch, answer);
                    return Pace::Yield;
                }
            },
            Mail::Flush(at, answer) => {
                self.memcached.flush(at);
                let _ = answer.send(());
            }
            Mail::Ask(inquiry, answer) => {
                if let Some(report) = self.memcached.report(inquiry) {
                    // The sender may be gone.
                    let _ = answer.send(report);
                }
            }
        }
        Pace::Go
    }

    /// Serves what only reads: snapshots. Senders of other letters learn that there is no answer.
    fn read_after_failure(&mut self, letter: Mail) {
        if let Mail::Snapshot(part) = letter {
            self.take_part(part);
        }
    }

    fn drain(&mut self, patience: Duration) -> Draining {
        Box::pin(self.memcached.stop(patience))
    }

    fn drained(&mut self) {
        // Work that falls due from now on, such as a scheduled flush, would spoil the last snapshot.
        if let Some(ticking) = self.ticking.take() {
            ticking.abort();
        }
        self.shard.desk().into_iter().for_each(Desk::close);
    }
}

impl<T: Transport + 'static, P: Sweep + 'static> KvCore<T, P> {
    fn take_part(&self, part: Part) {
        spawn_local(take_part(self.shard.clone(), part, self.health.clone()));
    }

    /// Begins to update the partition's time. Returns a handle that ends it.
    fn tick(&self) -> AbortHandle {
        let (shard, flush, health) = (self.shard.clone(), self.memcached.flush_if_due(), self.health.clone());
        let tick = self.config.tick;
        let ticking = async move {
            let mut ticks = ticks(tick);
            loop {
                ticks.tick().await;
                tick_to(moment(), &shard, &flush).await;
            }
        };
        let ticking = spawn_local(async move {
            guarded(ticking, |why| health.fail(why)).await;
        });
        let ticking = ticking.abort_handle();
        let on_failure = ticking.clone();
        self.health.on_failure(move || on_failure.abort());
        ticking
    }
}

/// Sets the time, and does what is due then.
async fn tick_to<P: Sweep>(moment: Moment, shard: &Shard<P>, flush_if_due: &impl Fn()) {
    shard.set_moment(moment);
    expire(shard).await;
    flush_if_due();
}

/// Drops expired items, as many as the partition asks for, and lets the other tasks of the core run in between.
async fn expire<P: Sweep>(shard: &Shard<P>) {
    let mut calls = 1;
    while shard.store.borrow_mut().expire_some() > calls {
        calls += 1;
        yield_now().await;
    }
}

/// Saves a snapshot, and then answers.
fn answer_snapshot(saver: &Saver, request: DeferredRequest) {
    let begun = saver.begin();
    spawn_local(async move {
        let status = match begun {
            Err(error) => {
                tracing::warn!(error = &error as &(dyn Error + 'static), "a snapshot was asked for");
                Status::Failed
            }
            Ok(end) => match end.await {
                Ok(Ok(_)) => Status::Done,
                Ok(Err(error)) => {
                    tracing::error!(error = &error as &(dyn Error + 'static), "a snapshot was asked for");
                    Status::Failed
                }
                Err(_) => Status::Failed,
            },
        };
        // The caller may be gone.
        let _ = request.enqueue_response(vec![status as u8]);
    });
}

/// Takes part in a snapshot, a little between two bursts, as tasks of one thread do. Continues even if the core failed:
/// what can be read is saved.
async fn take_part<P: Sweep>(shard: Rc<Shard<P>>, mut part: Part, health: Health) {
    loop {
        let turn = guarded_now(|| part.turn(&mut *shard.store.borrow_mut()), |why| health.fail(why));
        match turn {
            Some(Turn::Again) => yield_now().await,
            Some(Turn::Wait) => tokio::time::sleep(SNAPSHOT_WAIT).await,
            // Dropping a part before it is over ends the snapshot.
            Some(Turn::Over) | None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use dunlin_store::{Mode, Partition, PartitionConfig, Put, Store as _};

    use super::*;
    use crate::routing::Routing;

    #[tokio::test]
    async fn items_that_expired_go_without_any_request() {
        const ITEMS: u64 = 10_000;
        let store = Partition::new(PartitionConfig::new(Mode::Store, 4 << 20)).unwrap();
        let shard = Shard::new(store, Routing::new([1; 16], 1).unwrap(), 0);
        let at = |now| Moment { now, ..Moment::default() };
        shard.set_moment(at(1_000));
        for number in 0..ITEMS {
            let mut store = shard.store.borrow_mut();
            let name = number.to_be_bytes();
            let key = store.key(&name).unwrap();
            store.put(&key, b"gone soon", Put { expires: Some(1_001), ..Put::default() }).unwrap();
        }
        let items = || shard.store.borrow().stats().items;
        tick_to(at(1_000), &shard, &|| ()).await;
        assert_eq!(items(), ITEMS);
        // The sweep is bounded: it goes on with each tick.
        for now in 1_002..1_102 {
            tick_to(at(now), &shard, &|| ()).await;
        }
        assert_eq!(items(), 0);
    }
}
