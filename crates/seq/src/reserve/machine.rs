//! The replicated state: the end of the reserved numbers, and the holder of the office.

use dunlin_smr::StateMachine;
use dunlin_smr::machine::RestoreError;

use crate::counter::NUMBERS_END;
use crate::mutation::{Mutation, is_planted};

/// The longest range: most numbers that may be reserved at a time.
pub const RANGE_MAX: u64 = 1 << 40;
/// Version of commands, queries, replies and snapshots.
const VERSION: u8 = 1;

/// The state of the office.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Office {
    /// Incremented each time that the office is taken.
    pub epoch: u64,
    /// Its holder; 0 for none.
    pub holder: u64,
    /// Incremented with each command that is executed for the old or a new holder. If it stays unchanged for a term, no
    /// term is running.
    pub stamp: u64,
    /// All numbers below are reserved.
    pub reserved: u64,
}

/// A command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    /// Takes office, if no command was executed since `stamp` was read, and reserves numbers, from `start` on or
    /// higher.
    Take { holder: u64, stamp: u64, count: u64, start: u64 },
    /// Reserves numbers, possibly none, for the holder of an epoch.
    Extend { holder: u64, epoch: u64, count: u64 },
    /// Gives up the office.
    Release { holder: u64, epoch: u64 },
}

/// The result of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    Done = 0,
    /// The office is not in the state that the command expects.
    Refused = 1,
    /// The command is malformed.
    Malformed = 2,
}

/// The answer to a command or query: the office after it, and the start of the numbers that it reserved. They end at
/// [`Office::reserved`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reply {
    pub status: Status,
    pub office: Office,
    pub from: u64,
}

const COMMAND_BYTES: usize = 40;
const OFFICE_BYTES: usize = 33;
const REPLY_BYTES: usize = OFFICE_BYTES + 9;

fn words<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    if bytes.len() != 8 * N {
        return None;
    }
    let mut words = [0; N];
    bytes.chunks_exact(8).zip(&mut words).for_each(|(bytes, word)| {
        *word = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    });
    Some(words)
}

impl Command {
    pub fn encode(self) -> [u8; COMMAND_BYTES] {
        let (kind, words) = match self {
            Command::Take { holder, stamp, count, start } => (1, [holder, stamp, count, start]),
            Command::Extend { holder, epoch, count } => (2, [holder, epoch, count, 0]),
            Command::Release { holder, epoch } => (3, [holder, epoch, 0, 0]),
        };
        let mut bytes = [0; COMMAND_BYTES];
        (bytes[0], bytes[1]) = (VERSION, kind);
        bytes[8..].chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Command> {
        let (head, rest) = bytes.split_at_checked(8)?;
        let [a, b, c, d] = words(rest)?;
        let command = match head[1] {
            1 => Command::Take { holder: a, stamp: b, count: c, start: d },
            2 => Command::Extend { holder: a, epoch: b, count: c },
            3 => Command::Release { holder: a, epoch: b },
            _ => return None,
        };
        (command.encode() == bytes && a != 0 && c <= RANGE_MAX).then_some(command)
    }
}

impl Office {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        [self.epoch, self.holder, self.stamp, self.reserved].iter().for_each(|word| out.extend(word.to_le_bytes()));
    }

    fn parse(bytes: &[u8]) -> Option<Office> {
        let (version, rest) = bytes.split_first()?;
        let [epoch, holder, stamp, reserved] = words(rest)?;
        (*version == VERSION).then_some(Office { epoch, holder, stamp, reserved })
    }
}

impl Reply {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.status as u8);
        out.extend(self.from.to_le_bytes());
        self.office.encode(out);
    }

    pub fn parse(bytes: &[u8]) -> Option<Reply> {
        if bytes.len() != REPLY_BYTES {
            return None;
        }
        let status = match bytes[0] {
            0 => Status::Done,
            1 => Status::Refused,
            2 => Status::Malformed,
            _ => return None,
        };
        let [from] = words(&bytes[1..9])?;
        Some(Reply { status, from, office: Office::parse(&bytes[9..])? })
    }
}

/// The state machine: one office, one counter of reserved numbers.
#[derive(Debug, Clone, Default)]
pub struct Reservations {
    office: Office,
}

impl Reservations {
    /// The initial state: nothing is reserved, and the office is free.
    pub fn new() -> Reservations {
        Reservations::default()
    }

    /// The state of the office.
    pub fn office(&self) -> Office {
        self.office
    }

    fn execute(&mut self, command: Command) -> Reply {
        let office = &mut self.office;
        let refused = |office: &Office| Reply { status: Status::Refused, office: *office, from: office.reserved };
        let holds = |office: &Office, holder, epoch| (office.holder, office.epoch) == (holder, epoch);
        let count = match command {
            Command::Take { holder, stamp, count, start } => {
                if office.stamp != stamp && !is_planted(Mutation::RenewalOverlooked) {
                    return refused(office);
                }
                office.epoch += 1;
                office.holder = holder;
                office.reserved = office.reserved.max(start.min(NUMBERS_END));
                if is_planted(Mutation::BeginsBelowReserved) {
                    office.reserved = office.reserved.saturating_sub(count / 2);
                }
                count
            }
            Command::Extend { holder, epoch, count } => {
                if !holds(office, holder, epoch) && !is_planted(Mutation::FormerHolderReserves) {
                    return refused(office);
                }
                count
            }
            Command::Release { holder, epoch } => {
                if !holds(office, holder, epoch) {
                    return refused(office);
                }
                office.holder = 0;
                0
            }
        };
        office.stamp += 1;
        let from = office.reserved;
        office.reserved = from.saturating_add(count).min(NUMBERS_END);
        Reply { status: Status::Done, office: *office, from }
    }
}

