//! Queries that wait for an event. They are not part of the state: the leader keeps them, and a new leader is asked
//! again.
//!
//! While nothing happens in its scope, a watcher costs memory and nothing else: each event looks up the watchers that
//! wait for it. So a watcher that still waits has missed nothing, and no events need to be searched for it. A watcher
//! of a quiet scope gets an empty answer when half of the history has been replaced since it came. So its next query is
//! never behind the history.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::iter;
use std::mem;
use std::ops::Bound;

use crate::mutation::{Mutation, is_planted};
use crate::types::{Happening, Revision, Scope};

/// A waiting watcher.
#[derive(Debug, Clone)]
struct Waiting {
    scope: Scope,
    /// Nothing happened in the scope up to here, nor since.
    came_at: Revision,
}

/// Why a watcher was woken whose query is not asked again yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Woken {
    /// Something happened in its scope, after this revision.
    Told { quiet_up_to: Revision },
    /// Nothing happened up to this revision.
    Quiet { up_to: Revision },
}

/// All waiting watchers, by number.
#[derive(Debug, Clone, Default)]
pub(super) struct Watchers {
    waiting: HashMap<u64, Waiting>,
    by_scope: ByScope,
    by_revision: BTreeSet<(Revision, u64)>,
    woken: HashMap<u64, Woken>,
    /// Woken watchers that the replica was not told of yet.
    untold: Vec<u64>,
}

impl Watchers {
    /// Adds a watcher in whose scope nothing has happened up to now.
    pub fn wait(&mut self, number: u64, scope: Scope, now: Revision) {
        self.by_scope.insert(number, &scope);
        self.by_revision.insert((now, number));
        self.waiting.insert(number, Waiting { scope, came_at: now });
    }

    /// Why a watcher was woken; `None` for a new one.
    pub fn take_woken(&mut self, number: u64) -> Option<Woken> {
        self.woken.remove(&number)
    }

    /// Records an event in the step after the revision `before`: wakes the watchers that wait for it.
    pub fn note(&mut self, happening: &Happening, before: Revision) {
        if self.waiting.is_empty() {
            return;
        }
        for number in self.by_scope.waiting_for(happening) {
            self.wake(number, Woken::Told { quiet_up_to: before });
        }
    }

    /// Wakes the watchers that came before a revision, and in whose scopes nothing has happened up to now.
    pub fn wake_before(&mut self, revision: Revision, now: Revision) {
        while let Some((came_at, number)) = self.by_revision.first().copied()
            && came_at < revision
        {
            self.wake(number, Woken::Quiet { up_to: now });
        }
    }

    fn wake(&mut self, number: u64, woken: Woken) {
        if self.remove(number) {
            self.woken.insert(number, woken);
            if !is_planted(Mutation::WokenNotTold) {
                self.untold.push(number);
            }
        }
    }

    /// Returns whether it waited.
    fn remove(&mut self, number: u64) -> bool {
        let Some(Waiting { scope, came_at }) = self.waiting.remove(&number) else { return false };
        self.by_revision.remove(&(came_at, number));
        self.by_scope.remove(number, &scope);
        true
    }

    /// Takes the numbers of the watchers that were woken since the last call.
    pub fn take_untold(&mut self) -> Vec<u64> {
        mem::take(&mut self.untold)
    }

    /// Removes a watcher.
    pub fn forget(&mut self, number: u64) {
        self.remove(number);
        self.woken.remove(&number);
    }
}

/// Watchers by scope. Numbers are in order of arrival, which is the order of answers.
#[derive(Debug, Clone, Default)]
struct ByScope {
    all: BTreeSet<u64>,
    members: BTreeSet<u64>,
    leases: BTreeSet<u64>,
    /// By root, without its trailing slash: the whole tree is the empty string.
    tree: BTreeMap<String, BTreeSet<u64>>,
}

/// The form in which a root is stored.
fn key(root: &str) -> &str {
    if root == "/" { "" } else { root }
}

