//! The watchman of an etcd: of all that run, one reigns and the others stand by.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dunlin_net::clock::nanos;
use etcd_client::{KeyValue, Txn};
use tokio::task::JoinHandle;

use super::decisions::{Decided, next_part};
use super::leases::{name_of, renewed_by, tenancy};
use super::members::id_of;
use super::work::{Work, get, get_all, is_of, look, look_at_all, number, put, revision_for_etcd};
use super::{Etcd, WorkSource, clock};
use crate::error::CoordError;
use crate::types::{Incarnation, Revision};
use crate::watchman::{Beat, Pulse, Reign, Silence, Tenure, WatchmanConfig, WatchmanCounters};

/// Signs of life that the reigning watchman gives to the others within the failure timeout.
const SIGNS_OF_TIMEOUT: u32 = 4;

/// A watchman. Run two or more, in processes that fail independently: one that sees no sign of the other for the
/// failure timeout takes over. Dropping it ends it.
pub struct Watchman {
    counters: Arc<Mutex<WatchmanCounters>>,
    task: JoinHandle<()>,
    /// Its thread runs the task.
    _etcd: Etcd,
}

impl Watchman {
    /// Begins to watch.
    ///
    /// # Errors
    /// [`CoordError::Backend`] if a setting is out of range.
    pub fn start(etcd: &Etcd, config: WatchmanConfig) -> Result<Watchman, CoordError> {
        config.check()?;
        let counters = Arc::<Mutex<WatchmanCounters>>::default();
        let post = Post { source: etcd.source(), config, counters: counters.clone() };
        let task = etcd.handle().spawn(post.run());
        Ok(Watchman { counters, task, _etcd: etcd.clone() })
    }

