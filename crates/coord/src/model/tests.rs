//! The machine against a simple model: what must hold after any sequence of commands, from any sender.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::transaction::{Compare, Transaction, Write};
use crate::types::{Condition, Event, Happening, Health, Revision, Token, View};
use crate::watchman::{Pulse, Tenure};
use crate::wire::{Lapsed, Silent};

fn small() -> Limits {
    Limits {
        members_max: 3,
        about_bytes_max: 8,
        epochs_max: 5,
        leases_max: 2,
        entries_max: 4,
        value_bytes_max: 16,
        tree_bytes_max: 60,
        history_events_max: 6,
        history_bytes_max: 420,
    }
}

fn with_limits(limits: Limits) -> Machine {
    Machine::new(limits, Hearing::default())
}

fn apply(machine: &mut Machine, command: &Command) -> Answer {
    let mut reply = Vec::new();
    machine.apply(0, &command.to_bytes(), &mut reply);
    Answer::from_bytes(&reply).unwrap()
}

fn set(path: &str, value: Vec<u8>) -> Command {
    Command::Transact { transaction: Transaction::new().set(path, value) }
}

fn ask(machine: &Machine, query: Query) -> Answer {
    let mut reply = Vec::new();
    machine.query(&query.to_bytes(), &mut reply);
    Answer::from_bytes(&reply).unwrap()
}

fn path() -> impl Strategy<Value = String> {
    prop_oneof![
        9 => (0..3, 0..3).prop_map(|(a, b)| if b == 0 { format!("/{a}") } else { format!("/{a}/{b}") }),
        1 => "[/a]{0,4}",
    ]
}

fn transaction(condition: impl Strategy<Value = Condition>) -> impl Strategy<Value = Transaction> {
    let small = || 0_u64..8;
    let compare = prop_oneof![
        1 => small().prop_map(|epoch| Compare::Epoch { epoch }),
        1 => (path(), small()).prop_map(|(name, token)| Compare::Lease { name, token }),
        4 => (path(), condition).prop_map(|(path, condition)| Compare::Entry { path, condition }),
    ];
    let write = prop_oneof![
        2 => (path(), vec(any::<u8>(), 0..20)).prop_map(|(path, value)| Write::Set { path, value }),
        1 => path().prop_map(|path| Write::Delete { path }),
    ];
    // Few enough for the history to hold all writes for watchers.
    (vec(compare, 0..3), vec(write, 0..5)).prop_map(|(compares, writes)| Transaction { compares, writes })
}

/// A random command. Its numbers are taken literally, or replaced by those of the state, so that it is likely to
/// succeed.
fn command() -> impl Strategy<Value = Command> {
    let small = || 0_u64..8;
    let member = || 1_u64..5;
    let condition = prop_oneof![
        Just(Condition::Always),
        Just(Condition::Absent),
        small().prop_map(|version| Condition::Version { version })
    ];
    prop_oneof![
        3 => (member(), vec(any::<u8>(), 0..10)).prop_map(|(member, about)| Command::Join { member, about }),
        1 => (member(), small()).prop_map(|(member, incarnation)| Command::Leave { member, incarnation }),
        1 => member().prop_map(|member| Command::Forget { member }),
        4 => (path(), member(), small(), prop_oneof![4 => Just(1000_u64), 1 => Just(1)])
            .prop_map(|(name, member, incarnation, ttl_ms)| Command::Acquire { name, member, incarnation, ttl_ms }),
        1 => (path(), small()).prop_map(|(name, token)| Command::Release { name, token }),
        6 => transaction(condition).prop_map(|transaction| Command::Transact { transaction }),
        1 => (0_u64..3).prop_map(|failure_timeout_ms| Command::Reign { failure_timeout_ms }),
        6 => (small(), vec((member(), small()), 0..4)).prop_map(|(reign, members)| {
            let members = members.into_iter().map(|(member, incarnation)| Silent { member, incarnation });
            Command::Decide { reign, members: members.collect(), leases: vec![Lapsed { name: "/a".into(), token: 1 }] }
        }),
    ]
}

