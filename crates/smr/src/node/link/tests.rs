use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};
use dunlin_rpc::{Endpoint, EndpointConfig};
use raft::eraftpb::Message;

use super::pace::{ENVELOPE_BYTES_MAX, PATIENCE_MAX, Pace, SMALL_BYTES_MAX};
use super::*;
use crate::wire::message::envelope_len;

const ELECTION: u32 = 20;

fn sent(bytes: usize) -> Sent {
    Sent { at: 0, leads: Vec::new(), bytes }
}

/// Returns the links of a process whose path to replica 2 had this many late requests.
fn slow(late: u32) -> Links {
    let mut links = Links::new(1);
    links.follow(0, &members(2));
    (0..late).for_each(|_| links.note_late(2, &sent(ENVELOPE_BYTES_MAX)));
    links
}

fn pace(links: &Links) -> Pace {
    links.get(2).unwrap().pace
}

/// Nothing longer than a packet is sent, so no answer shows what the path supports now.
#[test]
fn a_path_that_is_no_longer_slow_gets_its_pace_back() {
    let mut links = slow(12);
    assert_eq!((pace(&links).bytes_max, pace(&links).patience), (SMALL_BYTES_MAX, PATIENCE_MAX));
    let mut ticks = 0;
    while pace(&links) != Pace::FULL {
        links.note_in_time(2, &sent(200));
        links.tick(3, ELECTION);
        ticks += 1;
        assert!(ticks < 400 * ELECTION, "{:?}", pace(&links));
    }
    assert!(ticks > PATIENCE_MAX * ELECTION, "not before a late answer could have come");
}

#[test]
fn a_path_is_slow_while_answers_come_late() {
    let mut links = slow(6);
    for _ in 0..50 {
        let before = pace(&links);
        (0..before.patience * ELECTION).for_each(|_| _ = links.tick(3, ELECTION));
        assert_eq!((pace(&links).bytes_max, pace(&links).patience), (before.bytes_max, before.patience));
        links.note_late(2, &sent(ENVELOPE_BYTES_MAX));
    }
    // Half the length of the late request is evidence enough.
    links.note_in_time(2, &sent(ENVELOPE_BYTES_MAX / 2));
    assert_eq!(pace(&links).patience, PATIENCE_MAX / 2);
}

/// Or the pace would rise again before each late answer, and no request be short enough.
#[test]
fn a_request_on_its_way_says_nothing_of_its_path() {
    let mut links = slow(3);
    let before = pace(&links);
    links.get_mut(2).unwrap().large_in_flight = true;
    (0..100 * before.patience * ELECTION).for_each(|_| _ = links.tick(3, ELECTION));
    let same = |links: &Links| (pace(links).bytes_max, pace(links).patience) == (before.bytes_max, before.patience);
    assert!(same(&links));
    // It was late: only from now on time counts again.
    links.note_late(2, &sent(ENVELOPE_BYTES_MAX));
    let before = pace(&links);
    (0..before.patience * ELECTION).for_each(|_| _ = links.tick(3, ELECTION));
    links.note_in_time(2, &sent(SMALL_BYTES_MAX + 1));
    assert_eq!(pace(&links).patience, before.patience, "such a short one says nothing so soon");
    // Always one after the other: none is long, and none is late.
    links.tick(3, ELECTION);
    links.note_in_time(2, &sent(SMALL_BYTES_MAX + 1));
    assert_eq!(pace(&links).patience, before.patience / 2);
}

#[test]
fn the_way_to_another_address_is_not_known_to_be_slow() {
    let mut links = slow(3);
    links.follow(0, &members(3));
    assert_eq!(pace(&links), Pace::FULL);
}

fn members(two: u32) -> Members {
    [(1, "node:1".to_owned()), (2, format!("node:{two}"))].into()
}

fn connects(links: &mut Links) -> Vec<Addr> {
    links.unconnected().into_iter().map(|(_, addr)| addr).collect()
}