impl ByScope {
    fn insert(&mut self, number: u64, scope: &Scope) {
        let numbers = match scope {
            Scope::All => &mut self.all,
            Scope::Members => &mut self.members,
            Scope::Leases => &mut self.leases,
            Scope::Tree { root } => self.tree.entry(key(root).to_owned()).or_default(),
        };
        numbers.insert(number);
    }

    fn remove(&mut self, number: u64, scope: &Scope) {
        match scope {
            Scope::All => _ = self.all.remove(&number),
            Scope::Members => _ = self.members.remove(&number),
            Scope::Leases => _ = self.leases.remove(&number),
            Scope::Tree { root } => {
                if let Some(numbers) = self.tree.get_mut(key(root)) {
                    numbers.remove(&number);
                    if numbers.is_empty() {
                        self.tree.remove(key(root));
                    }
                }
            }
        }
    }

    /// All watchers that wait for an event.
    fn waiting_for(&self, happening: &Happening) -> Vec<u64> {
        let mut numbers: Vec<u64> = self.all.iter().copied().collect();
        match happening {
            Happening::Set { path, .. } | Happening::Deleted { path } => numbers.extend(self.watchers_of(path)),
            Happening::Granted { .. } | Happening::Ended { .. } => numbers.extend(&self.leases),
            _ => numbers.extend(&self.members),
        }
        numbers
    }

    /// The watchers whose roots are a path or an ancestor of it. At most one other root is visited for each name of the
    /// path: each lookup goes to the greatest root left that shares a prefix with all remaining ancestors.
    fn watchers_of<'a>(&'a self, path: &'a str) -> impl Iterator<Item = &'a u64> + 'a {
        let mut left = Some(path.len());
        let roots = iter::from_fn(move || {
            loop {
                let within = &path[..left?];
                #[cfg(test)]
                crate::types::LOOKS.set(crate::types::LOOKS.get() + 1);
                let (root, numbers) =
                    self.tree.range::<str, _>((Bound::Unbounded, Bound::Included(within))).next_back()?;
                let common = root.bytes().zip(within.bytes()).take_while(|(one, other)| one == other).count();
                let is_above = common == root.len() && matches!(path.as_bytes().get(common), None | Some(b'/'));
                // The next root ends where a name does, and the one that was found does not count again.
                let end = if is_above { common } else { common + 1 };
                left = path.as_bytes()[..end].iter().rposition(|byte| *byte == b'/');
                if is_above {
                    return Some(numbers);
                }
            }
        });
        roots.flatten()
    }
}

#[cfg(test)]
mod tests {
    use dunlin_smr::StateMachine;
    use dunlin_smr::machine::Asked;
    use dunlin_trial::Random;

    use super::*;
    use crate::limits::Limits;
    use crate::model::{Hearing, Machine};
    use crate::transaction::Transaction;
    use crate::types::{Changes, LOOKS};
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

    /// Sends a query under a number; `None` if it waits.
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
        assert_eq!(
            ask(&mut machine, 1, &above, 0).map(|changes| changes.events.len()),
            Some(1),
            "it has happened before"
        );
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

    /// The replica collects woken watchers when all committed commands are executed, which may be more than the history
    /// holds.
    #[test]
    fn a_quiet_watcher_is_not_told_that_events_are_gone() {
        let mut machine = machine();
        assert_eq!(ask(&mut machine, 1, &Scope::Members, 0), None);
        let sets = 5 * HISTORY as u64 / 2;
        (0..sets).for_each(|_| set(&mut machine, "/noise"));
        assert_eq!(machine.take_ready(), [1]);
        let told = ask(&mut machine, 1, &Scope::Members, 0).unwrap();
        assert_eq!((told.events.len(), told.up_to), (0, sets), "it can come back");
        assert_eq!(ask(&mut machine, 2, &Scope::Members, told.up_to), None);
    }