/// Replaces the drawn numbers by valid ones, four times out of five.
fn made_true(machine: &Machine, command: Command, luck: u8) -> Command {
    if luck.is_multiple_of(5) {
        return command;
    }
    let Answer::Members { members } = ask(machine, Query::Members) else { panic!() };
    let pulse = machine.state.pulse(|_| 0);
    let now = |id: u64, drawn: u64| {
        members.members.iter().find(|member| member.id == id).map_or(drawn, |member| member.incarnation)
    };
    let lease = (!pulse.leases.is_empty()).then(|| pulse.leases[usize::from(luck) % pulse.leases.len()].clone());
    match (command, lease) {
        (Command::Leave { member, incarnation }, _) => Command::Leave { member, incarnation: now(member, incarnation) },
        (Command::Acquire { name, member, incarnation, ttl_ms }, _) => {
            Command::Acquire { name, member, incarnation: now(member, incarnation), ttl_ms }
        }
        (Command::Decide { members, .. }, _) => {
            let silent = |drawn: Silent| Silent { incarnation: now(drawn.member, drawn.incarnation), ..drawn };
            let lapsed = |held: Tenure| Lapsed { name: held.name, token: held.token };
            // Half of the leases, or all.
            let leases = pulse.leases.into_iter().skip(usize::from(luck % 2)).map(lapsed).collect();
            let members = members.into_iter().map(silent).collect();
            Command::Decide { reign: machine.state.reign, members, leases }
        }
        (Command::Release { .. }, Some(Tenure { name, token, .. })) => Command::Release { name, token },
        (Command::Transact { transaction }, lease) => {
            let Transaction { compares, writes } = transaction;
            let compares = compares.into_iter().map(|compare| match (compare, &lease) {
                (Compare::Epoch { .. }, _) => Compare::Epoch { epoch: machine.state.epoch },
                (Compare::Lease { .. }, Some(Tenure { name, token, .. })) => {
                    Compare::Lease { name: name.clone(), token: *token }
                }
                (Compare::Entry { path, condition: Condition::Version { version } }, _) => {
                    let version = machine.state.tree.get(&path).map_or(version, |leaf| leaf.version);
                    Compare::Entry { path, condition: Condition::Version { version } }
                }
                (other, _) => other,
            });
            Command::Transact { transaction: Transaction { compares: compares.collect(), writes } }
        }
        (other, _) => other,
    }
}

/// The state as a watcher would derive it from the events alone.
#[derive(Default)]
struct Follower {
    revision: Revision,
    epoch: u64,
    /// The revision at which the epoch began.
    epoch_of: Revision,
    live: BTreeMap<u64, u64>,
    failed: BTreeSet<u64>,
    leases: BTreeMap<String, (u64, Token)>,
    tree: BTreeMap<String, (Revision, Vec<u8>)>,
    highest_token: Token,
}

impl Follower {
    fn follow(&mut self, event: &Event) {
        let is_new = event.revision == self.revision + 1;
        assert!(is_new || event.revision == self.revision, "no event is left out or comes twice");
        self.revision = event.revision;
        let mut begin = |new: &u64| {
            let has_begun = std::mem::replace(&mut self.epoch_of, event.revision) == event.revision;
            assert_eq!(*new, self.epoch + u64::from(!has_begun), "each step that changes the live members is an epoch");
            self.epoch = *new;
        };
        match &event.happening {
            Happening::Joined { member, epoch } => {
                begin(epoch);
                self.failed.remove(member);
                assert_eq!(self.live.insert(*member, event.revision), None, "one process at a time");
            }
            Happening::Failed { member, epoch } => {
                begin(epoch);
                assert!(self.live.remove(member).is_some() && self.failed.insert(*member));
            }
            Happening::Left { member, epoch } => {
                begin(epoch);
                assert!(self.live.remove(member).is_some());
                assert!(self.leases.values().all(|(holder, _)| holder != member), "who leaves holds nothing");
            }
            Happening::Forgotten { member } => assert!(self.failed.remove(member)),
            Happening::Granted { name, member } => {
                assert!(self.live.contains_key(member), "only who lives is granted a lease");
                assert!(event.revision > self.highest_token, "tokens rise");
                self.highest_token = event.revision;
                assert!(self.leases.insert(name.clone(), (*member, event.revision)).is_none(), "one holder at a time");
            }
            Happening::Ended { name, token } => {
                assert_eq!(self.leases.remove(name).map(|(_, held)| held), Some(*token))
            }
            Happening::Set { path, value } => _ = self.tree.insert(path.clone(), (event.revision, value.clone())),
            Happening::Deleted { path } => assert!(self.tree.remove(path).is_some()),
        }
    }

    /// Whether the state is what the events say.
    fn compare(&self, machine: &Machine) {
        let state = &machine.state;
        assert_eq!((self.revision, self.epoch), (state.revision, state.epoch));
        let members = |health| state.members.iter().filter(move |(_, record)| record.health == health);
        assert!(members(Health::Live).map(|(id, record)| (*id, record.incarnation)).eq(self.live.clone()));
        assert!(members(Health::Failed).map(|(id, _)| *id).eq(self.failed.clone()));
        assert!(
            state.leases.iter().map(|(name, held)| (name.clone(), (held.member, held.token))).eq(self.leases.clone())
        );
        assert!(
            state
                .tree
                .iter()
                .map(|(path, leaf)| (path.clone(), (leaf.version, leaf.value.clone())))
                .eq(self.tree.clone())
        );
        let mut snapshot = Vec::new();
        machine.snapshot(&mut snapshot);
        assert_eq!(machine.fresh().unwrap().restore(&snapshot), Ok(()), "it is one that can be true");
        let limits = &machine.limits;
        assert!(state.members.len() <= limits.members_max && state.leases.len() <= limits.leases_max);
        assert!(state.tree.len() <= limits.entries_max && state.tree_bytes <= limits.tree_bytes_max as u64);
    }
}

