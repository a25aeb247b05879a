//! Loans of credits: the paper's "statistical multiplexing" of a receive queue among more sessions than it has room for (section 4.3.1).
//!
//! Each direction of a session keeps one credit for good, so that it always gets on. The others are lent by the end that receives the
//! requests (the *lender*) to the one that sends them (the *borrower*), in numbered steps, one at a time, which the borrower begins:
//!
//! - it *asks*, when calls wait for credits: it says what it holds and what it would like, and is told what it may hold from then on;
//! - it *gives back*, when it is asked to or needs the places itself: it says what it still holds, and is told the same.
//!
//! A lender counts a credit as lent from before it says so until the borrower said, in a newer step, that it no longer holds it, or the
//! session ended. So no loss, repetition or reordering makes two sessions use the same place. The packets of a step are counted too: a
//! question spends a credit and the answer brings it back; what gives credits back travels on one of those. Only a *recall*, the lender's
//! request to give back, travels on none; there are few of them, and [`super::places::Queue::lendable`] leaves them room.

use super::places::Direction;
use super::serve::ServeState;
use super::session::State;
use super::{Core, NONE};
use crate::mutation::{Mutation, is_planted};
use crate::observe::DropReason;
use crate::wire::Kind;
use crate::wire::control::{Credits, LoanRole};

/// Sessions looked at in one tick, at most, when places are wanted.
const LOOKS_PER_TICK: usize = 512;
/// Ticks that one look at all sessions takes at least, while only places for single credits move. A session that calls
/// less often counts as idle.
const TICKS_PER_ROUND: usize = 16;
/// Questions for credits in a row that brought none, and are repeated at the next tick all the same.
const REFUSALS_TAKEN: u8 = 8;
/// Those after them wait so long, twice as long each time, up to [`DOUBLINGS_MAX`] times.
const ASK_PAUSE_NANOS: u64 = 10_000_000;
const DOUBLINGS_MAX: u8 = 5;
/// Of which so many are asked to give back what they hold.
const RECALLS_PER_TICK: usize = 64;
/// A lender that does not want anything back.
const KEEP_ALL: u16 = u16::MAX;

/// What a borrower waits for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Step {
    #[default]
    None,
    /// For the answer to a question, which spent a credit.
    Asked,
    /// For the acknowledgement of what it gave back.
    GaveBack,
}

/// Loans of one session, in both directions.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Loan {
    step: Step,
    /// Whether it stands in [`Core::loans_pending`].
    is_pending: bool,
    /// Number of the borrower's last step, and what it said.
    number: u32,
    wanted: u16,
    /// What the lender wants it to come down to, plus one; 0 for no wish.
    keep: u16,
    sent_at: u64,
    /// Number of the other end's last step, and what is lent to it beyond its first credit.
    answered: u32,
    lent: u16,
    /// Packets that the session had received when a search for places came by last; the low bits say whether there are more.
    looked: u16,
    /// Requests of either direction that there had been then, by the sum of their sequence numbers.
    used: [u16; 2],
    /// Questions in a row that brought nothing.
    refusals: u8,
}

impl Loan {
    /// Loans of a session that begins with these credits of its own and of the other end.
    pub fn new(granted: u16) -> Loan {
        Loan { lent: granted.saturating_sub(1), ..Loan::default() }
    }

    /// How long this end waits before it asks again.
    fn pause(&self) -> u64 {
        self.refusals.checked_sub(REFUSALS_TAKEN).map_or(0, |doublings| ASK_PAUSE_NANOS << doublings)
    }

    /// Credits that the other end may use.
    pub fn granted(&self, agreed: u16) -> u16 {
        if agreed == 0 { 0 } else { self.lent + 1 }
    }
}

impl Core {
    /// Whether ticks are awaited by a loan.
    pub fn loans_are_moving(&self) -> bool {
        self.queue.is_short || !self.loans_pending.is_empty() || !self.openings_waiting.is_empty()
    }

