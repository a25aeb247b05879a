//! What replicas executed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use dunlin_coord::model::Machine;
use dunlin_coord::wire::{Answer, Command, Query, Wire};
use dunlin_coord::{Health, Incarnation, Member};
use dunlin_sim::ThreadClock;
use dunlin_smr::StateMachine;
use dunlin_smr::machine::{Asked, Piece, RestoreError};

use super::attendance::member;

/// A command that was executed.
pub struct Executed {
    pub command: Vec<u8>,
    pub reply: Vec<u8>,
    /// When the first replica executed it, in nanoseconds of virtual time.
    pub at: u64,
}

/// A member that works as one until its clock says otherwise.
struct Standing {
    incarnation: Incarnation,
    safe_until: u64,
    clock: ThreadClock,
}

/// All that was executed by any replica: each must have executed the same.
#[derive(Default)]
pub struct Witness {
    /// By index of the log, in which no command is missing: who has a snapshot has it of one who executed what is in it.
    executed: RefCell<BTreeMap<u64, Executed>>,
    /// Whether states are compared from now on.
    compares: Cell<bool>,
    /// By index: what the state was behind it.
    states: RefCell<BTreeMap<u64, u64>>,
    /// By replica: how many of its states were compared with those of others.
    compared: RefCell<BTreeMap<u64, u64>>,
    /// By client.
    standings: RefCell<BTreeMap<usize, Standing>>,
}

impl Witness {
    /// # Panics
    /// If another replica executed something else there, or gave another reply.
    fn note(&self, id: u64, index: u64, command: &[u8], reply: &[u8], at: u64, machine: &Machine) {
        let mut executed = self.executed.borrow_mut();
        let new = || {
            if matches!(Command::from_bytes(command), Ok(Command::Decide { .. })) {
                self.check_standings(machine);
            }
            Executed { command: command.to_vec(), reply: reply.to_vec(), at }
        };
        let first = executed.entry(index).or_insert_with(new);
        assert_eq!(first.command, command, "replica {id} executes another command at index {index} than others");
        assert_eq!(first.reply, reply, "replica {id} gives another reply at index {index} than others");
    }

    /// A client works as a member until then, by its clock that goes on while its machine is suspended.
    pub fn stand(&self, client: usize, incarnation: Incarnation, safe_until: u64, clock: &ThreadClock) {
        let standing = Standing { incarnation, safe_until, clock: clock.clone() };
        let mut standings = self.standings.borrow_mut();
        let known = standings.get(&client).filter(|known| known.incarnation == incarnation);
        let safe_until = known.map_or(safe_until, |known| known.safe_until.max(safe_until));
        standings.insert(client, Standing { safe_until, ..standing });
    }

    /// It does so no more.
    pub fn end_standing(&self, client: usize) {
        self.standings.borrow_mut().remove(&client);
    }

    /// # Panics
    /// If a client works as a member, and is none.
    fn check_standings(&self, machine: &Machine) {
        let mut reply = Vec::new();
        machine.query(&Query::Members.to_bytes(), &mut reply);
        let Ok(Answer::Members { members }) = Answer::from_bytes(&reply) else { panic!("members are known") };
        for (client, standing) in &*self.standings.borrow() {
            let left = standing.safe_until.saturating_sub(standing.clock.boot_now());
            let is_it = |found: &Member| found.id == member(*client) && found.incarnation == standing.incarnation;
            let is_live = members.members.iter().any(|found| is_it(found) && found.health == Health::Live);
            assert!(
                left == 0 || is_live,
                "client {client} works as member {} for {left} ns more by its clock, and was taken for failed",
                member(*client)
            );
        }
    }

    /// # Panics
    /// If the state of another replica was another.
    fn compare(&self, id: u64, index: u64, machine: &Machine) {
        let mut bytes = Vec::new();
        machine.snapshot(&mut bytes);
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        let state = hasher.finish();
        let first = *self.states.borrow_mut().entry(index).or_insert(state);
        assert_eq!(first, state, "the state of replica {id} behind index {index} is not that of others");
        *self.compared.borrow_mut().entry(id).or_default() += 1;
    }

    /// Begins to compare all states of all replicas.
    pub fn compare_from_now(&self) {
        self.compares.set(true);
    }

    /// How many states of a replica were compared.
    pub fn compared(&self, id: u64) -> u64 {
        self.compared.borrow().get(&id).copied().unwrap_or(0)
    }

    /// Gives all that was executed after an index, in order.
    pub fn after(&self, index: u64, mut each: impl FnMut(u64, &Executed)) {
        self.executed.borrow().range(index + 1..).for_each(|(index, executed)| each(*index, executed));
    }
}

/// The machine of a replica, watched by a witness.
pub struct Witnessed {
    machine: Machine,
    id: u64,
    witness: Rc<Witness>,
    clock: ThreadClock,
}

impl Witnessed {
    pub fn new(machine: Machine, id: u64, witness: Rc<Witness>, clock: ThreadClock) -> Witnessed {
        Witnessed { machine, id, witness, clock }
    }
}

impl StateMachine for Witnessed {
    fn apply(&mut self, index: u64, command: &[u8], reply: &mut Vec<u8>) {
        let start = reply.len();
        self.machine.apply(index, command, reply);
        let now = self.clock.virtual_now();
        self.witness.note(self.id, index, command, &reply[start..], now, &self.machine);
        if self.witness.compares.get() {
            self.witness.compare(self.id, index, &self.machine);
        }
    }

    fn query(&self, query: &[u8], reply: &mut Vec<u8>) {
        self.machine.query(query, reply);
    }

    fn ask(&mut self, number: u64, query: &[u8], reply: &mut Vec<u8>) -> Asked {
        self.machine.ask(number, query, reply)
    }

    fn take_ready(&mut self) -> Vec<u64> {
        self.machine.take_ready()
    }

    fn forget(&mut self, number: u64) {
        self.machine.forget(number);
    }

    fn is_urgent(&self, query: &[u8]) -> bool {
        self.machine.is_urgent(query)
    }

    fn snapshot(&self, out: &mut Vec<u8>) {
        self.machine.snapshot(out);
    }

    fn begin_snapshot(&mut self, out: &mut Vec<u8>) {
        self.machine.begin_snapshot(out);
    }

    fn continue_snapshot(&mut self, bytes: usize, out: &mut Vec<u8>) -> Piece {
        self.machine.continue_snapshot(bytes, out)
    }

    fn abandon_snapshot(&mut self) {
        self.machine.abandon_snapshot();
    }

    fn fresh(&self) -> Result<Witnessed, RestoreError> {
        let Witnessed { machine, id, witness, clock } = self;
        Ok(Witnessed::new(machine.fresh()?, *id, witness.clone(), clock.clone()))
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), RestoreError> {
        self.machine.restore(snapshot)
    }

    fn restore_piece(&mut self, snapshot: &[u8], from: usize, bytes: usize) -> Result<usize, RestoreError> {
        self.machine.restore_piece(snapshot, from, bytes)
    }
}