    /// A watcher is told of an event in its scope, even if the history at its arrival has been discarded.
    #[test]
    fn a_watcher_is_told_of_what_comes_after_much_else() {
        let mut machine = machine();
        assert_eq!(ask(&mut machine, 1, &tree("/a"), 0), None);
        (0..3 * HISTORY).for_each(|_| set(&mut machine, "/noise"));
        set(&mut machine, "/a");
        set(&mut machine, "/noise");
        assert_eq!(machine.take_ready(), [1]);
        let told = ask(&mut machine, 1, &tree("/a"), 0).unwrap();
        assert_eq!(told.events.iter().map(|event| event.revision).collect::<Vec<_>>(), [3 * HISTORY as u64 + 1]);
    }

    #[test]
    fn quiet_watchers_look_through_no_events() {
        const WATCHERS: u64 = 1000;
        const SETS: u64 = 20_000;
        let mut machine = Machine::new(Limits::default(), Hearing::default());
        for number in 0..WATCHERS {
            assert_eq!(ask(&mut machine, number, &Scope::Members, 0), None);
        }
        let (mut next, before) = (WATCHERS, LOOKS.get());
        for _ in 0..SETS {
            set(&mut machine, "/noise");
            for number in machine.take_ready() {
                let told = ask(&mut machine, number, &Scope::Members, 0).unwrap();
                assert_eq!(ask(&mut machine, next, &Scope::Members, told.up_to), None);
                next += 1;
            }
        }
        assert!(next > 2 * WATCHERS, "each was woken, also when much had happened");
        // One lookup for each event, since nothing watches the tree.
        assert!(LOOKS.get() - before <= SETS, "{} looks", LOOKS.get() - before);
    }

    /// A path with as many names as fit.
    fn deep_path() -> String {
        "/a".repeat(crate::path::PATH_BYTES_MAX / 2)
    }

    #[test]
    fn what_happens_at_a_deep_path_is_looked_up_for_the_roots_that_are_watched() {
        let (mut machine, path) = (Machine::new(Limits::default(), Hearing::default()), deep_path());
        let [above, beside] = [&path[..path.len() - 2], &format!("{}/b", &path[..100])].map(tree);
        let waiters = [above, beside, tree("/"), Scope::Members];
        for (number, scope) in waiters.iter().enumerate() {
            assert_eq!(ask(&mut machine, number as u64, scope, 0), None);
        }
        let before = LOOKS.get();
        set(&mut machine, &path);
        assert_eq!(machine.take_ready(), [0, 2]);
        let looks = LOOKS.get() - before;
        assert!(looks <= waiters.len() as u64, "{looks} looks");
    }

    /// Watchers are woken if their scopes hold the path of the event. The names sort before and after the slash.
    #[test]
    fn those_are_woken_whose_scopes_hold_what_happened() {
        let mut random = Random::new(71);
        let mut draw = move |names_max: u64| -> String {
            let names = random.between(1, names_max);
            (0..names).map(|_| ["/a", "/a!", "/a0", "/b", "/!", "/aa"][random.index(6)]).collect()
        };
        for round in 0..2000 {
            let roots = (0..round % 12).map(|_| tree(&draw(4)));
            let scopes: Vec<Scope> =
                [Scope::All, Scope::Members, Scope::Leases, tree("/")].into_iter().chain(roots).collect();
            let happening = match round % 5 {
                0 => Happening::Left { member: 1, epoch: 2 },
                1 => Happening::Ended { name: draw(4), token: 1 },
                2 => Happening::Deleted { path: draw(4) },
                _ => Happening::Set { path: draw(4), value: vec![] },
            };
            let mut watchers = Watchers::default();
            scopes.iter().zip(0..).for_each(|(scope, number)| watchers.wait(number, scope.clone(), 0));
            watchers.note(&happening, 0);
            let mut woken = watchers.take_untold();
            woken.sort_unstable();
            let expected =
                scopes.iter().zip(0..).filter(|(scope, _)| scope.holds(&happening)).map(|(_, number)| number);
            assert_eq!(woken, expected.collect::<Vec<u64>>(), "{happening:?} {scopes:?}");
            (0..scopes.len() as u64).for_each(|number| watchers.forget(number));
            assert!(watchers.by_scope.tree.is_empty() && watchers.by_revision.is_empty() && watchers.woken.is_empty());
        }
    }
}