    /// Spends a credit on asking for more, since calls wait.
    #[cold]
    pub fn borrow(&mut self, si: u32) {
        let session = &self.sessions[si as usize];
        let cold = &self.cold[si as usize];
        if session.stalled == 0 || session.credits == 0 || session.state != State::Connected || cold.loan.step != Step::None
        {
            return;
        }
        let held = session.credits_max - 1;
        let missing = cold.places.outbound_agreed - 1 - held;
        let more = missing.min(self.room_for_loan(held, cold.places.outbound));
        self.sessions[si as usize].may_borrow = false;
        if more < missing {
            self.want_places();
        }
        if more == 0 {
            return self.look_later(si);
        }
        self.sessions[si as usize].credits -= 1;
        self.begin_step(si, Step::Asked, held + more);
    }

    /// Gives back what this end holds beyond `keep` borrowed credits, as far as it is not in use. Says whether it did.
    fn give_back(&mut self, si: u32, keep: u16) -> bool {
        let session = &mut self.sessions[si as usize];
        let loan = &mut self.cold[si as usize].loan;
        let excess = session.credits_max.saturating_sub(1).saturating_sub(keep);
        if excess == 0 {
            loan.keep = 0;
            return false;
        }
        loan.keep = keep.saturating_add(1);
        let free = if loan.step == Step::None { excess.min(session.credits) } else { 0 };
        if free == 0 {
            self.look_later(si);
            return false;
        }
        if free == excess {
            loan.keep = 0;
        }
        session.credits -= if is_planted(Mutation::LoanKept) { 0 } else { free };
        session.credits_max -= free;
        session.may_borrow = false;
        let held = session.credits_max - 1;
        self.counters.credits_recalled += free as u64;
        self.begin_step(si, Step::GaveBack, held);
        true
    }

    fn begin_step(&mut self, si: u32, step: Step, wanted: u16) {
        if self.shares_credits() {
            // What is asked for has its places first; what is given back keeps them until that is known to the lender.
            self.change_places(si, |places| places.outbound = places.outbound.max(wanted + 1));
        }
        let loan = &mut self.cold[si as usize].loan;
        (loan.step, loan.wanted) = (step, wanted);
        loan.number = loan.number.wrapping_add(1);
        self.send_step(si);
    }

    fn send_step(&mut self, si: u32) {
        let now = self.now;
        let held = self.sessions[si as usize].credits_max - 1;
        let loan = &mut self.cold[si as usize].loan;
        loan.sent_at = now;
        let body = Credits { role: LoanRole::Borrower, number: loan.number, held, wanted: loan.wanted };
        self.send_control(si, Kind::Credits, &body);
        self.look_later(si);
    }

    fn look_later(&mut self, si: u32) {
        if !std::mem::replace(&mut self.cold[si as usize].loan.is_pending, true) {
            self.loans_pending.push(si);
        }
        self.arm_tick();
    }

    /// A message about a loan.
    pub fn on_credits(&mut self, si: u32, credits: &Credits) {
        let places = &self.cold[si as usize].places;
        match credits.role {
            LoanRole::Borrower if places.inbound_agreed > 0 => self.on_borrower(si, credits),
            LoanRole::Lender if places.outbound_agreed > 0 => self.on_lender(si, credits),
            _ => self.drop_on(si, DropReason::Control),
        }
    }

    /// The other end asks for credits, or gives some back.
    fn on_borrower(&mut self, si: u32, asks: &Credits) {
        let shares = self.shares_credits();
        let cold = &self.cold[si as usize];
        let ahead = asks.number.wrapping_sub(cold.loan.answered) as i32;
        if !(0..=1).contains(&ahead) {
            // The next step begins when the one before was answered.
            self.drop_on(si, DropReason::Stale);
            return;
        }
        if ahead == 1 {
            let held = asks.held.min(cold.loan.lent);
            let target = asks.wanted.min(cold.places.inbound_agreed - 1);
            if shares {
                self.change_places(si, |places| places.inbound = places.inbound.min(held + 1));
            }
            let placed = self.cold[si as usize].places.inbound;
            let room = self.room_for_loan(held, placed).min(self.share_left(si));
            let lent = target.min(held.saturating_add(room)).max(held);
            if lent < target {
                self.want_places();
            }
            if shares && lent > 0 && !is_planted(Mutation::LoanNotCounted) {
                self.change_places(si, |places| places.inbound = lent + 1);
            }
            let loan = &mut self.cold[si as usize].loan;
            (loan.lent, loan.answered) = (lent, asks.number);
        }
        self.send_loan(si, KEEP_ALL);
    }

