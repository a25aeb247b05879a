//! The queue as a whole, on private memory and step by step: how the receiver handles senders that die at every step.
//!
//! Runs under Miri, which cannot emulate weak memory where words and bytes of a packet overlap:
//! `MIRIFLAGS=-Zmiri-disable-weak-memory-emulation cargo +nightly miri test -p dunlin-net --lib -- shm:: --skip raw`

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::shm::backing::BulkBacking;
use crate::shm::bell::Bell;
use crate::shm::bulk;
use crate::shm::burst::Senders;
use crate::shm::cell::NO_BULK;
use crate::shm::intent::Intent;
use crate::shm::layout::Sizes;
use crate::shm::receiver::{Outlook, Receiver};
use crate::shm::region::Region;
use crate::shm::region::testing::{SIZES, identity, region};
use crate::shm::sender::{NoBuffer, Reserved, Sender};
use crate::transport::{Route, TransportCounters, TxPacket};

/// Replaces the locks: which slots have a living holder.
#[derive(Default)]
pub(super) struct Alive(RefCell<BTreeSet<u16>>);

impl Senders for Alive {
    fn is_alive(&self, slot: u16) -> bool {
        self.0.borrow().contains(&slot)
    }

    fn route_to(&self, nonce: u64) -> Option<Route> {
        (nonce == identity("known").nonce).then_some(Route(9))
    }
}

/// A receiver with the memory it shares with its senders.
pub(super) struct Queue {
    pub(super) region: Region,
    pub(super) receiver: Receiver,
    pub(super) alive: Alive,
    rx: TransportCounters,
    tx: TransportCounters,
    /// How often senders rang the receiver's bell.
    pub(super) rings: Arc<AtomicU32>,
}

impl Queue {
    pub(super) fn new(sizes: Sizes, first_ticket: u64) -> Self {
        let region = region(sizes, first_ticket);
        let receiver = Receiver::new(region.clone());
        Queue {
            region,
            receiver,
            alive: Alive::default(),
            rx: Default::default(),
            tx: Default::default(),
            rings: Arc::default(),
        }
    }

    pub(super) fn sender(&self, slot: u16, name: &str) -> Sender {
        self.alive.0.borrow_mut().insert(slot);
        Sender::new(
            self.region.clone(),
            BulkBacking::private(),
            Bell::Counted(self.rings.clone()),
            slot,
            &identity(name),
        )
    }

    fn kill(&self, slot: u16) {
        self.alive.0.borrow_mut().remove(&slot);
    }

    fn send(&mut self, sender: &mut Sender, packets: &[&[u8]]) {
        let packets: Vec<_> = packets.iter().map(|p| TxPacket { route: Route(0), header: p, payload: &[] }).collect();
        sender.send(&packets, &mut self.tx);
    }

    pub(super) fn poll(&mut self) -> Vec<Vec<u8>> {
        let count = self.receiver.rx_burst(&self.alive, &mut self.rx);
        (0..count)
            .map(|i| {
                let packet = self.receiver.burst().packet(self.receiver.region(), i);
                let mut bytes = vec![0; packet.len()];
                packet.copy_to(0, &mut bytes);
                bytes
            })
            .collect()
    }

    /// Polls like an endpoint that sleeps when the queue is empty: with a last look before each sleep and a poll after
    /// it, which goes past holes.
    pub(super) fn poll_past_holes(&mut self) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        loop {
            let outlook = self.receiver.outlook(&self.alive);
            got.extend(self.poll());
            if outlook != Outlook::Arrivals {
                return got;
            }
        }
    }
}

/// What a sender had done when it died.
#[derive(Debug, Clone, Copy)]
enum DiesAfter {
    Intent,
    Reservation,
    HalfOfTheCells,
    AllCells,
    ClaimingABuffer,
}

