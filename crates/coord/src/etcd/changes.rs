//! Watching: the history of one key.

use std::time::Duration;

use etcd_client::{WatchOptions, WatchResponse, WatchStream};
use tokio::time::{Instant, timeout, timeout_at};

use super::work::{Work, backend, foreign, look, revision_for_etcd, was_unsent};
use crate::error::CoordError;
use crate::path::check_root;
use crate::types::{Changes, Event, Happening, Revision, Scope};
use crate::wire::{Wire, WireError};

/// A watch of which nothing was told for so long asks how far that holds.
const QUIET_MAX: Duration = Duration::from_secs(2);

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

impl Watching {
    /// Waits until something happens in the scope; for [`QUIET_MAX`] at most, after which it says how far nothing happened. A watch that stayed where it
    /// began would be told that this was compacted, once its connection breaks.
    pub async fn next(mut self) -> Result<Changes, CoordError> {
        let mut look_at = Instant::now() + QUIET_MAX;
        loop {
            let Ok(response) = timeout_at(look_at, self.stream.message()).await else {
                if let Ok(Some(up_to)) = timeout(QUIET_MAX, self.quiet_up_to()).await.unwrap_or(Ok(None)) {
                    return Ok(Changes { events: Vec::new(), up_to });
                }
                look_at = Instant::now() + QUIET_MAX;
                continue;
            };
            let response = response.map_err(|error| backend(&error, false))?;
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
                return Ok(Changes { events, up_to: self.after });
            }
        }
    }

    /// The revision of now, if nothing has happened that is not known here: that is when the key was written last. `None` if something has, which the watch will
    /// tell of.
    async fn quiet_up_to(&self) -> Result<Option<Revision>, CoordError> {
        let seen = self.work.read(vec![look(self.key.clone())]).await?;
        let is_known = seen.mod_revision(0) as Revision <= self.after;
        Ok(is_known.then_some(seen.revision.max(self.after)))
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