    /// Whether it watches no more: it panicked, which is a bug. Start another process then.
    pub fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Its counters.
    pub fn counters(&self) -> WatchmanCounters {
        *self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watchman {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Post {
    source: WorkSource,
    config: WatchmanConfig,
    counters: Arc<Mutex<WatchmanCounters>>,
}

impl Post {
    async fn run(self) {
        loop {
            let number = self.stand_by().await;
            self.count(|counters| counters.reigns += 1);
            tracing::info!(reign = number, "this watchman watches members and leases from now on");
            self.reign(number).await;
            tracing::info!(reign = number, "another watchman has taken over");
        }
    }

    fn count(&self, count: impl FnOnce(&mut WatchmanCounters)) {
        count(&mut self.counters.lock().unwrap_or_else(PoisonError::into_inner));
    }

    async fn pause(&self) {
        tokio::time::sleep(self.config.look_every).await;
    }

    /// Gives an operation up when its answer would be too late to be of use.
    async fn in_time<T>(&self, operation: impl Future<Output = Result<T, CoordError>>) -> Result<T, CoordError> {
        let ended = tokio::time::timeout(self.config.gap_max(), operation).await;
        ended.unwrap_or(Err(CoordError::TimedOut { may_have_run: true }))
    }

    /// Waits until no watchman reigns, and takes over. Returns the number of the reign.
    async fn stand_by(&self) -> u64 {
        let mut silence = Silence::new();
        loop {
            match self.in_time(self.take_over(&mut silence)).await {
                Ok(Some(number)) => return number,
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "the watchman stands by"),
            }
            self.pause().await;
        }
    }

    /// Takes over if there was no sign for the failure timeout, by the local clock. That is always safe, since the
    /// decisions of an earlier reign are refused.
    async fn take_over(&self, silence: &mut Silence<()>) -> Result<Option<u64>, CoordError> {
        let work = self.source.work();
        let (reign, watchman) = (work.keys.reign(), work.keys.watchman());
        let seen = work.read(vec![look(reign.clone()), look(watchman.clone())]).await?;
        let (reigns, sign) = (seen.mod_revision(0), seen.mod_revision(1));
        let patience = if reigns == 0 { Duration::ZERO } else { self.config.failure_timeout };
        // Both only rise.
        let count = reigns.max(sign) as u64;
        let counts = [((), count, nanos(patience))].into_iter();
        if silence.look(clock::now(), |_| false, counts).is_empty() {
            return Ok(None);
        }
        let conditions = [is_of(&reign, reigns), is_of(&watchman, sign)];
        let told = put(work.keys.failure_timeout(), self.config.failure_timeout_ms().to_string());
        let outcome = work.commit(Txn::new().when(conditions).and_then([put(reign, ""), told])).await?;
        Ok(outcome.done.then_some(outcome.revision))
    }

    /// Watches as long as no other watchman does.
    async fn reign(&self, number: u64) {
        let mut reign = Reign::new(number, clock::now());
        let mut sign_due = 0;
        loop {
            match self.look(&mut reign, &mut sign_due).await {
                Ok(()) => {}
                Err(CoordError::ReignOver { .. }) => return,
                // The next look is late then, and restarts all waiting.
                Err(error) => tracing::debug!(%error, "the watchman could not look"),
            }
            self.pause().await;
        }
    }

    /// Reads the counts, and has silent members marked as failed and unrenewed leases ended.
    async fn look(&self, reign: &mut Reign, sign_due: &mut u64) -> Result<(), CoordError> {
        if clock::now() >= *sign_due {
            self.in_time(self.give_sign(reign.number())).await?;
            *sign_due = clock::now() + nanos(self.config.failure_timeout / SIGNS_OF_TIMEOUT);
        }
        let (pulse, settled) = self.in_time(pulse(self.source.work())).await?;
        if let Some(epoch) = settled {
            self.in_time(self.settle(reign.number(), epoch)).await?;
        }
        self.count(|counters| counters.looks += 1);
        let seen = reign.see(clock::now(), pulse, &self.config);
        self.count(|counters| counters.late_looks += u64::from(seen.was_late));
        let mut over = seen.over;
        while let Some(part) = next_part(&mut over) {
            let work = self.source.work();
            let decided = self.in_time(work.decide(reign.number(), &part)).await;
            self.note(decided)?;
        }
        Ok(())
    }

    async fn give_sign(&self, number: u64) -> Result<(), CoordError> {
        let work = self.source.work();
        let reigns = is_of(&work.keys.reign(), revision_for_etcd(number));
        let outcome = work.repeat(Txn::new().when([reigns]).and_then([put(work.keys.watchman(), "")])).await?;
        if outcome.done { Ok(()) } else { Err(CoordError::ReignOver { reign: number }) }
    }

    /// Records that all live members have acknowledged an epoch; `revision` is that of the epoch's key.
    async fn settle(&self, number: u64, (epoch, revision): (u64, i64)) -> Result<(), CoordError> {
        let work = self.source.work();
        let conditions = [is_of(&work.keys.reign(), revision_for_etcd(number)), is_of(&work.keys.epoch(), revision)];
        // If another epoch has begun, the next look sees that.
        work.repeat(Txn::new().when(conditions).and_then([put(work.keys.settled(), epoch.to_string())])).await?;
        Ok(())
    }

    /// Counts the decisions of a step.
    fn note(&self, decided: Result<Decided, CoordError>) -> Result<(), CoordError> {
        let Decided { failures, lapses, refused } =
            decided.inspect_err(|_| self.count(|counters| counters.refused += 1))?;
        self.count(|counters| {
            counters.steps += 1;
            counters.failures += failures;
            counters.lapses += lapses;
            counters.refused += refused;
        });
        Ok(())
    }
}

/// All counts: revisions, which rise with each heartbeat and renewal. Also the epoch with the revision of its key, if
/// it is settled and that is not recorded yet.
async fn pulse(work: Work) -> Result<(Pulse, Option<(u64, i64)>), CoordError> {
    let keys = &work.keys;
    let gets = vec![
        look_at_all(keys.members()),
        look_at_all(keys.all_failed()),
        get_all(keys.beats()),
        get_all(keys.leases()),
        look_at_all(keys.renewals()),
        get(keys.epoch()),
        get(keys.settled()),
        get_all(keys.all_acknowledged()),
    ];
    let seen = work.read(gets).await?;
    let epoch = seen.number(5)?;
    let by_id = |place, prefix: String| {
        let found = seen.all(place).iter().map(|found| Ok((id_of(found, &prefix)?, found.mod_revision() as Revision)));
        found.collect::<Result<HashMap<_, _>, CoordError>>()
    };
    let failed = by_id(1, keys.all_failed())?;
    let beat =
        |found: &KeyValue| Ok((id_of(found, &keys.beats())?, (found.mod_revision() as Revision, number(found)?)));
    let beats = seen.all(2).iter().map(beat).collect::<Result<HashMap<_, _>, CoordError>>()?;
    let mut members = Vec::new();
    for (member, incarnation) in by_id(0, keys.members())? {
        if !failed.contains_key(&member) {
            let (heartbeats, failure_timeout_ms) = beats.get(&member).copied().unwrap_or_default();
            members.push(Beat { member, incarnation: incarnation as Incarnation, heartbeats, failure_timeout_ms });
        }
    }
    let acknowledged = |found: &KeyValue| Ok((id_of(found, &keys.all_acknowledged())?, number(found)?));
    let acknowledged = seen.all(7).iter().map(acknowledged).collect::<Result<HashMap<_, _>, CoordError>>()?;
    let is_settled = members.iter().all(|beat| acknowledged.get(&beat.member).is_some_and(|known| *known >= epoch));
    let settled = (is_settled && seen.number(6)? < epoch).then_some((epoch, seen.mod_revision(5)));
    let mut renewals = HashMap::new();
    for found in seen.all(4) {
        renewals.insert(renewed_by(found, &keys.renewals())?, found.mod_revision() as Revision);
    }
    let mut leases = Vec::new();
    for found in seen.all(3) {
        let (token, held) = tenancy(found)?;
        let (name, member) = (name_of(found, &keys.leases())?, held.member);
        let renewals = renewals.get(&(member, name.clone())).copied().unwrap_or(0);
        leases.push(Tenure { name, member, token, renewals, ttl_ms: held.ttl_ms });
    }
    Ok((Pulse { members, leases }, settled))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::EtcdConfig;

    #[test]
    fn its_end_is_noticed() {
        let nobody = ["http://127.0.0.1:1".to_owned()];
        let etcd = Etcd::new(&nobody, EtcdConfig::default()).unwrap();
        let watchman = Watchman::start(&etcd, WatchmanConfig::default()).unwrap();
        assert!(!watchman.has_ended());
        watchman.task.abort();
        while !watchman.has_ended() {
            std::thread::yield_now();
        }
    }
}