impl StateMachine for Reservations {
    fn apply(&mut self, _: u64, command: &[u8], reply: &mut Vec<u8>) {
        let answer = match Command::parse(command) {
            Some(command) => self.execute(command),
            None => Reply { status: Status::Malformed, office: self.office, from: self.office.reserved },
        };
        answer.encode(reply);
    }

    /// The answer to every query is the office.
    fn query(&self, _: &[u8], reply: &mut Vec<u8>) {
        Reply { status: Status::Done, office: self.office, from: self.office.reserved }.encode(reply);
    }

    fn snapshot(&self, out: &mut Vec<u8>) {
        self.office.encode(out);
    }

    fn fresh(&self) -> Result<Reservations, RestoreError> {
        Ok(Reservations::new())
    }

    fn restore(&mut self, snapshot: &[u8]) -> Result<(), RestoreError> {
        self.office = Office::parse(snapshot)
            .ok_or_else(|| RestoreError::new("it is not the office of a sequencer, or of another version"))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(machine: &mut Reservations, command: Command) -> Reply {
        let mut reply = Vec::new();
        machine.apply(1, &command.encode(), &mut reply);
        Reply::parse(&reply).unwrap()
    }

    fn take(holder: u64, stamp: u64) -> Command {
        Command::Take { holder, stamp, count: 100, start: 0 }
    }

    #[test]
    fn ranges_never_overlap_and_only_the_holder_reserves() {
        let mut machine = Reservations::new();
        let reply = run(&mut machine, take(1, 0));
        assert_eq!((reply.status, reply.from, reply.office.reserved), (Status::Done, 0, 100));
        let extend = |holder, epoch, count| Command::Extend { holder, epoch, count };
        let reply = run(&mut machine, extend(1, 1, 50));
        assert_eq!((reply.status, reply.from, reply.office.reserved), (Status::Done, 100, 150));
        assert_eq!(run(&mut machine, extend(1, 1, 0)).office.stamp, 3, "a renewal is seen");
        for stamp in 0..3 {
            assert_eq!(run(&mut machine, take(2, stamp)).status, Status::Refused);
        }
        let reply = run(&mut machine, take(2, 3));
        assert_eq!((reply.status, reply.from, reply.office.epoch), (Status::Done, 150, 2));
        for command in [extend(1, 1, 5), extend(1, 2, 5), extend(2, 1, 5), Command::Release { holder: 1, epoch: 1 }] {
            assert_eq!(run(&mut machine, command).status, Status::Refused);
        }
        assert_eq!(machine.office().reserved, 250);
        assert_eq!(run(&mut machine, Command::Release { holder: 2, epoch: 2 }).office.holder, 0);
        assert_eq!(run(&mut machine, extend(2, 2, 5)).status, Status::Refused);
    }

    #[test]
    fn numbers_begin_where_they_are_told_and_end_at_the_end() {
        let mut machine = Reservations::new();
        let start = NUMBERS_END - 30;
        let reply = run(&mut machine, Command::Take { holder: 1, stamp: 0, count: 20, start });
        assert_eq!((reply.from, reply.office.reserved), (start, start + 20));
        let extend = Command::Extend { holder: 1, epoch: 1, count: 20 };
        assert_eq!(run(&mut machine, extend).office.reserved, NUMBERS_END);
        let reply = run(&mut machine, extend);
        assert_eq!((reply.from, reply.office.reserved), (NUMBERS_END, NUMBERS_END));
        let lower = Command::Take { holder: 1, stamp: 3, count: 20, start: 5 };
        assert_eq!(run(&mut machine, lower).from, NUMBERS_END);
    }

    #[test]
    fn what_is_no_command_changes_nothing() {
        let mut machine = Reservations::new();
        run(&mut machine, take(1, 0));
        let before = machine.office();
        let mut bad: Vec<Vec<u8>> = (0..COMMAND_BYTES).map(|len| take(1, 1).encode()[..len].to_vec()).collect();
        bad.push([&take(1, 1).encode()[..], &[0]].concat());
        bad.push(take(0, 1).encode().to_vec());
        bad.push(Command::Take { holder: 1, stamp: 1, count: u64::MAX, start: 0 }.encode().to_vec());
        bad.extend((0..8).map(|at| {
            let mut bytes = take(1, 1).encode();
            bytes[at] ^= 0x40;
            bytes.to_vec()
        }));
        for command in bad {
            let mut reply = Vec::new();
            machine.apply(2, &command, &mut reply);
            assert_eq!(Reply::parse(&reply).unwrap().status, Status::Malformed, "{command:?}");
        }
        assert_eq!(machine.office(), before);
        let mut snapshot = Vec::new();
        machine.snapshot(&mut snapshot);
        let mut other = machine.fresh().unwrap();
        other.restore(&snapshot).unwrap();
        assert_eq!(other.office(), before);
        assert!(other.restore(&snapshot[1..]).is_err() && other.restore(&[&snapshot[..], &[0]].concat()).is_err());
    }
}