/// Performs the first steps of a burst of four packets. Returns how many of them are published and how many places are
/// lost.
fn send_and_die(queue: &mut Queue, sender: &mut Sender, at: DiesAfter) -> (usize, u64) {
    let publish = |sender: &mut Sender, reserved: Reserved, count: usize| {
        for ticket in reserved.tickets().take(count) {
            queue.region.cell(ticket).write_packet(b"last", b" words");
            sender.publish(ticket, 10, NO_BULK);
        }
        (count, (reserved.places() - count) as u64)
    };
    match at {
        DiesAfter::Intent => {
            let tail = queue.region.tail().load(std::sync::atomic::Ordering::SeqCst);
            sender.set_intent(Intent::wanted(tail, 4));
            (0, 0)
        }
        DiesAfter::Reservation => (0, sender.reserve(4).unwrap().places() as u64),
        DiesAfter::HalfOfTheCells => {
            let reserved = sender.reserve(4).unwrap();
            publish(sender, reserved, reserved.places() / 2)
        }
        DiesAfter::AllCells => {
            let reserved = sender.reserve(4).unwrap();
            publish(sender, reserved, reserved.places())
        }
        DiesAfter::ClaimingABuffer => {
            sender.claim().unwrap();
            (0, 0)
        }
    }
}

const STEPS: [DiesAfter; 5] = [
    DiesAfter::Intent,
    DiesAfter::Reservation,
    DiesAfter::HalfOfTheCells,
    DiesAfter::AllCells,
    DiesAfter::ClaimingABuffer,
];

#[test]
fn a_death_at_any_step_loses_only_the_dead_senders_packets() {
    for first_ticket in [0, u32::MAX as u64 - 40, u64::MAX - 40] {
        let mut queue = Queue::new(SIZES, first_ticket);
        let mut survivor = queue.sender(0, "survivor");
        let mut lost = 0;
        for (round, step) in STEPS.into_iter().cycle().take(if cfg!(miri) { 15 } else { 60 }).enumerate() {
            let mut victim = queue.sender(1, "victim");
            queue.send(&mut survivor, &[b"before", &[round as u8; 200]]);
            let (published, lost_now) = send_and_die(&mut queue, &mut victim, step);
            queue.kill(1);
            queue.send(&mut survivor, &[b"after"]);
            lost += lost_now;
            let got = queue.poll_past_holes();
            let from_survivor: Vec<_> = got.iter().filter(|p| !p.starts_with(b"last")).cloned().collect();
            assert_eq!(from_survivor, [b"before".to_vec(), vec![round as u8; 200], b"after".to_vec()], "{step:?}");
            assert_eq!(got.len() - from_survivor.len(), published, "{step:?}");
            assert_eq!(queue.rx.rx_reclaimed, lost);
        }
        assert_eq!((queue.rx.rx_dropped_malformed, queue.tx.tx_dropped_full), (0, 0));
    }
}

#[test]
fn a_living_sender_is_waited_for_while_others_are_heard() {
    let mut queue = Queue::new(SIZES, 0);
    let (mut slow, mut quick) = (queue.sender(0, "slow"), queue.sender(1, "quick"));
    let reserved = slow.reserve(2).unwrap();
    for round in 0..20u8 {
        queue.send(&mut quick, &[&[round; 48]]);
        assert_eq!(queue.poll_past_holes(), [[round; 48]]);
        assert_eq!(queue.receiver.outlook(&queue.alive), Outlook::Holes);
    }
    for i in 0..2 {
        queue.region.cell(reserved.first + i).write_packet(b"late", b"");
        slow.publish(reserved.first + i, 4, NO_BULK);
    }
    slow.set_intent(Intent::NONE);
    assert_eq!(queue.poll_past_holes(), [b"late", b"late"]);
    assert_eq!((queue.rx.rx_reclaimed, queue.rx.rx_packets), (0, 22));
    assert_eq!(queue.receiver.set_aside(), (2, 2));
    assert_eq!(queue.receiver.outlook(&queue.alive), Outlook::Empty);
}

