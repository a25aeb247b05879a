//! The commands that replicas executed.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use dunlin_coord::model::Machine;
use dunlin_coord::wire::{Answer, Command, Query, Wire};
use dunlin_coord::{Health, Heartbeat, Member, Standing};
use dunlin_sim::ThreadClock;
use dunlin_smr::StateMachine;
use dunlin_smr::machine::{Asked, Piece, RestoreError};

use super::attendance::member;
use super::caller::OwnClock;

/// A command that was executed.
pub struct Executed {
    pub command: Vec<u8>,
    pub reply: Vec<u8>,
    /// When the first replica executed it, in nanoseconds of virtual time.
    pub at: u64,
}

/// All that was executed by any replica: each must have executed the same.
#[derive(Default)]
pub struct Witness {
    /// By index of the log, without gaps: the snapshot of a replica comes from another one that executed the commands
    /// in it.
    executed: RefCell<BTreeMap<u64, Executed>>,
    /// Whether states are compared from now on.
    compares: Cell<bool>,
    /// By index: the hash of the state after it.
    states: RefCell<BTreeMap<u64, u64>>,
    /// By replica: how many of its states were compared with those of others.
    compared: RefCell<BTreeMap<u64, u64>>,
    /// By client that works as a member, until its clock says otherwise.
    standings: RefCell<BTreeMap<usize, (Standing, OwnClock)>>,
    /// The last epoch that any client was told is settled.
    settled: Cell<u64>,
}

impl Witness {
    /// # Panics
    /// If another replica executed another command at this index, or gave another reply.
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

    /// A client works as a member, by the clock that it measures that with.
    ///
    /// # Panics
    /// If it does so in an epoch before one that is settled.
    pub fn stand(&self, client: usize, standing: &Standing, clock: &OwnClock) {
        self.standings.borrow_mut().insert(client, (standing.clone(), clock.clone()));
        self.check_epochs();
    }

    /// Records that it stopped.
    pub fn end_standing(&self, client: usize) {
        self.standings.borrow_mut().remove(&client).iter().for_each(|(standing, _)| standing.end());
    }

    /// A client was told an epoch.
    ///
    /// # Panics
    /// If that is settled, and another client works in one before it.
    pub fn was_told(&self, heartbeat: &Heartbeat) {
        if heartbeat.is_settled {
            self.settled.set(self.settled.get().max(heartbeat.epoch));
            self.check_epochs();
        }
    }

    fn check_epochs(&self) {
        let settled = self.settled.get();
        for (client, (standing, clock)) in &*self.standings.borrow() {
            let (epoch, left) = (standing.epoch(), standing.safe_until().saturating_sub(clock.now()));
            assert!(
                left == 0 || epoch >= settled,
                "client {client} works in epoch {epoch} for {left} ns more by its clock, and epoch {settled} is settled"
            );
        }
    }

    /// # Panics
    /// If a client works as a member without being one.
    fn check_standings(&self, machine: &Machine) {
        let mut reply = Vec::new();
        machine.query(&Query::Members.to_bytes(), &mut reply);
        let Ok(Answer::Members { members }) = Answer::from_bytes(&reply) else { panic!("members are known") };
        for (client, (standing, clock)) in &*self.standings.borrow() {
            let left = standing.safe_until().saturating_sub(clock.now());
            let incarnation = standing.membership().incarnation;
            let is_it = |found: &Member| found.id == member(*client) && found.incarnation == incarnation;
            let is_live = members.members.iter().any(|found| is_it(found) && found.health == Health::Live);
            assert!(
                left == 0 || is_live,
                "client {client} works as member {} for {left} ns more by its clock, and was taken for failed",
                member(*client)
            );
        }
    }

    /// # Panics
    /// If the states of two replicas differ.
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

    /// Compares all states of all replicas from now on.
    pub fn compare_from_now(&self) {
        self.compares.set(true);
    }

    /// How many states of a replica were compared.
    pub fn compared(&self, id: u64) -> u64 {
        self.compared.borrow().get(&id).copied().unwrap_or(0)
    }

    /// Passes on all commands that were executed after an index, in order.
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
