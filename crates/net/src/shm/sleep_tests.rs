//! A receiver that sleeps by descriptor, on private memory and step by step: whatever the order of its steps and its
//! senders', and wherever a sender stops or is killed, it is not left asleep with packets in its queue.
//!
//! Runs under Miri like `queue_tests.rs`.

use std::sync::atomic::Ordering;

use crate::shm::cell::NO_BULK;
use crate::shm::futex::{self, AWAKE, Rung};
use crate::shm::intent::Intent;
use crate::shm::queue_tests::{Queue, Random};
use crate::shm::receiver::Outlook;
use crate::shm::region::testing::SIZES;
use crate::shm::sender::Sender;

const SENDERS: u16 = 3;

/// What a sender does next: the steps of one burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sending {
    Publish,
    LookAtWord,
    Ring { seen: u32 },
    SetAwake { seen: u32 },
}

/// What the receiver does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Receiving {
    /// It polls, or announces that it sleeps.
    Awake,
    /// It has announced that it sleeps, and looks once more.
    LastLook,
    Asleep,
    /// It has announced that it is awake, and drains its bell.
    Silence,
}

struct World {
    queue: Queue,
    senders: Vec<(Sender, Sending)>,
    receiving: Receiving,
    sleeps: u32,
    sent: u64,
    received: u64,
    /// Sleeps that a bell ended.
    woken: u64,
}

impl World {
    fn new() -> Self {
        let queue = Queue::new(SIZES, 0);
        let senders = (0..SENDERS).map(|slot| (queue.sender(slot, "s"), Sending::Publish)).collect();
        // Numbers of sleeps wrap around, too.
        World { queue, senders, receiving: Receiving::Awake, sleeps: u32::MAX - 20, sent: 0, received: 0, woken: 0 }
    }

    fn step_of_sender(&mut self, which: u16) {
        let (sender, doing) = &mut self.senders[which as usize];
        let word = self.queue.region.wait_word();
        *doing = match *doing {
            Sending::Publish => {
                let Some(reserved) = sender.reserve(1) else { return };
                for ticket in reserved.tickets() {
                    self.queue.region.cell(ticket).write_packet(&self.sent.to_le_bytes(), b"");
                    sender.publish(ticket, 8, NO_BULK);
                    self.sent += 1;
                }
                sender.set_intent(Intent::NONE);
                Sending::LookAtWord
            }
            Sending::LookAtWord => match word.load(Ordering::SeqCst) {
                AWAKE => Sending::Publish,
                seen => Sending::Ring { seen },
            },
            Sending::Ring { seen } => {
                self.queue.rings.fetch_add(1, Ordering::SeqCst);
                Sending::SetAwake { seen }
            }
            Sending::SetAwake { seen } => {
                futex::set_awake(word, seen);
                Sending::Publish
            }
        }
    }

    fn step_of_receiver(&mut self, random: &mut Random) {
        self.receiving = match self.receiving {
            Receiving::Awake if random.below(3) == 0 => {
                self.sleeps = self.sleeps.wrapping_add(1);
                self.queue.region.wait_word().store(futex::by_descriptor(self.sleeps), Ordering::SeqCst);
                Receiving::LastLook
            }
            Receiving::Awake => {
                self.received += self.queue.poll().len() as u64;
                Receiving::Awake
            }
            Receiving::LastLook => match self.queue.receiver.outlook(&self.queue.alive) {
                Outlook::Arrivals => {
                    self.queue.region.wait_word().store(AWAKE, Ordering::SeqCst);
                    Receiving::Awake
                }
                Outlook::Holes | Outlook::Empty => Receiving::Asleep,
            },
            Receiving::Asleep if self.queue.rings.load(Ordering::SeqCst) > 0 => {
                self.queue.region.wait_word().store(AWAKE, Ordering::SeqCst);
                self.woken += 1;
                Receiving::Silence
            }
            Receiving::Asleep => Receiving::Asleep,
            Receiving::Silence => {
                self.queue.rings.store(0, Ordering::SeqCst);
                Receiving::Awake
            }
        };
    }

    fn finish(&mut self, which: u16) {
        while self.senders[which as usize].1 != Sending::Publish {
            self.step_of_sender(which);
        }
    }

    /// Whether only a timeout would end the receiver's sleep.
    fn is_fast_asleep(&self) -> bool {
        self.receiving == Receiving::Asleep && self.queue.rings.load(Ordering::SeqCst) == 0
    }
}