/// A queue of 4,096, and stopped senders that hold as many places as they can: packets of other senders arrive at once,
/// in order and without loss, while the ring goes round a hundred times.
#[test]
fn stopped_senders_cost_others_neither_packets_nor_time() {
    let (queue_len, laps) = if cfg!(miri) { (64, 4) } else { (4096, 100) };
    for stopped in [1, 3] {
        let mut queue = Queue::new(Sizes { queue_len, ..SIZES }, u64::MAX - 3 * queue_len as u64);
        let mut quick = queue.sender(3, "quick");
        let held = if cfg!(miri) { 8 } else { 64 };
        let mut slow: Vec<(Sender, Reserved)> = Vec::new();
        for slot in 0..stopped {
            let mut sender = queue.sender(slot, "slow");
            let reserved = sender.reserve(held).unwrap();
            slow.push((sender, reserved));
            queue.send(&mut quick, &[b"between"]);
        }
        let mut polls = 0;
        let mut between = Vec::new();
        while between.len() < stopped as usize {
            between.extend(queue.poll());
            polls += 1;
            assert!(polls <= 600 * stopped as u32, "the packet behind a hole is late");
        }
        assert_eq!(between, vec![b"between"; stopped as usize]);
        let burst = 16;
        for round in 0..laps * queue_len / burst {
            let packets: Vec<[u8; 8]> = (0..burst).map(|i| ((round * burst + i) as u64).to_le_bytes()).collect();
            queue.send(&mut quick, &packets.iter().map(|p| &p[..]).collect::<Vec<_>>());
            assert_eq!(queue.poll(), packets, "at the first poll, in round {round}");
        }
        assert_eq!((queue.tx.tx_dropped_full, queue.rx.rx_reclaimed), (0, 0));
        for (sender, reserved) in &mut slow {
            for ticket in reserved.tickets() {
                queue.region.cell(ticket).write_packet(b"late", b"");
                sender.publish(ticket, 4, NO_BULK);
            }
            sender.set_intent(Intent::NONE);
        }
        let late = queue.poll_past_holes();
        assert_eq!(late, vec![b"late"; held * stopped as usize], "what was stopped is late, and not lost");
        // Once the ring has gone round, all of it is in use again.
        for _ in 0..2 * queue_len {
            queue.send(&mut quick, &[b"round"]);
            assert_eq!(queue.poll().len(), 1);
        }
        assert_eq!(queue.region.shut_count().load(std::sync::atomic::Ordering::SeqCst), 0);
        queue.send(&mut quick, &vec![&b"full"[..]; queue_len as usize]);
        assert_eq!((queue.poll_past_holes().len(), queue.tx.tx_dropped_full), (queue_len as usize, 0));
    }
}

/// The places that a stopped sender holds are its own credits: all others have the places they count on, on every lap.
#[test]
fn all_places_but_those_of_stopped_senders_hold_packets() {
    let mut queue = Queue::new(SIZES, 0);
    let (mut slow, mut quick) = (queue.sender(0, "slow"), queue.sender(1, "quick"));
    slow.reserve(5).unwrap();
    for lap in 0..20u64 {
        let bytes = lap.to_le_bytes();
        queue.send(&mut quick, &[&bytes[..]; 59]);
        assert_eq!(queue.tx.tx_dropped_full, lap);
        queue.send(&mut quick, &[b"too many"]);
        assert_eq!(queue.tx.tx_dropped_full, lap + 1);
        assert_eq!(queue.poll_past_holes(), [bytes; 59]);
    }
    queue.kill(0);
    assert!(queue.poll_past_holes().is_empty());
    assert_eq!(queue.rx.rx_reclaimed, 5);
    for _ in 0..3 {
        queue.send(&mut quick, &[&b"y"[..]; 59]);
        assert_eq!(queue.poll_past_holes(), [b"y"; 59]);
    }
    queue.send(&mut quick, &[&b"z"[..]; 64]);
    assert_eq!((queue.poll_past_holes().len(), queue.tx.tx_dropped_full), (64, 20));
}

#[test]
fn long_packets_leave_out_shut_cells_too() {
    let mut queue = Queue::new(SIZES, 0);
    let (mut slow, mut quick) = (queue.sender(0, "slow"), queue.sender(1, "quick"));
    slow.reserve(3).unwrap();
    for round in 0..200u8 {
        queue.send(&mut quick, &[&[round; 500], &[round; 500], &[round], &[round; 113]]);
        assert_eq!(queue.poll_past_holes(), [vec![round; 500], vec![round; 500], vec![round], vec![round; 113]]);
    }
    assert_eq!((queue.tx.tx_dropped_full, queue.rx.rx_dropped_malformed), (0, 0));
}

