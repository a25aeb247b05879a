//! The handle of a replica within this crate, whatever the types of its machine and log.

use std::cell::{Ref, RefMut};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::Poll;

use super::Counters;
use super::core::Core;
use super::shared::Shared;

/// A handle of a replica.
#[derive(Clone)]
pub(super) struct Replica {
    pub shared: Rc<Shared>,
    pub group: u16,
}

/// A handle that keeps nothing alive.
pub(super) struct WeakReplica {
    pub shared: Weak<Shared>,
    pub group: u16,
}

impl WeakReplica {
    pub fn upgrade(&self) -> Option<Replica> {
        self.shared.upgrade().map(|shared| Replica { shared, group: self.group })
    }
}

impl Replica {
    /// Spawns the task for work that can wait until messages are sent.
    pub fn spawn_task(&self) {
        let weak = self.downgrade();
        (self.shared.net.spawn)(Box::pin(poll_fn(move |context| {
            let Some(node) = weak.upgrade() else { return Poll::Ready(()) };
            let is_time = node.core_mut().later.is_time(context);
            if is_time {
                node.enter(Core::work_later);
            }
            Poll::Pending
        })));
    }

    fn downgrade(&self) -> WeakReplica {
        WeakReplica { shared: Rc::downgrade(&self.shared), group: self.group }
    }

    pub fn core(&self) -> Ref<'_, Core> {
        self.shared.core(self.group)
    }

    fn core_mut(&self) -> RefMut<'_, Core> {
        self.shared.cores[usize::from(self.group)].borrow_mut()
    }

    /// Runs `act` on the state, then everything that follows from it.
    pub fn enter(&self, act: impl FnOnce(&mut Core)) {
        self.shared.enter(|visit| {
            visit.visit(self.group, act);
        });
    }

    /// Has another replica asked to lead, if this one does; returns its id.
    pub fn hand_over(&self) -> Option<u64> {
        let mut to = None;
        self.enter(|core| to = core.hand_over());
        to
    }

    /// Returns the counters. Envelopes and messages are counted for all groups of the process.
    pub fn counters(&self) -> Counters {
        let core = self.core();
        let traffic = core.common.links.borrow().traffic;
        let kept_questions = core.kept.len() as u64;
        Counters { envelopes: traffic.envelopes, messages: traffic.messages, kept_questions, ..core.counters }
    }
}