/// Random orders, with senders that are occasionally killed at any step. A packet that a killed sender published may
/// wait for the next packet, which wakes the receiver in any case; without a death nothing waits.
#[test]
fn no_order_of_steps_leaves_the_receiver_asleep_with_packets() {
    let mut woken = 0;
    for seed in 0..if cfg!(miri) { 5 } else { 2000 } {
        let mut random = Random(seed);
        let mut world = World::new();
        let mut killed = false;
        for _ in 0..if cfg!(miri) { 200 } else { 600 } {
            match random.below(60) {
                0 => {
                    // The next sender takes its place.
                    let slot = random.below(SENDERS as u64) as u16;
                    killed |= world.senders[slot as usize].1 != Sending::Publish;
                    world.senders[slot as usize] = (world.queue.sender(slot, "heir"), Sending::Publish);
                }
                1 => {
                    (0..SENDERS).for_each(|slot| world.finish(slot));
                    let waits = world.sent > world.received;
                    assert!(killed || !waits || !world.is_fast_asleep(), "seed {seed}: a wake-up was lost");
                    world.step_of_sender(0);
                    world.finish(0);
                    assert!(!world.is_fast_asleep(), "seed {seed}: a death keeps others from waking the receiver");
                    killed = false;
                }
                2..20 => world.step_of_receiver(&mut random),
                n => world.step_of_sender(n as u16 % SENDERS),
            }
        }
        woken += world.woken;
        (0..SENDERS).for_each(|slot| world.finish(slot));
        world.received += world.queue.poll_past_holes().len() as u64;
        assert_eq!(world.received, world.sent, "seed {seed}");
    }
    assert!(cfg!(miri) || woken > 1000, "the receiver hardly ever slept: {woken}");
}

#[test]
fn a_bell_is_rung_before_the_word_says_awake_and_late_wakers_end_no_later_sleep() {
    let queue = Queue::new(SIZES, 0);
    let word = queue.region.wait_word();
    let (first, second) = (futex::by_descriptor(7), futex::by_descriptor(8));
    word.store(first, Ordering::SeqCst);
    let mut rung = 0;
    futex::wake(word, first, || {
        rung += 1;
        assert_eq!(word.load(Ordering::SeqCst), first);
        // The receiver wakes up and sleeps again before this sender goes on.
        word.store(second, Ordering::SeqCst);
        Rung::Yes
    });
    assert_eq!((rung, word.load(Ordering::SeqCst)), (1, second));
    futex::wake(word, second, || Rung::No);
    assert_eq!(word.load(Ordering::SeqCst), second, "who cannot ring leaves it to the next");
    let mut ring = || {
        rung += 1;
        Rung::Yes
    };
    futex::wake(word, second, &mut ring);
    assert_eq!(word.load(Ordering::SeqCst), AWAKE);
    // Nobody sleeps, or another process wrote a random value.
    for nonsense in [AWAKE, 3, u32::MAX, 4] {
        word.store(nonsense, Ordering::SeqCst);
        futex::wake(word, nonsense, &mut ring);
    }
    assert_eq!(rung, 2);
}

/// The same on the wait word: the first waker may stop between its steps, and others wake the receiver all the same.
#[test]
fn a_waker_that_stops_keeps_no_other_from_waking() {
    let queue = Queue::new(SIZES, 0);
    let word = queue.region.wait_word();
    let no_bell = || -> Rung { panic!("it sleeps on the word") };
    let (first, second) = (futex::on_word(u32::MAX), futex::on_word(0));
    word.store(first, Ordering::SeqCst);
    let stopped = futex::begin_waking(word, first).unwrap();
    assert_ne!(word.load(Ordering::SeqCst), first, "who is about to sleep must not");
    assert_ne!(word.load(Ordering::SeqCst), AWAKE, "others would not wake it");
    assert_eq!(futex::begin_waking(word, stopped), Some(stopped), "they see that it is not done");
    assert_eq!(futex::begin_waking(word, first), Some(stopped), "so do those that looked before");
    futex::wake(word, stopped, no_bell);
    assert_eq!(word.load(Ordering::SeqCst), AWAKE);
    assert_eq!(futex::begin_waking(word, first), None);
    word.store(second, Ordering::SeqCst);
    assert!(!futex::set_awake(word, stopped), "who goes on so late ends no later sleep");
    assert_eq!(futex::begin_waking(word, stopped), None);
    futex::wake(word, second, no_bell);
    assert_eq!(word.load(Ordering::SeqCst), AWAKE);
}
