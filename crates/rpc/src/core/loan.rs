//! Loans of credits: the paper's "statistical multiplexing" of a receive queue among more sessions than it has room for
//! (section 4.3.1).
//!
//! Each direction of a session keeps one credit permanently, so that it always makes progress. The others are lent by
//! the end that receives the requests (the *lender*) to the one that sends them (the *borrower*), in numbered steps,
//! one at a time, which the borrower begins:
//!
//! - it *asks*, when calls wait for credits: it sends what it holds and what it wants, and the answer says what it may
//!   hold from then on;
//! - it *gives back*, when it is asked to or needs the places itself: it sends what it still holds, and the answer
//!   confirms that. Credits that it must give back but that are in use count as a debt: its free credits are then
//!   negative, so that returning credits are not spent.
//!
//! A lender counts a credit as lent from before it grants it until the borrower reported, in a newer step, that it no
//! longer holds it, or until the session ended. So no loss, repetition or reordering makes two sessions use the same
//! place. The packets of a step are counted too: a question spends a credit and the answer returns it; a step that
//! gives credits back travels on one of those credits. Only a *recall*, the lender's request to give back, travels
//! without a credit; there are few of them, and [`super::places::Queue::lendable`] leaves room for them.

use super::places::Direction;
use super::serve::{Serve, ServeState};
use super::session::State;
use super::timers::TICK_BUSY_NANOS;
use super::{Core, NONE};
use crate::mutation::{Mutation, is_planted};
use crate::observe::DropReason;
use crate::wire::Kind;
use crate::wire::control::{Credits, LoanRole};

/// Most sessions examined per tick when places are wanted.
const LOOKS_PER_TICK: usize = 512;
/// Least number of ticks for one pass over all sessions while only places for single credits move.
const TICKS_PER_ROUND: usize = 16;
/// A direction of a session counts as idle if no pass has found it in use for this long. It then gives up the place of
/// its single credit if others have none. This does not depend on how often there are passes: a session that calls
/// occasionally keeps its place.
const PLACE_IDLE_MILLIS: u32 = 80;
/// Unsuccessful questions for credits in a row that are repeated already at the next tick.
const REFUSALS_TAKEN: u8 = 8;
/// Those after them wait so long, twice as long each time, up to [`DOUBLINGS_MAX`] times.
const ASK_PAUSE_MILLIS: u32 = 10;
const DOUBLINGS_MAX: u8 = 5;
/// Most recalls per tick.
const RECALLS_PER_TICK: usize = 64;
const NANOS_PER_MILLI: u64 = 1_000_000;
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
    /// Number of the borrower's last step, and what it asked for.
    number: u32,
    wanted: u16,
    /// What the lender will know this end to hold beyond its first credit, once that step is answered.
    told: u16,
    /// When the last step was sent last, by [`millis`], and how often it was repeated.
    sent_at: u32,
    repetitions: u8,
    /// Number of the other end's last step, and what is lent to it beyond its first credit.
    answered: u32,
    lent: u16,
    /// When it was recalled last, by [`millis`], and how often since the other end's last step.
    recalled_at: u32,
    recalls: u8,
    /// Requests of either direction, inbound first, that there had been when a search for places came by last, by the
    /// sum of their sequence numbers.
    requests: [u16; 2],
    /// When a search last found that direction in use, or the session was opened: by [`millis`].
    used_at: [u32; 2],
    /// Questions in a row that brought no credits.
    refusals: u8,
}

impl Loan {
    /// Loans of a session opened at `now`, in which this end begins with `credits` and the peer with `granted`.
    pub fn new(credits: u16, granted: u16, now: u64) -> Loan {
        let [told, lent] = [credits, granted].map(|start| start.saturating_sub(1));
        Loan { told, lent, used_at: [millis(now); 2], ..Loan::default() }
    }

    /// How many milliseconds this end waits before it asks again.
    fn pause(&self) -> u32 {
        self.refusals.checked_sub(REFUSALS_TAKEN).map_or(0, |doublings| ASK_PAUSE_MILLIS << doublings)
    }

    /// Credits that the peer may use.
    pub fn granted(&self, agreed: u16) -> u16 {
        if agreed == 0 { 0 } else { self.lent + 1 }
    }
}

impl Core {
    /// Whether any loan needs ticks.
    pub fn loans_are_moving(&self) -> bool {
        self.queue.is_short || !self.loans_pending.is_empty()
    }

