//! The watches of clients.

use std::rc::Rc;
use std::time::Duration;

use dunlin_coord::{CoordError, Revision, Scope, Watch};
use dunlin_trial::Random;

use super::caller::Caller;
use super::settings::name;
use super::testimony::Testimony;

/// Pause of a watcher that has no revision to begin with.
const PAUSE: Duration = Duration::from_millis(5);

/// Maximum number of events after which a watcher begins anew: from another revision, perhaps a very old one.
const EVENTS_MAX: u64 = 100;

/// Watches a scope as long as the client lives.
pub async fn watch(caller: Rc<Caller>, mut random: Random) {
    let manager = &caller.shared.service;
    let scope = draw_scope(&mut random, caller.shared.scenario.keys);
    loop {
        let Some(after) = begin(&caller, &mut random).await else {
            caller.timers().sleep(PAUSE).await;
            continue;
        };
        let number = manager.testimony.watches(caller.number, scope.clone(), after);
        let watching = Watching { testimony: &manager.testimony, number };
        let mut watch = Watch::new(&caller.coordinator, scope.clone(), after);
        let mut left = random.between(1, EVENTS_MAX);
        let compacted = loop {
            match watch.next().await {
                Ok(_) if left == 0 => break None,
                Ok(event) => {
                    left -= 1;
                    manager.testimony.saw(number, event);
                }
                Err(CoordError::Compacted { compacted }) => break Some(compacted),
                // As the interface promises: a repeated query skips no event.
                Err(CoordError::TimedOut { .. } | CoordError::Backend { .. }) => caller.timers().sleep(PAUSE).await,
                Err(error) => panic!("a watcher is told: {error}"),
            }
        };
        drop(watching);
        compacted.into_iter().for_each(|compacted| manager.check_compacted(number, compacted));
    }
}

/// A watcher that is running until this is dropped.
struct Watching<'a> {
    testimony: &'a Testimony,
    number: usize,
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.testimony.stops(self.number);
    }
}

fn draw_scope(r: &mut Random, keys: usize) -> Scope {
    match r.between(0, 5) {
        0..=1 => Scope::All,
        2 => Scope::Members,
        3 => Scope::Leases,
        4 => Scope::Tree { root: if r.chance(50) { "/t".into() } else { "/".into() } },
        _ => Scope::Tree { root: if r.chance(50) { "/t/1".into() } else { name(r.index(keys)) } },
    }
}

/// The revision to watch from; `None` if there was no answer.
async fn begin(caller: &Caller, r: &mut Random) -> Option<Revision> {
    match r.between(0, 3) {
        // Perhaps compacted long ago.
        0 => Some(0),
        1 => caller.members().await,
        _ => caller.list("/t").await,
    }
}

impl super::Manager {
    /// # Panics
    /// If a watcher was wrongly told that events up to a revision, which it has not seen, are gone.
    fn check_compacted(&self, number: usize, compacted: Revision) {
        let watched = &self.testimony.watched.borrow()[number];
        let last = watched.events.last().map_or(watched.after, |event| event.revision);
        let mut book = self.book.borrow_mut();
        book.read(&self.witness);
        let kept = self.settings.limits.history_events_max;
        assert!(
            last < compacted && book.after(compacted - 1).len() > kept,
            "a watcher that saw revision {last} is told that those up to {compacted} are gone, of {} with {kept} kept",
            book.revision()
        );
    }
}