/// Buffers of dead senders are freed although another sender has stopped with places taken.
#[test]
fn a_stopped_sender_keeps_no_buffers_of_the_dead() {
    let mut queue = Queue::new(SIZES, 0);
    let (mut slow, mut victim, mut survivor) =
        (queue.sender(0, "slow"), queue.sender(1, "victim"), queue.sender(2, "survivor"));
    slow.reserve(2).unwrap();
    while victim.claim().is_ok() {}
    queue.kill(1);
    queue.send(&mut survivor, &[&[1; 500]]);
    assert!(queue.poll_past_holes().is_empty());
    queue.send(&mut survivor, &[&[2; 500]]);
    assert_eq!(queue.poll_past_holes(), [[2; 500]]);
}

#[test]
fn a_hole_is_noticed_by_polling_alone() {
    let mut queue = Queue::new(SIZES, 0);
    let (mut victim, mut survivor) = (queue.sender(0, "victim"), queue.sender(1, "survivor"));
    victim.reserve(3).unwrap();
    queue.kill(0);
    queue.send(&mut survivor, &[b"x"]);
    let got = (0..600).map(|_| queue.poll()).find(|got| !got.is_empty());
    assert_eq!(got, Some(vec![b"x".to_vec()]));
    (0..5000).for_each(|_| assert!(queue.poll().is_empty()));
    assert_eq!(queue.rx.rx_reclaimed, 3);
    assert_eq!(queue.receiver.set_aside(), (3, 0));
}

/// An endpoint that is busy with another transport polls this one once per turn of its event loop, which may take a
/// millisecond.
#[test]
fn a_packet_behind_a_hole_comes_within_few_polls() {
    for places in [1, 3, 16, 17, 64] {
        let mut queue = Queue::new(Sizes { queue_len: 128, ..SIZES }, u64::MAX - 7);
        let (mut slow, mut other) = (queue.sender(0, "slow"), queue.sender(1, "other"));
        slow.reserve(places).unwrap();
        queue.send(&mut other, &[b"other"]);
        let got = (0..40).map(|_| queue.poll()).find(|got| !got.is_empty());
        assert_eq!(got, Some(vec![b"other".to_vec()]), "behind {places} places");
    }
}

/// The sender stops as if interrupted. If its place were set aside, the receiver would have to look more closely at
/// each packet until the ring has gone round.
#[test]
fn an_interrupted_sender_is_awaited_while_nobody_else_waits() {
    let mut queue = Queue::new(SIZES, 0);
    let (mut slow, mut other) = (queue.sender(0, "slow"), queue.sender(1, "other"));
    for others in [0, 1] {
        let reserved = slow.reserve(1).unwrap();
        (0..2000).for_each(|_| assert!(queue.poll().is_empty()));
        assert_eq!(queue.receiver.set_aside(), (0, 0));
        let packets = vec![&b"other"[..]; others];
        queue.send(&mut other, &packets);
        let behind: Vec<_> = (0..1000).flat_map(|_| queue.poll()).take(others).collect();
        assert_eq!(behind, packets, "another waits no longer");
        queue.region.cell(reserved.first).write_packet(b"late", b"");
        slow.publish(reserved.first, 4, NO_BULK);
        slow.set_intent(Intent::NONE);
        assert_eq!(queue.poll(), [b"late"]);
        assert_eq!(queue.receiver.set_aside(), (others as u64, others as u64));
    }
}

/// More places are taken and lost than the ring has, and no other sender sends anything: they come back all the same.
#[test]
fn a_queue_full_of_holes_empties() {
    for by_polling in [false, true] {
        let mut queue = Queue::new(SIZES, 0);
        for _ in 0..10 {
            let mut victim = queue.sender(0, "victim");
            assert_eq!(victim.reserve(64).map(|r| r.places()), Some(64));
            queue.kill(0);
            if by_polling {
                (0..5000).for_each(|_| assert!(queue.poll().is_empty()));
            } else {
                assert!(queue.poll_past_holes().is_empty());
            }
            // The next round goes past void tickets.
            let mut survivor = queue.sender(1, "survivor");
            while queue.region.shut_count().load(std::sync::atomic::Ordering::SeqCst) > 0 {
                queue.send(&mut survivor, &[b"x"]);
                queue.poll_past_holes();
            }
        }
        assert_eq!(queue.rx.rx_reclaimed, 640);
    }
}