/// Checks that a command was allowed to do what it did, by rules that need only the state before it.
fn judge(before: &Machine, command: &Command, answer: &Answer) {
    let live = |member: &u64, incarnation: &u64| {
        before
            .state
            .members
            .get(member)
            .is_some_and(|record| record.health == Health::Live && record.incarnation == *incarnation)
    };
    let was_done = !matches!(answer, Answer::Refused { .. });
    let version = |path: &String| before.state.tree.get(path).map(|leaf| leaf.version);
    match command {
        Command::Leave { member, incarnation } => assert_eq!(was_done, live(member, incarnation)),
        Command::Decide { reign, members, leases } => {
            assert_eq!(was_done, *reign == before.state.reign, "the present watchman's word");
            if let Answer::Decided { failures, lapses, refused } = answer {
                assert_eq!(failures + lapses + refused, (members.len() + leases.len()) as u64);
                let silent = members.iter().filter(|silent| live(&silent.member, &silent.incarnation));
                let failed: BTreeSet<u64> = silent.map(|silent| silent.member).collect();
                assert_eq!(
                    *failures,
                    failed.len() as u64,
                    "a member fails once, and as the incarnation that was silent"
                );
                let is_same = |lapsed: &&Lapsed| {
                    before.state.leases.get(&lapsed.name).is_some_and(|held| held.token == lapsed.token)
                };
                let over: BTreeSet<&String> = leases.iter().filter(is_same).map(|lapsed| &lapsed.name).collect();
                assert_eq!(*lapses, over.len() as u64, "a lease is over if it was not granted anew");
            }
        }
        Command::Join { member, .. } if was_done => {
            assert!(before.state.members.get(member).is_none_or(|record| record.health == Health::Failed));
            assert!(before.state.leases.values().all(|held| held.member != *member), "its leases have ended");
        }
        Command::Acquire { name, member, incarnation, .. } if was_done => {
            assert!(live(member, incarnation));
            assert!(before.state.leases.get(name).is_none_or(|held| held.member == *member));
        }
        Command::Transact { transaction } if was_done => {
            for compare in &transaction.compares {
                let holds = match compare {
                    Compare::Epoch { epoch } => before.state.epoch == *epoch,
                    Compare::Lease { name, token } => {
                        before.state.leases.get(name).is_some_and(|held| held.token == *token)
                    }
                    Compare::Entry { condition: Condition::Always, .. } => true,
                    Compare::Entry { path, condition: Condition::Absent } => version(path).is_none(),
                    Compare::Entry { path, condition: Condition::Version { version: wanted } } => {
                        version(path) == Some(*wanted)
                    }
                };
                assert!(holds, "{compare:?}");
            }
            let missing = transaction
                .writes
                .iter()
                .find(|write| matches!(write, Write::Delete { .. }) && version(&write.path().to_owned()).is_none());
            assert_eq!(missing, None);
        }
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn the_state_is_what_events_say_and_commands_allow(commands in vec((command(), any::<u8>()), 1..120)) {
        let (mut machine, mut follower) = (with_limits(small()), Follower::default());
        // A snapshot as a whole, and its pieces.
        let mut taking: Option<[Vec<u8>; 2]> = None;
        for (command, luck) in commands {
            let command = made_true(&machine, command, luck);
            let before = machine.clone();
            let answer = apply(&mut machine, &command);
            judge(&before, &command, &answer);
            if matches!(answer, Answer::Refused { .. }) {
                prop_assert_eq!(&machine.state, &before.state, "what is refused changes nothing");
            }
            // A command makes few events: the history holds them.
            match ask(&machine, Query::Changes { scope: Scope::All, after: follower.revision }) {
                Answer::Changes { changes } => {
                    let revisions = changes.events.iter().map(|event| event.revision);
                    prop_assert!(revisions.clone().all(|revision| revision == follower.revision + 1), "a step has one");
                    changes.events.iter().for_each(|event| follower.follow(event));
                    prop_assert_eq!(changes.up_to, machine.state.revision);
                }
                other => panic!("{other:?}"),
            }
            follower.compare(&machine);
            let mut snapshot = Vec::new();
            machine.snapshot(&mut snapshot);
            if let Some([_, pieces]) = &mut taking {
                let bytes = [1, 100, 1000][usize::from(luck % 3)];
                let is_last = machine.continue_snapshot(bytes, pieces) == Piece::Last;
                taking.take_if(|_| is_last).iter().for_each(|[whole, pieces]| assert_eq!(pieces, whole));
            } else {
                let mut pieces = Vec::new();
                machine.begin_snapshot(&mut pieces);
                taking = Some([snapshot.clone(), pieces]);
            }
            if !luck.is_multiple_of(8) {
                continue;
            }
            if luck.is_multiple_of(32) {
                machine.abandon_snapshot();
                taking = None;
            }
            let mut other = with_limits(small());
            apply(&mut other, &Command::Join { member: 9, about: vec![] });
            other.restore(&snapshot).unwrap();
            prop_assert_eq!(&other.state, &machine.state);
            let (mut restored, mut at) = (machine.fresh().unwrap(), 0);
            while at < snapshot.len() {
                let next = restored.restore_piece(&snapshot, at, 100).unwrap();
                prop_assert!(next > at && next - at < 100 + 2000);
                at = next;
            }
            prop_assert_eq!(&restored.state, &machine.state);
            let short = &snapshot[..snapshot.len() - 1];
            prop_assert!(other.restore(short).is_err());
            let by_pieces = |machine: &mut Machine, bytes: &[u8]| (0..bytes.len()).try_fold(0, |at, _| {
                if at == bytes.len() { Ok(at) } else { machine.restore_piece(bytes, at, 1) }
            });
            prop_assert!(by_pieces(&mut machine.fresh().unwrap(), short).is_err());
            prop_assert_eq!(&other.state, &machine.state, "what cannot be restored changes nothing");
        }
    }

    #[test]
    fn any_bytes_are_a_message_or_refused(bytes in vec(any::<u8>(), 0..80)) {
        let mut machine = with_limits(small());
        let mut reply = Vec::new();
        machine.apply(1, &bytes, &mut reply);
        machine.query(&bytes, &mut reply);
        let _ = machine.restore(&[&[SNAPSHOT_VERSION], &bytes[..]].concat());
        let _ = Answer::from_bytes(&bytes);
    }

    #[test]
    fn what_is_written_is_read(command in command(), path in path(), after in any::<u64>()) {
        prop_assert_eq!(Command::from_bytes(&command.to_bytes()), Ok(command));
        let query = Query::Changes { scope: Scope::Tree { root: path.clone() }, after };
        prop_assert_eq!(Query::from_bytes(&query.to_bytes()), Ok(query));
        let answer = Answer::from(CoordError::Held { name: path, holder: 1, token: after });
        prop_assert_eq!(Answer::from_bytes(&answer.to_bytes()), Ok(answer));
    }
}

#[test]
fn what_is_gone_from_the_history_is_said_to_be() {
    let mut machine = with_limits(small());
    for number in 0..20_u8 {
        apply(&mut machine, &set("/a", vec![number]));
    }
    let gone = Answer::from(CoordError::Compacted { compacted: 14 });
    assert_eq!(ask(&machine, Query::Changes { scope: Scope::All, after: 13 }), gone);
    let Answer::Changes { changes } = ask(&machine, Query::Changes { scope: Scope::All, after: 14 }) else { panic!() };
    assert_eq!((changes.events.len(), changes.up_to), (6, 20));
    let Answer::Changes { changes } = ask(&machine, Query::Changes { scope: Scope::Members, after: 14 }) else {
        panic!()
    };
    assert_eq!((changes.events.len(), changes.up_to), (0, 20));
}

#[test]
fn pages_are_bounded_and_lose_nothing() {
    let mut machine = with_limits(Limits::default());
    let paths: Vec<String> = (0..30).map(|number| format!("/a/{number:02}")).collect();
    for path in paths.iter().map(String::as_str).chain(["/a", "/ab", "/b/c"]) {
        apply(&mut machine, &set(path, vec![7; 40_000]));
    }
    let (mut listed, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let Answer::Listing { listing } = ask(&machine, Query::List { root: "/a".into(), after }) else { panic!() };
        assert!(listing.to_bytes().len() < PAGE_BYTES_MAX + 2000);
        listed.extend(listing.entries.into_iter().map(|entry| entry.path));
        (after, pages) = (listing.more_after, pages + 1);
        if after.is_none() {
            break;
        }
    }
    assert_eq!((listed, pages), (paths, 5));
    let Ok(Answer::Joined { joined }) = machine.execute(Command::Join { member: 1, about: vec![] }) else { panic!() };
    let names: Vec<String> = (0..600).map(|number| format!("/{number:03}/{}", "l".repeat(1000))).collect();
    for name in names.iter().cloned() {
        let (member, incarnation) = (1, joined.incarnation);
        machine.execute(Command::Acquire { name, member, incarnation, ttl_ms: 1000 }).unwrap();
    }
    let (mut listed, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let Answer::Leases { leases } = ask(&machine, Query::Leases { after }) else { panic!() };
        assert!(leases.to_bytes().len() < PAGE_BYTES_MAX + 2000);
        listed.extend(leases.leases.into_iter().map(|lease| lease.name));
        (after, pages) = (leases.more_after, pages + 1);
        if after.is_none() {
            break;
        }
    }
    assert_eq!((listed, pages), (names, 3));
    let (mut seen, mut from) = (0, 0);
    while from < 33 {
        let query = Query::Changes { scope: Scope::Tree { root: "/a".into() }, after: from };
        let Answer::Changes { changes } = ask(&machine, query) else { panic!() };
        assert!(changes.up_to > from);
        (seen, from) = (seen + changes.events.len(), changes.up_to);
    }
    assert_eq!(seen, 31, "those below, and the entry itself");
}

/// A machine with a reigning watchman, and a member with a lease: the member, the incarnation and the token.
fn watched() -> (Machine, Hearing, u64, Token) {
    let hearing = Hearing::default();
    let mut machine = Machine::new(small(), hearing.clone());
    let Answer::Joined { joined } = apply(&mut machine, &Command::Join { member: 1, about: vec![] }) else { panic!() };
    let acquire = Command::Acquire { name: "/a".into(), member: 1, incarnation: joined.incarnation, ttl_ms: 1000 };
    let Answer::Granted { token, .. } = apply(&mut machine, &acquire) else { panic!() };
    apply(&mut machine, &reign(700));
    hearing.open(1);
    (machine, hearing, joined.incarnation, token)
}

fn beat(machine: &Machine, incarnation: u64) -> Answer {
    ask(machine, Query::Heartbeat { member: 1, incarnation, epoch: 0 })
}

fn renew(machine: &Machine, token: Token) -> Answer {
    ask(machine, Query::Renew { name: "/a".into(), token })
}

fn pulse(machine: &Machine, hearing: &Hearing) -> Pulse {
    assert_eq!(ask(machine, Query::Pulse { reign: 1 }), Answer::Reigns { reign: 1 });
    hearing.pulse().unwrap()
}

#[test]
fn a_replica_hears_only_while_its_own_watchman_reigns() {
    let (mut machine, hearing, incarnation, token) = watched();
    let heard = Answer::Heard { epoch: 1, is_settled: true, failure_timeout_ms: 700 };
    assert_eq!(
        (beat(&machine, incarnation), renew(&machine, token)),
        (heard.clone(), Answer::Renewed { ttl_ms: 1000 })
    );
    let counted = pulse(&machine, &hearing);
    assert_eq!((counted.members[0].heartbeats, counted.leases[0].renewals), (1, 1));
    hearing.close();
    assert_eq!((beat(&machine, incarnation), renew(&machine, token)), (Answer::NotYet, Answer::NotYet));
    let over = Answer::from(CoordError::ReignOver { reign: 1 });
    assert_eq!(ask(&machine, Query::Pulse { reign: 1 }), over, "that of this replica does not reign");
    hearing.open(1);
    apply(&mut machine, &reign(700));
    assert_eq!(beat(&machine, incarnation), Answer::NotYet, "another has begun");
    assert_eq!(ask(&machine, Query::Pulse { reign: 1 }), over);
    hearing.open(2);
    assert_eq!(beat(&machine, incarnation), heard);
    let not_live = Answer::from(CoordError::NotLive { member: 1, incarnation: 9 });
    assert_eq!(beat(&machine, 9), not_live);
    assert_eq!(renew(&machine, 9), CoordError::LeaseLost { name: "/a".into(), token: 9 }.into());
}

#[test]
fn nothing_is_heard_of_those_that_are_condemned() {
    let (mut machine, hearing, incarnation, token) = watched();
    let counted = pulse(&machine, &hearing);
    assert_eq!(renew(&machine, token), Answer::Renewed { ttl_ms: 1000 });
    let (members, leases) = hearing.condemn(counted.clone());
    assert_eq!(members, [Silent { member: 1, incarnation }]);
    assert_eq!(leases, [], "it was renewed since it was counted");
    assert_eq!(beat(&machine, incarnation), Answer::NotYet, "whether it has failed is not known");
    assert!(matches!(renew(&machine, token), Answer::Renewed { .. }));
    let stale = Command::Decide { reign: 0, members: members.clone(), leases: vec![] };
    assert_eq!(apply(&mut machine, &stale), CoordError::ReignOver { reign: 0 }.into());
    let decide = Command::Decide { reign: 1, members, leases };
    assert_eq!(apply(&mut machine, &decide), Answer::Decided { failures: 1, lapses: 0, refused: 0 });
    assert_eq!(apply(&mut machine, &decide), Answer::Decided { failures: 0, lapses: 0, refused: 1 });
    let not_live = Answer::from(CoordError::NotLive { member: 1, incarnation });
    assert_eq!((beat(&machine, incarnation), renew(&machine, token)), (not_live.clone(), not_live));
    hearing.pardon_all();
    let (members, leases) = hearing.condemn(pulse(&machine, &hearing));
    assert_eq!((members, leases), (vec![], vec![Lapsed { name: "/a".into(), token }]));
    assert!(hearing.condemn(pulse(&machine, &hearing)).1.is_empty(), "once");
}

fn reign(failure_timeout_ms: u64) -> Command {
    Command::Reign { failure_timeout_ms }
}

#[test]
fn a_member_keeps_the_failure_timeout_that_it_was_told() {
    let mut machine = with_limits(small());
    let join = |machine: &mut Machine, member| match apply(machine, &Command::Join { member, about: vec![] }) {
        Answer::Joined { joined } => joined,
        other => panic!("{other:?}"),
    };
    let told = |machine: &Machine| {
        machine.state.pulse(|_| 0).members.iter().map(|beat| beat.failure_timeout_ms).collect::<Vec<_>>()
    };
    let early = join(&mut machine, 1);
    assert_eq!(early.failure_timeout_ms, 0, "nobody knows it yet");
    apply(&mut machine, &reign(700));
    let late = join(&mut machine, 2);
    assert_eq!((late.failure_timeout_ms, told(&machine)), (700, vec![700, 700]));
    assert_eq!(ask(&machine, Query::Heartbeat { member: 1, incarnation: early.incarnation, epoch: 0 }), Answer::NotYet);
    // A watchman with a shorter timeout fails no member sooner than it was promised.
    apply(&mut machine, &reign(500));
    assert_eq!(told(&machine), [700, 700]);
    apply(&mut machine, &Command::Leave { member: 2, incarnation: late.incarnation });
    join(&mut machine, 2);
    assert_eq!(told(&machine), [700, 500]);
}

#[test]
fn a_member_joins_again_when_its_earlier_incarnation_and_its_leases_have_ended() {
    let mut machine = with_limits(small());
    let join = Command::Join { member: 1, about: vec![] };
    let Answer::Joined { joined } = apply(&mut machine, &join) else { panic!() };
    let acquire = Command::Acquire { name: "/a".into(), member: 1, incarnation: joined.incarnation, ttl_ms: 1000 };
    let Answer::Granted { token, .. } = apply(&mut machine, &acquire) else { panic!() };
    assert_eq!(apply(&mut machine, &join), CoordError::LeasesRun { member: 1, name: "/a".into() }.into());
    assert!(matches!(apply(&mut machine, &Command::Join { member: 2, about: vec![] }), Answer::Joined { .. }));
    apply(&mut machine, &Command::Release { name: "/a".into(), token });
    assert_eq!(apply(&mut machine, &join), CoordError::Live { member: 1 }.into());
    let members = vec![Silent { member: 1, incarnation: joined.incarnation }];
    apply(&mut machine, &Command::Decide { reign: 0, members, leases: vec![] });
    let Answer::Joined { joined } = apply(&mut machine, &join) else { panic!() };
    apply(&mut machine, &Command::Leave { member: 1, incarnation: joined.incarnation });
    assert!(matches!(apply(&mut machine, &join), Answer::Joined { .. }));
}

fn transact(machine: &mut Machine, transaction: Transaction) -> Answer {
    apply(machine, &Command::Transact { transaction })
}

#[test]
fn a_step_stays_together_in_the_history_and_in_pages() {
    let mut machine = with_limits(Limits { history_events_max: 70, ..Limits::default() });
    let many = |from: usize| {
        (from..from + 64).fold(Transaction::new(), |all, number| all.set(&format!("/{number}"), vec![0; 8000]))
    };
    for round in 0..2 {
        assert_eq!(transact(&mut machine, many(64 * round)), Answer::Done { revision: 1 + round as u64 });
    }
    let changes = |machine: &Machine, after| ask(machine, Query::Changes { scope: Scope::All, after });
    assert_eq!(
        changes(&machine, 0),
        CoordError::Compacted { compacted: 1 }.into(),
        "of a step all or nothing is known"
    );
    let Answer::Changes { changes: page } = changes(&machine, 1) else { panic!() };
    assert_eq!((page.events.len(), page.up_to), (64, 2), "a page ends where a step does");
    // More than the history holds.
    let paths: Vec<String> = (0..6).map(|number| format!("/few/{number}")).collect();
    let mut little = with_limits(Limits { history_events_max: 4, ..Limits::default() });
    transact(&mut little, paths.iter().fold(Transaction::new(), |all, path| all.set(path, "")));
    assert_eq!(changes(&little, 0), CoordError::Compacted { compacted: 1 }.into());
    let Answer::Changes { changes: page } = changes(&little, 1) else { panic!() };
    assert_eq!((page.events.len(), page.up_to), (0, 1));
    let mut snapshot = Vec::new();
    little.snapshot(&mut snapshot);
    assert_eq!(little.fresh().unwrap().restore(&snapshot), Ok(()));
}

#[test]
fn a_transaction_has_room_for_all_or_none() {
    let mut machine = with_limits(small());
    for path in ["/1", "/2", "/3", "/4"] {
        assert!(matches!(transact(&mut machine, Transaction::new().set(path, "12345678")), Answer::Done { .. }));
    }
    let full = transact(&mut machine, Transaction::new().delete("/1").set("/5", "").set("/6", ""));
    assert_eq!(full, CoordError::Full { what: "entries".into(), max: 4 }.into());
    let done = transact(&mut machine, Transaction::new().set("/5", "1234567812345678").delete("/1").delete("/2"));
    assert_eq!(done, Answer::Done { revision: 5 }, "what it deletes makes room for what it sets");
    let full = transact(&mut machine, Transaction::new().set("/3", "1234567812345678").set("/4", "1234567812345678"));
    assert_eq!(full, Answer::Done { revision: 6 });
    let full = transact(&mut machine, Transaction::new().set("/6", "123456"));
    assert_eq!(full, CoordError::Full { what: "bytes in the tree".into(), max: 60 }.into());
    let nothing = transact(&mut machine, Transaction::new());
    assert_eq!(nothing, Answer::Done { revision: 6 });
    for bad in [
        Transaction::new().set("/3", "").delete("/3"),
        (0..65).fold(Transaction::new(), |all, number| all.set(&format!("/{number}"), "")),
        (0..65).fold(Transaction::new(), |all, _| all.if_epoch(0)),
    ] {
        let answer = transact(&mut machine, bad);
        assert!(matches!(answer, Answer::Refused { error: CoordError::BadTransaction { .. } }), "{answer:?}");
    }
    let large = (0..32).fold(Transaction::new(), |all, number| all.set(&format!("/{number}"), vec![0; 16 << 10]));
    let answer = transact(&mut with_limits(Limits::default()), large);
    assert!(matches!(answer, Answer::Refused { error: CoordError::TooLarge { .. } }), "{answer:?}");
}

#[test]
fn a_view_is_of_whole_names_and_bounded() {
    let mut machine = with_limits(Limits::default());
    for path in ["/a", "/a/b", "/a!", "/ab", "/a/c/d"] {
        apply(&mut machine, &set(path, b"v".to_vec()));
    }
    let Ok(Answer::Joined { joined }) = machine.execute(Command::Join { member: 1, about: vec![] }) else { panic!() };
    let (member, incarnation) = (1, joined.incarnation);
    for name in ["/a", "/a/b", "/ab"] {
        let name = name.to_owned();
        machine.execute(Command::Acquire { name, member, incarnation, ttl_ms: 1000 }).unwrap();
    }
    let view = |machine: &Machine, root: &str| match ask(machine, Query::View { root: root.into() }) {
        Answer::View { view: View { members, leases, entries } } => {
            let leases: Vec<_> = leases.into_iter().map(|lease| lease.name).collect();
            Ok((members.revision, leases, entries.into_iter().map(|entry| entry.path).collect::<Vec<_>>()))
        }
        Answer::Refused { error } => Err(error),
        other => panic!("{other:?}"),
    };
    let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
    assert_eq!(view(&machine, "/a"), Ok((9, names(&["/a", "/a/b"]), names(&["/a", "/a/b", "/a/c/d"]))));
    assert_eq!(view(&machine, "/none"), Ok((9, vec![], vec![])));
    assert_eq!(view(&machine, "/").unwrap().2.len(), 5);
    assert!(matches!(view(&machine, "a"), Err(CoordError::BadPath { .. })));
    for number in 0..70 {
        apply(&mut machine, &set(&format!("/large/{number}"), vec![0; 64 << 10]));
    }
    assert!(matches!(view(&machine, "/"), Err(CoordError::TooLarge { .. })));
    assert!(view(&machine, "/a").is_ok());
}

#[test]
fn an_epoch_is_settled_when_all_live_members_have_acknowledged_it() {
    let (mut machine, hearing, first, _) = watched();
    let join = |machine: &mut Machine, member| {
        let Answer::Joined { joined } = apply(machine, &Command::Join { member, about: vec![] }) else { panic!() };
        joined
    };
    let settled = |machine: &Machine, member, incarnation, epoch| {
        let Answer::Heard { epoch: now, is_settled, .. } =
            ask(machine, Query::Heartbeat { member, incarnation, epoch })
        else {
            panic!()
        };
        (now, is_settled)
    };
    assert_eq!(settled(&machine, 1, first, 1), (1, true));
    let second = join(&mut machine, 2);
    assert_eq!(settled(&machine, 2, second.incarnation, 2), (2, false), "the first has not heard of it");
    assert_eq!(settled(&machine, 1, first, 1), (2, false), "it hears of it now, and does not say so yet");
    assert_eq!(settled(&machine, 2, second.incarnation, 2), (2, false));
    assert_eq!(settled(&machine, 1, first, 2), (2, true));
    assert_eq!(settled(&machine, 2, second.incarnation, 2), (2, true));
    // A silent member holds it up until it has failed.
    let third = join(&mut machine, 3);
    assert_eq!((settled(&machine, 1, first, 3), third.epoch), ((3, false), 3));
    let silent = Silent { member: 2, incarnation: second.incarnation };
    apply(&mut machine, &Command::Decide { reign: 1, members: vec![silent], leases: vec![] });
    assert_eq!(settled(&machine, 1, first, 4), (4, false));
    assert_eq!(settled(&machine, 3, third.incarnation, 4), (4, true));
    // A member that joins again holds it up, too, until its earlier incarnation no longer counts.
    let again = join(&mut machine, 2);
    assert_eq!(settled(&machine, 1, first, 5), (5, false));
    assert_eq!(settled(&machine, 3, third.incarnation, 5), (5, true));
    assert_eq!(settled(&machine, 2, again.incarnation, 5), (5, true));
    // The next leader has heard no acknowledgement.
    hearing.open(1);
    assert_eq!(settled(&machine, 1, first, 5), (5, false));
    assert_eq!(settled(&machine, 3, third.incarnation, 5), (5, true));
    // Nobody knows an epoch that has not begun.
    assert_eq!(settled(&machine, 1, first, u64::MAX), (5, true));
    apply(&mut machine, &Command::Leave { member: 3, incarnation: third.incarnation });
    assert_eq!(settled(&machine, 2, again.incarnation, 6), (6, false));
}

/// A step is never divided: if it did not fit into a message, no watcher could pass it.
#[test]
fn limits_are_refused_if_the_end_of_all_leases_fits_into_no_message() {
    let message_bytes_max = dunlin_rpc::EndpointConfig::default().message_bytes_max;
    let is_allowed = |leases_max| Limits { leases_max, ..Limits::default() }.check().is_ok();
    assert!(!is_allowed(10_000) && !is_allowed(usize::MAX));
    let leases_max = (4096..10_000).rfind(|leases_max| is_allowed(*leases_max)).unwrap();
    let limits = Limits { leases_max, history_events_max: 3 * leases_max, ..Limits::default() };
    let mut machine = with_limits(limits);
    let Answer::Joined { joined } = apply(&mut machine, &Command::Join { member: 1, about: Vec::new() }) else {
        panic!("it does not join")
    };
    let incarnation = joined.incarnation;
    for number in 0..leases_max {
        let name = format!("/{number:0>width$}", width = crate::path::PATH_BYTES_MAX - 1);
        let granted = apply(&mut machine, &Command::Acquire { name, member: 1, incarnation, ttl_ms: 1000 });
        assert!(matches!(granted, Answer::Granted { .. }), "{granted:?}");
    }
    // A page full of other events, and then the step.
    let after = machine.state.revision;
    for _ in 0..3 {
        apply(&mut machine, &set("/a", vec![0; 60 << 10]));
    }
    apply(&mut machine, &Command::Leave { member: 1, incarnation });
    let mut answer = Vec::new();
    machine.query(&Query::Changes { scope: Scope::All, after }.to_bytes(), &mut answer);
    let Ok(Answer::Changes { changes }) = Answer::from_bytes(&answer) else { panic!("it has no answer") };
    assert_eq!((changes.events.len(), changes.up_to), (3 + leases_max + 1, machine.state.revision));
    assert!(answer.len() < message_bytes_max, "{} B", answer.len());
    assert!(answer.len() > message_bytes_max * 9 / 10, "the limits are far too low: {} B", answer.len());
}
