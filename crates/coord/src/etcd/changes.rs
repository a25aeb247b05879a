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

/// A watch of which nothing was told for so long asks how far that holds.
const QUIET_MAX: Duration = Duration::from_secs(5);
/// How long that may take.
const LOOK_MAX: Duration = Duration::from_secs(2);
/// Watches whose callers are to come back, and for how long they are kept.
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
                // A member that is down: another is asked next.
                Err(error) if was_unsent(&error) => self.resend_after(&error).await,
                Err(error) => return Err(backend(&error, false)),
            }
        }
    }

    /// Has everything before a revision forgotten.
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
    /// What happened up to here was given, or is not of the scope.
    after: Revision,
}

/// Watches that have given what happened, for callers that ask from there on: else each would end, and another begin with each answer.
#[derive(Default)]
pub(super) struct Parked(Mutex<VecDeque<(Instant, Watching)>>);

impl Parked {
    fn all(&self) -> MutexGuard<'_, VecDeque<(Instant, Watching)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A watch that goes on from there.
    pub fn take(&self, scope: &Scope, after: Revision) -> Option<Watching> {
        let mut all = self.all();
        let place = all.iter().position(|(_, watching)| watching.after == after && watching.scope == *scope)?;
        all.remove(place).map(|(_, watching)| watching)
    }

    /// Keeps a watch for a while. With too many, the one ends that waits longest.
    pub fn park(&self, watching: Watching) {
        let mut all = self.all();
        if all.len() >= PARKED_MAX {
            all.pop_front();
        }
        all.push_back((Instant::now() + PARKED_FOR, watching));
    }

    /// Ends those whose callers have not come back, again and again.
    pub async fn clear(parked: Weak<Parked>) {
        while let Some(parked) = parked.upgrade() {
            let now = Instant::now();
            parked.all().retain(|(until, _)| *until > now);
            drop(parked);
            tokio::time::sleep(PARKED_FOR).await;
        }
    }
}

/// What a watch of etcd gives next.
type Message = Result<Option<WatchResponse>, etcd_client::Error>;

impl Watching {
    /// Waits until something happens in the scope; for [`QUIET_MAX`] at most, after which it says how far nothing happened. A watch that stayed where it
    /// began would be told that this was compacted, once its connection breaks. Gives itself back, to go on from there.
    pub async fn next(mut self) -> Result<(Watching, Changes), CoordError> {
        let mut look_at = Instant::now() + QUIET_MAX;
        loop {
            let response = match self.message_or_quiet(look_at).await {
                Either::Left(response) => response.map_err(|error| backend(&error, false))?,
                Either::Right(Some(up_to)) => {
                    self.after = up_to;
                    return Ok((self, Changes { events: Vec::new(), up_to }));
                }
                Either::Right(None) => {
                    look_at = Instant::now() + QUIET_MAX;
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
            if !events.is_empty() {
                let up_to = self.after;
                return Ok((self, Changes { events, up_to }));
            }
        }
    }

    /// What the watch tells next, or from `look_at` on, how far nothing happened. A look that hangs keeps nothing back that the watch tells.
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

/// What happened together.
fn happenings(mut value: &[u8]) -> Result<Vec<Happening>, WireError> {
    let mut happenings = vec![Happening::take(&mut value)?];
    while !value.is_empty() {
        happenings.push(Happening::take(&mut value)?);
    }
    Ok(happenings)
}

/// The revision of now, if nothing has happened to the key since: that is when the key was written last. `None` if something has, which the watch will tell of.
async fn quiet_up_to(work: &Work, key: &str, after: Revision) -> Result<Option<Revision>, CoordError> {
    let seen = work.read(vec![look(key.to_owned())]).await?;
    let is_known = seen.mod_revision(0) as Revision <= after;
    Ok(is_known.then_some(seen.revision.max(after)))
}

/// Checks that a watch goes on.
fn check(response: &WatchResponse) -> Result<(), CoordError> {
    if response.compact_revision() > 0 {
        // What was the case at that revision is there, and so is what happened at it.
        return Err(CoordError::Compacted { compacted: response.compact_revision() as Revision - 1 });
    }
    if response.canceled() {
        let why = format!("etcd has ended the watch: {}", response.cancel_reason());
        return Err(CoordError::Backend { why, may_have_run: false });
    }
    Ok(())
}