#[test]
fn numbers_wrap_without_loss_or_doubt() {
    for first_ticket in [u32::MAX as u64 - 100, u64::MAX - 100] {
        let mut queue = Queue::new(SIZES, first_ticket);
        let mut sender = queue.sender(3, "known");
        for round in 0..100u8 {
            assert_eq!(queue.poll(), [[0u8; 0]; 0], "nothing was sent yet");
            queue.send(&mut sender, &[&[round], &[round; 113], &[round; 48]]);
            assert_eq!(queue.poll(), [vec![round], vec![round; 113], vec![round; 48]]);
            assert_eq!(queue.receiver.burst().packet(queue.receiver.region(), 2).route(), Some(Route(9)));
        }
    }
}

#[test]
fn buffers_of_the_dead_come_back_when_missed() {
    let mut queue = Queue::new(SIZES, 0);
    let (mut victim, mut survivor) = (queue.sender(0, "victim"), queue.sender(1, "survivor"));
    for _ in 0..16 {
        victim.claim().unwrap();
    }
    queue.send(&mut survivor, &[&[1; 500]]);
    assert_eq!(queue.tx.tx_dropped_full, 1, "the victim lives and has all of them");
    assert!(queue.poll_past_holes().is_empty());
    assert_eq!(survivor.claim(), Err(NoBuffer::AllTaken));
    queue.kill(0);
    assert!(queue.poll_past_holes().is_empty());
    queue.send(&mut survivor, &[&[2; 500]]);
    assert_eq!(queue.poll_past_holes(), [[2; 500]]);
}

#[test]
fn buffers_of_a_slots_last_holder_come_back_though_the_next_one_lives() {
    let mut queue = Queue::new(SIZES, 0);
    let mut victim = queue.sender(0, "victim");
    while victim.claim().is_ok() {}
    let mut heir = queue.sender(0, "heir");
    assert_eq!(heir.claim(), Err(NoBuffer::AllTaken));
    assert!(queue.poll_past_holes().is_empty());
    queue.send(&mut heir, &[&[2; 500]]);
    assert_eq!(queue.poll_past_holes(), [[2; 500]]);
}

#[test]
fn cells_that_make_no_sense_are_dropped_and_counted() {
    let mut queue = Queue::new(SIZES, 0);
    let mut sender = queue.sender(0, "hostile");
    let reserved = sender.reserve(5).unwrap();
    let ticket = |i: u64| reserved.first + i;
    sender.publish(ticket(0), 5000, 0);
    sender.publish(ticket(1), 500, NO_BULK);
    sender.publish(ticket(2), 500, 3);
    let not_mine = bulk::claim(&queue.region, bulk::tag(1, 1)).unwrap();
    sender.publish(ticket(3), 500, not_mine);
    sender.publish(ticket(4), 3, 12345);
    sender.set_intent(Intent::NONE);
    assert_eq!(queue.poll(), [[0; 3]], "a short packet needs no buffer, whatever it says");
    assert_eq!(queue.rx.rx_dropped_malformed, 4);
}

/// A small generator of random numbers, so that a failing seed can be run again.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