    /// Spends a credit to ask for more, since calls wait.
    #[cold]
    pub fn borrow(&mut self, si: u32) {
        let session = &self.sessions[si as usize];
        let cold = &self.cold[si as usize];
        if session.stalled == 0
            || session.credits <= 0
            || session.state != State::Connected
            || cold.loan.step != Step::None
        {
            return;
        }
        let held = cold.loan.told;
        debug_assert_eq!(held, session.credits_max - 1, "what is given back is told before more is asked for");
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

    /// Gives back what this end holds beyond `keep` borrowed credits; those in use as soon as they return. Returns
    /// whether it holds more.
    fn give_back(&mut self, si: u32, keep: u16) -> bool {
        let session = &mut self.sessions[si as usize];
        let excess = session.credits_max.saturating_sub(1).saturating_sub(keep);
        if excess == 0 || self.cold[si as usize].loan.step == Step::Asked {
            // The answer to the question says what this end may hold. If that is too much, the lender will say so
            // again.
            return false;
        }
        session.credits -= if is_planted(Mutation::LoanKept) { 0 } else { excess as i16 };
        session.credits_max -= excess;
        session.may_borrow = false;
        self.counters.credits_recalled += u64::from(excess);
        self.tell_given(si);
        true
    }

    /// Reports to the lender the returned part of what this end gives back, unless it waits for the answer to another
    /// step. What is still in use is reported later.
    fn tell_given(&mut self, si: u32) {
        let held = self.sessions[si as usize].borrowed();
        let loan = &mut self.cold[si as usize].loan;
        if loan.step != Step::None || held == loan.told {
            return self.look_later(si);
        }
        loan.told = held;
        self.begin_step(si, Step::GaveBack, held);
    }

    fn begin_step(&mut self, si: u32, step: Step, wanted: u16) {
        if self.shares_credits() {
            // Requested credits have their places first; credits that are given back keep theirs until the lender
            // knows.
            self.change_places(si, |places| places.outbound = places.outbound.max(wanted + 1));
        }
        let loan = &mut self.cold[si as usize].loan;
        (loan.step, loan.wanted, loan.repetitions) = (step, wanted, 0);
        loan.number = loan.number.wrapping_add(1);
        self.send_step(si);
    }

    fn send_step(&mut self, si: u32) {
        let loan = &mut self.cold[si as usize].loan;
        loan.sent_at = millis(self.now);
        let body = Credits { role: LoanRole::Borrower, number: loan.number, held: loan.told, wanted: loan.wanted };
        self.send_control(si, Kind::Credits, &body);
        self.look_later(si);
    }

    fn look_later(&mut self, si: u32) {
        if !std::mem::replace(&mut self.cold[si as usize].is_loan_pending, true) {
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

    /// The peer asks for credits, or gives some back.
    fn on_borrower(&mut self, si: u32, asks: &Credits) {
        let shares = self.shares_credits();
        let cold = &self.cold[si as usize];
        let ahead = asks.number.wrapping_sub(cold.loan.answered) as i32;
        if !(0..=1).contains(&ahead) {
            // The next step begins only after the previous one was answered.
            self.drop_on(si, DropReason::Stale);
            return;
        }
        if ahead == 1 {
            let held = asks.held.min(cold.loan.lent);
            self.counters.credits_recalled += u64::from(cold.loan.lent - held);
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
            (loan.lent, loan.answered, loan.recalls) = (lent, asks.number, 0);
        }
        self.send_loan(si, KEEP_ALL);
    }

    /// What the peer may hold in addition, by the limits of its host. The host's sessions without a place come first.
    fn share_left(&self, si: u32) -> u16 {
        let due = self.peers.share_of(self.sessions[si as usize].peer).places_due();
        self.places_left(due).min(u16::MAX as usize) as u16
    }

    /// What a direction that holds `held` borrowed credits and has `placed` places may have in addition.
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

    /// Tells the peer what it may hold; a `keep` below that asks for the rest back.
    fn send_loan(&mut self, si: u32, keep: u16) {
        let loan = &self.cold[si as usize].loan;
        let body = Credits { role: LoanRole::Lender, number: loan.answered, held: loan.lent, wanted: keep };
        self.send_control(si, Kind::Credits, &body);
    }

    /// The lender answers, or recalls credits.
    fn on_lender(&mut self, si: u32, lent: &Credits) {
        let session = &mut self.sessions[si as usize];
        let loan = &mut self.cold[si as usize].loan;
        if lent.number != loan.number {
            self.drop_on(si, DropReason::Stale);
            return;
        }
        let step = std::mem::take(&mut loan.step);
        if step != Step::None {
            if step == Step::Asked {
                // Clamp the answer of a lender that says less than what is held, or more than was asked for.
                let more = lent.held.clamp(loan.told, loan.wanted) - loan.told;
                loan.told += more;
                loan.refusals = if more > 0 { 0 } else { (loan.refusals + 1).min(REFUSALS_TAKEN + DOUBLINGS_MAX) };
                session.credits += 1 + more as i16;
                session.credits_max += more;
                self.counters.credits_borrowed += u64::from(more);
            }
            let held = loan.told + 1;
            if self.shares_credits() {
                self.change_places(si, |places| places.outbound = held);
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
            self.cold[si as usize].is_loan_pending = false;
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
    }

    fn tick_loan(&mut self, si: u32) {
        let (session, cold) = (&mut self.sessions[si as usize], &self.cold[si as usize]);
        let loan = cold.loan;
        match loan.step {
            Step::None if session.credits < 0 || session.borrowed() != loan.told => self.tell_given(si),
            Step::None if millis(self.now).wrapping_sub(loan.sent_at) < loan.pause() => self.look_later(si),
            Step::None => session.may_borrow = session.credits_max < cold.places.outbound_agreed,
            // Lost, on the way there or back.
            _ if self.is_overdue(si, loan.sent_at, self.waits_for(si, &loan)) => {
                self.cold[si as usize].loan.repetitions = loan.repetitions.saturating_add(1);
                self.send_step(si);
            }
            _ => self.look_later(si),
        }
    }

    /// As which repetition a step waits: as the first if the peer was heard since. It runs, so the step was lost.
    fn waits_for(&self, si: u32, loan: &Loan) -> u8 {
        let peer = self.peers.get(self.sessions[si as usize].peer);
        let is_later = |at: u64| millis(at).wrapping_sub(loan.sent_at) as i32 > 0;
        if peer.is_some_and(|peer| peer.was_heard(is_later)) { 0 } else { loan.repetitions }
    }

    /// Whether what was sent at `sent_at`, by [`millis`], as often again as `repetitions` says, is to be repeated. A
    /// stopped peer's queue keeps whatever is sent, and neither a step that is repeated nor a recall has a place there.
    fn is_overdue(&self, si: u32, sent_at: u32, repetitions: u8) -> bool {
        u64::from(millis(self.now).wrapping_sub(sent_at)) * NANOS_PER_MILLI >= self.rto(si, repetitions)
    }

    /// Looks at the next sessions. While some have no place, those that are used get one, and those that are idle give
    /// theirs up. If loans are wanted, it asks back what is lent to directions that were not used since the last look,
    /// and from the others what they hold beyond their share; what sessions that do not open hold for their start, it
    /// takes.
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
                    recalls += usize::from(self.withdraw_start(si));
                    continue;
                }
                _ => continue,
            }
            self.look_for_use(si);
            if self.queue.unplaced > 0 {
                self.move_places(si);
            }
            if wanted == Wanted::Loans {
                recalls += self.recall(si, share);
            }
        }
    }

    /// Notes which directions of a session are in use: those that had a request since the last pass, or have one in
    /// progress.
    fn look_for_use(&mut self, si: u32) {
        let (now, session) = (self.now, &self.sessions[si as usize]);
        let sum = |sequences: &mut dyn Iterator<Item = u32>| {
            sequences.fold(0, |sum: u16, each| sum.wrapping_add(each as u16))
        };
        let requests = [
            sum(&mut session.server.iter().map(|slot| slot.sequence)),
            sum(&mut session.client.iter().map(|slot| slot.sequence)),
        ];
        // A response may take long to transfer, with one packet for each request for it.
        let is_served =
            |serve: &Serve| serve.state != ServeState::Responded || now.saturating_sub(serve.heard) < TICK_BUSY_NANOS;
        let progress = [
            session.server.iter().any(|slot| slot.serve != NONE && is_served(&self.serves[slot.serve as usize])),
            session.client.iter().any(|slot| slot.call != NONE),
        ];
        let loan = &mut self.cold[si as usize].loan;
        for direction in 0..2 {
            if progress[direction] || requests[direction] != loan.requests[direction] {
                loan.used_at[direction] = millis(now);
            }
        }
        loan.requests = requests;
    }

    /// Moves the places of a session's single credits, depending on whether its directions are idle.
    fn move_places(&mut self, si: u32) {
        let loan = &self.cold[si as usize].loan;
        let (moves, used_at, now) = (loan.step != Step::None, loan.used_at, millis(self.now));
        let is_used = |direction: usize| now.wrapping_sub(used_at[direction]) < PLACE_IDLE_MILLIS;
        self.move_place(si, Direction::Inbound, is_used(0));
        if !moves {
            self.move_place(si, Direction::Outbound, is_used(1));
        }
    }

    /// Recalls what each direction of a session holds if it is not in use, otherwise what it holds beyond its share.
    /// Returns the number of recalls.
    fn recall(&mut self, si: u32, share: u16) -> usize {
        let now = millis(self.now);
        let loan = self.cold[si as usize].loan;
        let [lent_keep, borrowed_keep] = loan.used_at.map(|at| if at == now { share } else { 0 });
        let mut recalls = 0;
        let is_asked = loan.recalls > 0 && !self.is_overdue(si, loan.recalled_at, loan.recalls - 1);
        if loan.lent > lent_keep && !is_asked {
            let loan = &mut self.cold[si as usize].loan;
            (loan.recalled_at, loan.recalls) = (now, loan.recalls.saturating_add(1));
            self.send_loan(si, lent_keep);
            recalls += 1;
        }
        let is_excess = self.sessions[si as usize].credits_max > borrowed_keep.saturating_add(1);
        recalls + usize::from(is_excess && self.give_back(si, borrowed_keep))
    }
}

/// The time in milliseconds, in four bytes, which is enough for comparisons: it wraps around every 49 days.
fn millis(now: u64) -> u32 {
    (now / NANOS_PER_MILLI) as u32
}

/// The purpose of a search for places.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// More than single credits: recall what others borrowed.
    Loans,
    /// Places for single credits without one.
    SinglePlaces,
}
