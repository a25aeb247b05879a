//! Answers to clients that are in no history: lists of members and of the tree, epochs, and events of watchers. An
//! answer that contradicts an earlier one fails at once; the rest is compared with [`super::book`] in the end.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use dunlin_coord::{Epochs, Event, Health, Incarnation, Listing, MemberId, Members, Revision, Scope, View};

/// The events of a watcher.
pub struct Watched {
    pub client: usize,
    pub scope: Scope,
    pub after: Revision,
    pub events: Vec<Event>,
    /// Whether its program is still watching.
    pub goes_on: bool,
}

/// A page of the tree that was read.
pub struct Listed {
    pub root: String,
    pub listing: Listing,
}

/// A view that was read.
pub struct Viewed {
    pub root: String,
    pub view: View,
}

/// The answer to a request for the epochs after one.
pub struct ToldEpochs {
    pub after: u64,
    /// When the request began and ended, in nanoseconds of virtual time.
    pub begun: u64,
    pub ended: u64,
    /// A page of epochs; or up to which epoch they are cut.
    pub answer: Result<Epochs, u64>,
}

/// The knowledge at the time of a request: its answer must not be older.
#[derive(Debug, Clone, Copy)]
pub struct Floor {
    revision: Revision,
    epoch: u64,
}

/// All recorded answers.
#[derive(Default)]
pub struct Testimony {
    revision: Cell<Revision>,
    epoch: Cell<u64>,
    /// By epoch.
    live: RefCell<HashMap<u64, Vec<(MemberId, Incarnation)>>>,
    /// By incarnation or token: when heartbeats or renewals were sent that were answered as heard, in nanoseconds of
    /// virtual time.
    pub heard: RefCell<HashMap<Revision, Vec<u64>>>,
    pub members: RefCell<Vec<Members>>,
    pub listed: RefCell<Vec<Listed>>,
    pub viewed: RefCell<Vec<Viewed>>,
    pub epochs: RefCell<Vec<ToldEpochs>>,
    pub watched: RefCell<Vec<Watched>>,
}

impl Testimony {
    /// Records that a heartbeat or a renewal, sent at this time, was heard.
    pub fn was_heard(&self, revision: Revision, sent_at: u64) {
        self.heard.borrow_mut().entry(revision).or_default().push(sent_at);
    }

    /// The last epoch in any answer.
    pub fn epoch(&self) -> u64 {
        self.epoch.get()
    }

    /// The present knowledge.
    pub fn floor(&self) -> Floor {
        Floor { revision: self.revision.get(), epoch: self.epoch.get() }
    }

    /// Records the revision in an answer.
    ///
    /// # Panics
    /// If it is older than the knowledge at the time of the request.
    pub fn told_revision(&self, floor: Floor, revision: Revision) {
        assert!(revision >= floor.revision, "revision {revision} was told, and {} was known before", floor.revision);
        self.revision.set(self.revision.get().max(revision));
    }

    /// Records the epoch in an answer.
    ///
    /// # Panics
    /// If it is older than the knowledge at the time of the request.
    pub fn told_epoch(&self, floor: Floor, epoch: u64) {
        assert!(epoch >= floor.epoch, "epoch {epoch} was told, and {} was known before", floor.epoch);
        self.epoch.set(self.epoch.get().max(epoch));
    }

    /// Records a list of members.
    ///
    /// # Panics
    /// If another answer for the same epoch differs.
    pub fn told_members(&self, floor: Floor, members: Members) {
        self.told_revision(floor, members.revision);
        self.told_epoch(floor, members.epoch);
        let live = members.members.iter().filter(|member| member.health == Health::Live);
        let live: Vec<_> = live.map(|member| (member.id, member.incarnation)).collect();
        let mut known = self.live.borrow_mut();
        let before = known.entry(members.epoch).or_insert_with(|| live.clone());
        assert_eq!(*before, live, "two who asked were told of different members in epoch {}", members.epoch);
        self.members.borrow_mut().push(members);
    }

    /// Records a page of the tree.
    pub fn told_listing(&self, floor: Floor, root: &str, listing: Listing) {
        self.told_revision(floor, listing.revision);
        self.listed.borrow_mut().push(Listed { root: root.to_owned(), listing });
    }

    /// Records a view.
    pub fn told_view(&self, floor: Floor, root: &str, view: View) {
        self.told_revision(floor, view.members.revision);
        self.told_epoch(floor, view.members.epoch);
        self.viewed.borrow_mut().push(Viewed { root: root.to_owned(), view });
    }

    /// Records an answer about epochs.
    pub fn told_epochs(&self, floor: Floor, told: ToldEpochs) {
        if let Ok(page) = &told.answer
            && !page.has_more
        {
            self.told_epoch(floor, page.epochs.last().map_or(told.after, |change| change.epoch));
        }
        self.epochs.borrow_mut().push(told);
    }

    /// Registers a watcher; returns its number.
    pub fn watches(&self, client: usize, scope: Scope, after: Revision) -> usize {
        let mut watched = self.watched.borrow_mut();
        watched.push(Watched { client, scope, after, events: Vec::new(), goes_on: true });
        watched.len() - 1
    }

    /// Records an event of a watcher.
    ///
    /// # Panics
    /// If the watcher saw a later one before.
    pub fn saw(&self, number: usize, event: Event) {
        let watched = &mut self.watched.borrow_mut()[number];
        let before = watched.events.last().map_or(watched.after + 1, |event| event.revision);
        assert!(event.revision >= before, "a watcher of client {} sees {event} after {before}", watched.client);
        self.revision.set(self.revision.get().max(event.revision));
        watched.events.push(event);
    }

    /// Records that a watcher stops.
    pub fn stops(&self, number: usize) {
        self.watched.borrow_mut()[number].goes_on = false;
    }
}