/// An attempt to reach the old address ends after the address changed.
#[test]
fn what_came_of_an_old_address_is_not_of_the_new_one() {
    let mut links = slow(0);
    assert_eq!(connects(&mut links), [Addr::Node(2)]);
    links.follow(0, &members(3));
    assert_eq!(connects(&mut links), [Addr::Node(3)]);
    let number = links.get(2).unwrap().number;
    links.on_connected(number, &Addr::Node(2), Err(ConnectError::TimedOut { addr: Addr::Node(2) }));
    assert_eq!(connects(&mut links), [], "the new one is still being reached");
    links.on_connected(number, &Addr::Node(3), Err(ConnectError::TimedOut { addr: Addr::Node(3) }));
    assert_eq!(connects(&mut links), [Addr::Node(3)]);
}

/// Groups that have not heard of a move, or begin with older knowledge.
#[test]
fn a_process_is_reached_where_a_group_has_moved_it() {
    let mut links = slow(0);
    links.follow(1, &members(2));
    links.follow(1, &members(3));
    links.follow(0, &members(2));
    links.follow(7, &members(2));
    assert_eq!(connects(&mut links), [Addr::Node(3)]);
    let number = links.get(2).unwrap().number;
    let mut fails =
        |at| links.on_connected(number, &Addr::Node(at), Err(ConnectError::TimedOut { addr: Addr::Node(at) }));
    fails(3);
    assert_eq!(connects(&mut links), [Addr::Node(2)], "nobody is there");
    let mut fails =
        |at| links.on_connected(number, &Addr::Node(at), Err(ConnectError::TimedOut { addr: Addr::Node(at) }));
    fails(2);
    assert_eq!(connects(&mut links), [Addr::Node(3)], "nor here");
}

/// A session that is not closed stays open as long as both ends live.
#[test]
fn no_session_stays_open_that_is_of_no_use() {
    let network = LoopbackNetwork::new(LoopbackConfig::default());
    let [own, two, three] =
        [1, 2, 3].map(|node| Endpoint::new(network.endpoint(node).unwrap(), EndpointConfig::default()).unwrap());
    let others = [&two, &three];
    let turn = || {
        network.advance(Duration::from_micros(50));
        others.iter().for_each(|other| _ = other.run_once());
    };
    let open = |at: u32| {
        let mut connecting = std::pin::pin!(own.connect(&Addr::Node(at)));
        loop {
            turn();
            if let Some(session) = own.poll_once(connecting.as_mut()) {
                return session;
            }
        }
    };
    let sessions = || {
        for _ in 0..1000 {
            turn();
            own.run_once();
        }
        own.stats().sessions
    };
    let mut links = slow(0);
    let number = links.get(2).unwrap().number;
    assert_eq!(connects(&mut links), [Addr::Node(2)]);
    let late = open(2);
    links.follow(0, &members(3));
    assert_eq!(connects(&mut links), [Addr::Node(3)]);
    links.on_connected(number, &Addr::Node(2), late);
    assert_eq!(sessions(), 0, "it is reached elsewhere");
    links.on_connected(number, &Addr::Node(3), open(3));
    assert_eq!(sessions(), 1);
    links.follow(0, &[(1, "node:1".to_owned())].into());
    assert_eq!(sessions(), 0, "it is no member any more");
}

/// The queue is a ring, and an envelope is encoded from consecutive memory.
#[test]
fn messages_leave_in_order_wherever_the_ring_begins() {
    let mut link = Link::new(2, 0);
    let message = |index: u64| {
        let context = vec![0; index as usize * 31 % 200].into();
        Addressed { group: 0, asks_to_rest: false, message: Message { index, context, ..Message::default() } }
    };
    let (mut pushed, mut taken) = (0, 0);
    for round in 0..2_000 {
        for _ in 0..round * 7 % 13 {
            link.push(message(pushed));
            pushed += 1;
        }
        let (bytes_max, last) = match round {
            1_990.. => (usize::MAX, TakeLast::Leave),
            // Shorter than any message: one leaves all the same.
            _ if round % 50 == 0 => (1, TakeLast::Take),
            _ => (round as usize * 500 % 3_000, TakeLast::Leave),
        };
        let before = taken;
        link.take(bytes_max, last, |messages| {
            assert!(last == TakeLast::Take || messages.is_empty() || envelope_len(messages) <= bytes_max);
            for addressed in messages {
                assert_eq!(addressed, &message(taken));
                taken += 1;
            }
        });
        assert!(last == TakeLast::Leave || taken == before + u64::from(pushed > before));
    }
    assert_eq!((pushed, taken), (11_994, 11_994));
    assert_eq!(link.queued(), (0, 0));
}
