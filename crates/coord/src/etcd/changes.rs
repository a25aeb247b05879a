//! Watching: the history of one key.

use etcd_client::{WatchOptions, WatchResponse, WatchStream};

use super::work::{Work, backend, foreign, revision_for_etcd, was_unsent};
use crate::error::CoordError;
use crate::path::check_root;
use crate::types::{Changes, Event, Revision, Scope};
use crate::wire::Wire;

impl Work {
    /// Begins to watch after a revision.
    pub async fn watch(self, scope: Scope, after: Revision) -> Result<Watching, CoordError> {
        if let Scope::Tree { root } = &scope {
            check_root(root)?;
        }
        let key = self.keys.events();
        let first = revision_for_etcd(after.saturating_add(1));
        let options = WatchOptions::new().with_start_revision(first).with_fragment();
        loop {
            match self.watch.clone().watch(key.clone(), Some(options.clone())).await {
                Ok(stream) => return Ok(Watching { stream, key, scope }),
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
    stream: WatchStream,
    key: String,
    scope: Scope,
}

impl Watching {
    /// Waits until something happens in the scope.
    pub async fn next(mut self) -> Result<Changes, CoordError> {
        loop {
            let response = self.stream.message().await.map_err(|error| backend(&error, false))?;
            let ended = || CoordError::Backend { why: "etcd has ended the watch".into(), may_have_run: false };
            let response = response.ok_or_else(ended)?;
            check(&response)?;
            let (mut events, mut up_to) = (Vec::new(), None);
            for found in response.events().iter().filter_map(etcd_client::Event::kv) {
                let revision = found.mod_revision() as Revision;
                let happening = Wire::from_bytes(found.value()).map_err(|error| foreign(&self.key, error))?;
                up_to = Some(revision);
                if self.scope.holds(&happening) {
                    events.push(Event { revision, happening });
                }
            }
            if let (Some(up_to), false) = (up_to, events.is_empty()) {
                return Ok(Changes { events, up_to });
            }
        }
    }
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