    /// What the other end of a session may hold in addition, by the limits of a peer. Its sessions without a place have
    /// theirs first.
    fn share_left(&self, si: u32) -> u16 {
        let due = self.peers.share_of(self.sessions[si as usize].peer).places_due();
        self.places_left(due).min(u16::MAX as usize) as u16
    }

    /// What a direction that holds `held` borrowed credits, and has `placed` places, may have in addition.
    fn room_for_loan(&self, held: u16, placed: u16) -> u16 {
        if !self.shares_credits() {
            // Every session has its places.
            return u16::MAX;
        }
        let fair = self.queue.share().max(1).saturating_sub(held);
        // A borrower needs a place for its own credit, too.
        let own = usize::from(placed == 0);
        (self.queue.lendable().saturating_sub(own).min(u16::MAX as usize) as u16).min(fair)
    }

    /// Tells the other end what it may hold; with a `keep` below that, asks for the rest back.
    fn send_loan(&mut self, si: u32, keep: u16) {
        let loan = &self.cold[si as usize].loan;
        let body = Credits { role: LoanRole::Lender, number: loan.answered, held: loan.lent, wanted: keep };
        self.send_control(si, Kind::Credits, &body);
    }

    /// The lender answers, or wants something back.
    fn on_lender(&mut self, si: u32, lent: &Credits) {
        let session = &mut self.sessions[si as usize];
        let loan = &mut self.cold[si as usize].loan;
        if lent.number != loan.number {
            self.drop_on(si, DropReason::Stale);
            return;
        }
        let held = session.credits_max - 1;
        let step = std::mem::take(&mut loan.step);
        if step != Step::None {
            // A lender that says less than what is held, or more than was asked, is not believed.
            let may_hold = lent.held.clamp(held, loan.wanted.max(held));
            if step == Step::Asked {
                loan.refusals = if may_hold > held { 0 } else { (loan.refusals + 1).min(REFUSALS_TAKEN + DOUBLINGS_MAX) };
                session.credits += 1 + may_hold - held;
                session.credits_max = may_hold + 1;
                self.counters.credits_borrowed += (may_hold - held) as u64;
            }
            if self.shares_credits() {
                self.change_places(si, |places| places.outbound = may_hold + 1);
            }
            self.pump_stalled(si, 0);
        }
        if lent.wanted < self.sessions[si as usize].credits_max - 1 {
            self.give_back(si, lent.wanted);
        }
    }

    /// Takes the next step of every loan that waits for one, and looks for places if they are wanted.
    pub fn tick_loans(&mut self) {
        let mut pending = std::mem::take(&mut self.loans_pending);
        for si in pending.drain(..) {
            self.cold[si as usize].loan.is_pending = false;
            if self.sessions[si as usize].state == State::Connected {
                self.tick_loan(si);
            }
        }
        if self.loans_pending.is_empty() {
            self.loans_pending = pending;
        }
        let all = self.sessions.len();
        if std::mem::take(&mut self.queue.is_short) && self.shares_credits() {
            self.search_places(LOOKS_PER_TICK.min(all), Wanted::Loans);
        } else if self.queue.unplaced > 0 {
            self.search_places(all.div_ceil(TICKS_PER_ROUND).min(LOOKS_PER_TICK), Wanted::SinglePlaces);
        }
        // The event loop looks at them in its next iteration.
        self.openings.append(&mut self.openings_waiting);
    }

