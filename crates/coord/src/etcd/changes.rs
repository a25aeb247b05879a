//! Watching: the history of one key.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use etcd_client::{WatchOptions, WatchResponse, WatchStream};
use tokio::time::{Instant, sleep_until, timeout};

use super::work::{Work, backend, foreign, look, revision_for_etcd, was_unsent};
use crate::either::{Either, either};
use crate::error::CoordError;
use crate::path::check_root;
use crate::types::{Changes, Event, Happening, Revision, Scope};
use crate::wire::{Wire, WireError};

/// Time limit of the query up to which revision nothing has happened.
const LOOK_MAX: Duration = Duration::from_secs(2);
/// Watches that are kept for their callers to continue, and for how long.
const PARKED_MAX: usize = 4096;
const PARKED_FOR: Duration = Duration::from_secs(2);

impl Work {
    /// Begins to watch after a revision.
    pub async fn watch(self, scope: Scope, after: Revision) -> Result<Watching, CoordError> {
        let work = self.clone();
        if let Scope::Tree { root } = &scope {
            check_root(root)?;
        }
        let key = self.keys.events();
        let first = revision_for_etcd(after.saturating_add(1));
        let options = WatchOptions::new().with_start_revision(first).with_fragment();
        loop {
            match self.watch.clone().watch(key.clone(), Some(options.clone())).await {
                Ok(stream) => return Ok(Watching { work, stream, key, scope, after }),
                // This member of etcd is down: ask another.
                Err(error) if was_unsent(&error) => self.resend_after(&error).await,
                Err(error) => return Err(backend(&error, false)),
            }
        }
    }

    /// Discards the history before a revision.
    pub async fn compact(self, revision: Revision) -> Result<(), CoordError> {
        loop {
            match self.kv.clone().compact(revision_for_etcd(revision), None).await {
                Ok(_) => return Ok(()),
                Err(error) if was_unsent(&error) => self.resend_after(&error).await,
                Err(error) => return Err(backend(&error, false)),
            }
        }
    }
}

/// A watch of etcd. Dropping it ends it.
pub(super) struct Watching {
    work: Work,
    stream: WatchStream,
    key: String,
    scope: Scope,
    /// Everything up to here was reported, or is outside the scope.
    after: Revision,
}

/// Watches that have returned an answer, kept for callers that continue from there. Without them each answer would end
/// a watch and the next call would begin another.
#[derive(Default)]
pub(super) struct Parked(Mutex<VecDeque<(Instant, Watching)>>);

impl Parked {
    fn all(&self) -> MutexGuard<'_, VecDeque<(Instant, Watching)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the watch that continues from there, if one is kept.
    pub fn take(&self, scope: &Scope, after: Revision) -> Option<Watching> {
        let mut all = self.all();
        let place = all.iter().position(|(_, watching)| watching.after == after && watching.scope == *scope)?;
        all.remove(place).map(|(_, watching)| watching)
    }

    /// Keeps a watch for a while. If there are too many, the one that has waited longest ends.
    pub fn park(&self, watching: Watching) {
        let mut all = self.all();
        if all.len() >= PARKED_MAX {
            all.pop_front();
        }
        all.push_back((Instant::now() + PARKED_FOR, watching));
    }

    /// Ends the watches whose callers have not come back, periodically.
    pub async fn clear(parked: Weak<Parked>) {
        while let Some(parked) = parked.upgrade() {
            let now = Instant::now();
            parked.all().retain(|(until, _)| *until > now);
            drop(parked);
            tokio::time::sleep(PARKED_FOR).await;
        }
    }
}

/// The next message of an etcd watch.
type Message = Result<Option<WatchResponse>, etcd_client::Error>;

impl Watching {
    /// Waits until something happens in the scope, but at most for [`Work::quiet_max`]; then it returns the revision up to
    /// which nothing happened. Otherwise, a watch that stayed at its first revision would be told that this was
    /// compacted once its connection breaks. Returns itself, so that the caller can continue.
    pub async fn next(mut self) -> Result<(Watching, Changes), CoordError> {
        let mut look_at = Instant::now() + self.work.quiet_max;
        let from = self.after;
        loop {
            let response = match self.message_or_quiet(look_at).await {
                Either::Left(response) => response.map_err(|error| backend(&error, false))?,
                Either::Right(Some(up_to)) => {
                    self.after = up_to;
                    return Ok((self, Changes { events: Vec::new(), up_to }));
                }
                Either::Right(None) => {
                    look_at = Instant::now() + self.work.quiet_max;
                    continue;
                }
            };
            let ended = || CoordError::Backend { why: "etcd has ended the watch".into(), may_have_run: false };
            let response = response.ok_or_else(ended)?;
            check(&response)?;
            let (mut events, mut up_to) = (Vec::new(), None);
            for found in response.events().iter().filter_map(etcd_client::Event::kv) {
                let revision = found.mod_revision() as Revision;
                let happenings = happenings(found.value()).map_err(|error| foreign(&self.key, error))?;
                up_to = Some(revision);
                let of_scope = happenings.into_iter().filter(|happening| self.scope.holds(happening));
                events.extend(of_scope.map(|happening| Event { revision, happening }));
            }
            self.after = up_to.unwrap_or(self.after);
            // Changes elsewhere have told how far it is: nothing need be asked.
            let is_told = self.after > from && Instant::now() >= look_at;
            if is_told || !events.is_empty() {
                let up_to = self.after;
                return Ok((self, Changes { events, up_to }));
            }
        }
    }

    /// The watch's next message; or, from `look_at` on, the revision up to which nothing happened. A query that hangs
    /// does not delay messages of the watch.
    async fn message_or_quiet(&mut self, look_at: Instant) -> Either<Message, Option<Revision>> {
        let Watching { work, stream, key, after, .. } = self;
        let look = async {
            sleep_until(look_at).await;
            timeout(LOOK_MAX, quiet_up_to(work, key, *after)).await
        };
        match either(stream.message(), look).await {
            Either::Left(response) => Either::Left(response),
            Either::Right(looked) => Either::Right(looked.ok().and_then(Result::ok).flatten()),
        }
    }
}

/// Decodes the events of one step.
fn happenings(mut value: &[u8]) -> Result<Vec<Happening>, WireError> {
    let mut happenings = vec![Happening::take(&mut value)?];
    while !value.is_empty() {
        happenings.push(Happening::take(&mut value)?);
    }
    Ok(happenings)
}

/// The current revision, if the key has not been written since `after`. `None` if it has: the watch will report that.
async fn quiet_up_to(work: &Work, key: &str, after: Revision) -> Result<Option<Revision>, CoordError> {
    let seen = work.read(vec![look(key.to_owned())]).await?;
    let is_known = seen.mod_revision(0) as Revision <= after;
    Ok(is_known.then_some(seen.revision.max(after)))
}

/// Checks that a watch is still running.
fn check(response: &WatchResponse) -> Result<(), CoordError> {
    if response.compact_revision() > 0 {
        // The state at the compacted revision is kept, and so are the events at it.
        return Err(CoordError::Compacted { compacted: response.compact_revision() as Revision - 1 });
    }
    if response.canceled() {
        let why = format!("etcd has ended the watch: {}", response.cancel_reason());
        return Err(CoordError::Backend { why, may_have_run: false });
    }
    Ok(())
}
