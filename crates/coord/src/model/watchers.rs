//! Watchers that wait for something to happen. They are no part of the state: each is kept by the replica that leads, and asks the next one when that changes.
//!
//! A watcher costs memory while nothing of its scope happens, and nothing else: what happens looks up who waits for it. A watcher of something quiet is answered, with nothing,
//! when half of what is remembered has happened since it came. So it is never behind what is forgotten when it comes back.

use std::collections::{BTreeSet, HashMap};

use crate::types::{Happening, Revision, Scope};

/// One that waits.
#[derive(Debug, Clone)]
struct Waiting {
    scope: Scope,
    /// Nothing of the scope has happened up to here.
    quiet_up_to: Revision,
}

/// All that wait, by number.
#[derive(Debug, Clone, Default)]
pub(super) struct Watchers {
    waiting: HashMap<u64, Waiting>,
    /// In the order in which they came, which is that in which they are told.
    by_scope: HashMap<Scope, BTreeSet<u64>>,
    by_revision: BTreeSet<(Revision, u64)>,
    /// They have an answer by now, and were not asked for it yet: since when nothing had happened.
    woken: HashMap<u64, Revision>,
    /// Those of them that the replica was not told of.
    untold: Vec<u64>,
}

impl Watchers {
    /// One waits from now on.
    pub fn wait(&mut self, number: u64, scope: Scope, quiet_up_to: Revision) {
        self.by_scope.entry(scope.clone()).or_default().insert(number);
        self.by_revision.insert((quiet_up_to, number));
        self.waiting.insert(number, Waiting { scope, quiet_up_to });
    }

    /// After which revision something is to be looked for, for one that was woken; `None` for one that comes for the first time.
    pub fn take_woken(&mut self, number: u64) -> Option<Revision> {
        self.woken.remove(&number)
    }

    /// Something happened: wakes those that wait for it.
    pub fn note(&mut self, happening: &Happening) {
        if self.waiting.is_empty() {
            return;
        }
        for scope in Scope::all_of(happening) {
            let numbers = self.by_scope.remove(&scope).unwrap_or_default();
            numbers.into_iter().for_each(|number| self.wake(number));
        }
    }

    /// Wakes those for which nothing has happened since before a revision.
    pub fn wake_before(&mut self, revision: Revision) {
        while let Some((quiet_up_to, number)) = self.by_revision.first().copied()
            && quiet_up_to < revision
        {
            self.wake(number);
        }
    }

    fn wake(&mut self, number: u64) {
        if let Some(quiet_up_to) = self.remove(number) {
            self.woken.insert(number, quiet_up_to);
            self.untold.push(number);
        }
    }

    fn remove(&mut self, number: u64) -> Option<Revision> {
        let Waiting { scope, quiet_up_to } = self.waiting.remove(&number)?;
        self.by_revision.remove(&(quiet_up_to, number));
        if let Some(numbers) = self.by_scope.get_mut(&scope) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.by_scope.remove(&scope);
            }
        }
        Some(quiet_up_to)
    }

    /// Takes the numbers of those that were woken since.
    pub fn take_untold(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.untold)
    }

    /// One does not wait any more.
    pub fn forget(&mut self, number: u64) {
        self.remove(number);
        self.woken.remove(&number);
    }
}

#[cfg(test)]
mod tests {
    use dunlin_smr::StateMachine;
    use dunlin_smr::machine::Asked;

    use super::*;
    use crate::limits::Limits;
    use crate::model::{Hearing, Machine};
    use crate::transaction::Transaction;
    use crate::types::Changes;
    use crate::wire::{Answer, Command, Query, Wire};

    const HISTORY: usize = 8;

    fn machine() -> Machine {
        Machine::new(Limits { history_events_max: HISTORY, ..Limits::default() }, Hearing::default())
    }

    fn set(machine: &mut Machine, path: &str) {
        let transaction = Transaction::new().set(path, "1");
        machine.apply(1, &Command::Transact { transaction }.to_bytes(), &mut Vec::new());
    }

    fn tree(root: &str) -> Scope {
        Scope::Tree { root: root.into() }
    }

    /// Asks under a number; `None` if it is kept.
    fn ask(machine: &mut Machine, number: u64, scope: &Scope, after: Revision) -> Option<Changes> {
        let mut reply = Vec::new();
        match machine.ask(number, &Query::Watch { scope: scope.clone(), after }.to_bytes(), &mut reply) {
            Asked::Kept => None,
            Asked::Answered => match Answer::from_bytes(&reply) {
                Ok(Answer::Changes { changes }) => Some(changes),
                other => panic!("{other:?}"),
            },
        }
    }

    #[test]
    fn a_watcher_is_woken_by_what_it_watches() {
        let mut machine = machine();
        set(&mut machine, "/a/b");
        let [above, exact, beside] = ["/a", "/a/b", "/ab"].map(tree);
        assert_eq!(ask(&mut machine, 1, &above, 0).map(|changes| changes.events.len()), Some(1), "it has happened before");
        for (number, scope) in [(2, &above), (3, &exact), (4, &beside), (5, &Scope::Members), (6, &exact)] {
            assert_eq!(ask(&mut machine, number, scope, 1), None);
        }
        machine.forget(6);
        assert_eq!(machine.take_ready(), [0; 0]);
        set(&mut machine, "/a/b");
        let mut ready = machine.take_ready();
        ready.sort_unstable();
        assert_eq!(ready, [2, 3]);
        let told = ask(&mut machine, 3, &exact, 1).unwrap();
        assert_eq!((told.events.len(), told.up_to), (1, 2));
        assert_eq!(machine.take_ready(), [0; 0], "it is told once");
    }

    #[test]
    fn a_watcher_of_something_quiet_is_told_how_far_it_was_before_that_is_forgotten() {
        let mut machine = machine();
        assert_eq!(ask(&mut machine, 1, &Scope::Members, 0), None);
        let mut answered = 0;
        for round in 1..=10 * HISTORY as u64 {
            set(&mut machine, "/noise");
            for number in machine.take_ready() {
                let told = ask(&mut machine, number, &Scope::Members, answered).unwrap();
                assert_eq!((told.events.len(), told.up_to), (0, round));
                answered = round;
                assert_eq!(ask(&mut machine, number + 1, &Scope::Members, answered), None);
            }
            assert!(round - answered < HISTORY as u64, "it can come back");
        }
        assert!(answered > 0);
    }

    /// Where it was looked for all scopes that something is in, none is missing.
    #[test]
    fn something_is_in_the_scopes_that_hold_it() {
        let happenings = [
            Happening::Set { path: "/a/b/c".into(), value: vec![] },
            Happening::Deleted { path: "/a".into() },
            Happening::Left { member: 1, epoch: 2 },
            Happening::Ended { name: "/a".into(), token: 1 },
        ];
        let roots = ["/", "/a", "/a/b", "/a/b/c", "/a/b/c/d", "/ab", "/b"].map(tree);
        for happening in happenings {
            let found = Scope::all_of(&happening);
            for scope in [Scope::All, Scope::Members, Scope::Leases].iter().chain(&roots) {
                assert_eq!(found.contains(scope), scope.holds(&happening), "{scope:?} {happening:?}");
            }
        }
    }
}