/// Random senders that act step by step, stop and die anywhere and are replaced, against a receiver that polls
/// occasionally.
#[test]
fn whatever_the_order_every_published_packet_comes_exactly_once_and_in_its_senders_order() {
    let mut beside_holes = 0;
    for seed in 0..if cfg!(miri) { 3 } else { 300 } {
        let mut random = Random(seed);
        let mut queue = Queue::new(SIZES, random.below(2) * (u32::MAX as u64 - 200));
        let mut senders: Vec<(Sender, Option<(Reserved, usize)>)> =
            (0..4).map(|slot| (queue.sender(slot, "s"), None)).collect();
        let mut next = 0u64;
        let mut published = BTreeMap::new();
        let mut lost = 0;
        let mut last_of = [None; 4];
        let mut receive = |queue: &mut Queue, published: &mut BTreeMap<u64, bool>, past_holes: bool| {
            for packet in if past_holes { queue.poll_past_holes() } else { queue.poll() } {
                let (number, slot) = (u64::from_le_bytes(packet[..8].try_into().unwrap()), packet[8] as usize);
                assert!(packet[9..].iter().all(|b| *b == number as u8), "seed {seed}");
                assert_eq!(published.insert(number, true), Some(false), "seed {seed}: forged or twice");
                assert!(last_of[slot] < Some(number), "seed {seed}: out of order");
                last_of[slot] = Some(number);
            }
            beside_holes += u64::from(queue.region.shut_count().load(std::sync::atomic::Ordering::SeqCst) > 0);
        };
        // One of them makes hardly any progress.
        let stopped = random.below(5);
        for _ in 0..if cfg!(miri) { 300 } else { 3000 } {
            let slot = random.below(4) as u16;
            if slot as u64 == stopped && random.below(100) > 0 {
                continue;
            }
            let (sender, doing) = &mut senders[slot as usize];
            match (random.below(20), *doing) {
                (0, _) => {
                    if let Some((reserved, done)) = doing.take() {
                        lost += (reserved.places() - done) as u64;
                    }
                    queue.kill(slot);
                    if random.below(2) == 0 {
                        receive(&mut queue, &mut published, true);
                    }
                    senders[slot as usize].0 = queue.sender(slot, ["s", "known", "other"][random.below(3) as usize]);
                }
                (1..4, _) => receive(&mut queue, &mut published, random.below(2) == 0),
                (_, None) => *doing = sender.reserve(1 + random.below(8) as usize).map(|reserved| (reserved, 0)),
                (_, Some((reserved, done))) if done < reserved.places() => {
                    let ticket = reserved.tickets().nth(done).unwrap();
                    let len = 9 + random.below(100) as usize;
                    let header = [&next.to_le_bytes()[..], &[slot as u8]].concat();
                    queue.region.cell(ticket).write_packet(&header, &vec![next as u8; len - 9]);
                    sender.publish(ticket, len, NO_BULK);
                    published.insert(next, false);
                    next += 1;
                    *doing = Some((reserved, done + 1));
                }
                (_, Some(_)) => {
                    sender.set_intent(Intent::NONE);
                    *doing = None;
                }
            }
        }
        for (slot, (_, doing)) in senders.iter().enumerate() {
            lost += doing.map_or(0, |(reserved, done)| (reserved.places() - done) as u64);
            queue.kill(slot as u16);
        }
        receive(&mut queue, &mut published, true);
        assert!(published.values().all(|received| *received), "seed {seed}: lost");
        assert_eq!((queue.rx.rx_reclaimed, queue.rx.rx_dropped_malformed), (lost, 0), "seed {seed}");
    }
    assert!(cfg!(miri) || beside_holes > 1000, "cells were hardly ever shut: {beside_holes}");
}

/// Another process shuts every cell and makes the queue look empty for ever.
#[test]
fn a_region_that_shuts_all_cells_keeps_no_sender() {
    const STORES: u32 = if cfg!(miri) { 10 } else { 3_000_000 };
    let queue = Queue::new(Sizes { queue_len: 4096, ..SIZES }, 0);
    let region = queue.region.clone();
    for word in 0..64 {
        region.shut_word(word * 64).store(u64::MAX, Ordering::Relaxed);
    }
    region.shut_count().store(4096, Ordering::Relaxed);
    let mut sender = queue.sender(0, "a");
    let (stores, stop) = (AtomicU32::new(0), AtomicBool::new(false));
    let (mut counters, mut sent, mut most_taken) = (TransportCounters::default(), 0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                stores.fetch_add(1, Ordering::Relaxed);
                region.head().store(region.tail().load(Ordering::Relaxed), Ordering::Relaxed);
            }
        });
        for (len, count) in [(10, 512), (300, 16)] {
            let packets = vec![TxPacket { route: Route(0), header: &[7; 300][..len], payload: &[] }; count];
            let begin = stores.load(Ordering::Relaxed);
            while stores.load(Ordering::Relaxed) - begin < STORES {
                let before = region.tail().load(Ordering::Relaxed);
                sender.send(&packets, &mut counters);
                sent += count as u64;
                most_taken = most_taken.max(region.tail().load(Ordering::Relaxed).wrapping_sub(before));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!((counters.tx_dropped_full, counters.tx_packets), (sent, 0));
    // As many as the queue is long, and the first places of each group.
    assert!(most_taken <= 4096 + 512 + 64, "{most_taken} tickets for one burst");
}