    fn tick_loan(&mut self, si: u32) {
        let (session, cold) = (&mut self.sessions[si as usize], &self.cold[si as usize]);
        let loan = cold.loan;
        match loan.step {
            Step::None if loan.keep > 0 => {
                let keep = loan.keep - 1;
                self.give_back(si, keep);
            }
            Step::None if self.now < loan.sent_at + loan.pause() => self.look_later(si),
            Step::None => session.may_borrow = session.credits_max < cold.places.outbound_agreed,
            // Lost, on the way there or back.
            _ if self.now.saturating_sub(loan.sent_at) >= self.rto(si, 0) => self.send_step(si),
            _ => self.look_later(si),
        }
    }

    /// Looks at the next sessions. While some have no place, those that are used get one, and those that are not give theirs up. If loans are
    /// wanted, it asks back what idle sessions hold, and from the others what they hold beyond their share.
    fn search_places(&mut self, looks: usize, wanted: Wanted) {
        let share = self.queue.share();
        let mut recalls = 0;
        for _ in 0..looks {
            if recalls == RECALLS_PER_TICK {
                return;
            }
            self.reclaim_next = (self.reclaim_next + 1) % self.sessions.len() as u32;
            let si = self.reclaim_next;
            match self.sessions[si as usize].state {
                State::Connected => {}
                State::Connecting if wanted == Wanted::Loans => {
                    self.lower_opening(si);
                    continue;
                }
                State::Connecting | State::Free | State::Closing | State::Ending => continue,
            }
            if self.queue.unplaced > 0 {
                self.move_places(si);
            }
            if wanted == Wanted::Loans {
                recalls += self.recall(si, share);
            }
        }
    }

    /// Moves the places of the single credits of a session, by whether it was used since the last look.
    fn move_places(&mut self, si: u32) {
        let session = &self.sessions[si as usize];
        let sum =
            |sequences: &mut dyn Iterator<Item = u32>| sequences.fold(0, |sum: u16, each| sum.wrapping_add(each as u16));
        let inbound = sum(&mut session.server.iter().map(|slot| slot.sequence));
        let outbound = sum(&mut session.client.iter().map(|slot| slot.sequence));
        let calls = session.client.iter().any(|slot| slot.call != NONE);
        let is_unanswered = |serve: u32| serve != NONE && self.serves[serve as usize].state != ServeState::Responded;
        let works = session.server.iter().any(|slot| is_unanswered(slot.serve));
        let loan = &mut self.cold[si as usize].loan;
        let before = std::mem::replace(&mut loan.used, [inbound, outbound]);
        let moves = loan.step != Step::None;
        let is_room_for_all = self.queue.holds_all(0);
        self.move_place(si, Direction::Inbound, is_room_for_all || works || before[0] != inbound);
        if !moves {
            self.move_place(si, Direction::Outbound, is_room_for_all || calls || before[1] != outbound);
        }
    }

    /// Asks back what a session holds if it is idle, and else what it holds beyond its share. Gives how often.
    fn recall(&mut self, si: u32, share: u16) -> usize {
        let session = &self.sessions[si as usize];
        let received = session.traffic.rx_packets as u16;
        let is_idle = session.client.iter().all(|slot| slot.call == NONE);
        let loan = &mut self.cold[si as usize].loan;
        let was_idle = std::mem::replace(&mut loan.looked, received) == received;
        let keep = if was_idle && is_idle { 0 } else { share };
        let mut recalls = 0;
        if loan.lent > keep {
            let excess = (loan.lent - keep) as u64;
            self.counters.credits_recalled += excess;
            self.send_loan(si, keep);
            recalls += 1;
        }
        if self.sessions[si as usize].credits_max > keep.saturating_add(1) && self.give_back(si, keep) {
            recalls += 1;
        }
        recalls
    }
}

/// What a search for places is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// More than single credits: what others borrowed is asked back.
    Loans,
    /// Places for single credits that have none.
    SinglePlaces,
}
