//! Which packet sizes get through to a peer: path MTU discovery by probes (RFC 8899). Arithmetic only; [`super::path`]
//! sends the probes.
//!
//! A search sends probes of several sizes at once; each answer raises the size known to get through. Sizes that stay
//! unanswered after [`TRIES`] tries count as black-holed, and the sizes in between are searched next. A **check** tests
//! whether the size in use still gets through: if its probes stay unanswered, the path has become a black hole for it.
//!
//! A probe of [`BASE_MTU`] is sent with the others each time. If its last transmission is unanswered too, the peer or
//! the path was away. That says nothing about sizes, and the search starts over later.

use arrayvec::ArrayVec;

/// Every path is expected to carry packets of this many bytes.
pub(crate) const BASE_MTU: u16 = 1200;
/// Probes in flight at the same time.
const PROBES_MAX: usize = 5;
/// The same including the control probe.
const SENT_MAX: usize = PROBES_MAX + 1;
/// Times that a probe is sent before its size counts as black-holed.
const TRIES: u8 = 3;
/// Time between tries: enough for an answer, and for telling sizes apart of which two probes get lost in a burst.
const TRY_NANOS: u64 = 100_000_000;
/// Sizes that differ by less are not distinguished.
const GRAIN: u16 = 32;
/// Pause between two checks of the same path.
const CHECK_PAUSE_NANOS: u64 = 1_000_000_000;
/// A path that carries less than it might is searched again after this time (RFC 8899's PMTU_RAISE_TIMER).
const RAISE_NANOS: u64 = 600_000_000_000;
/// First pause before a search without any answer starts over; it doubles each time.
const RETRY_NANOS: u64 = 100_000_000;

/// A probe in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Probe {
    /// Bytes of the packet.
    pub size: u16,
    /// A token that the peer repeats.
    pub token: u64,
    tries: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Searching,
    Checking,
}

/// The result of an answer, or of waiting for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Outcome {
    Nothing,
    /// [`MtuSearch::mtu`] has changed.
    Changed,
}

/// What is known about the path to one peer.
#[derive(Debug)]
pub(crate) struct MtuSearch {
    mtu: u16,
    /// The largest packets that both ends accept.
    agreed: u16,
    phase: Phase,
    probes: ArrayVec<Probe, PROBES_MAX>,
    /// The probe of [`BASE_MTU`] that is sent with them, and whether it was answered since they were last sent.
    control: Option<Probe>,
    is_there: bool,
    /// How long to wait, once idle, before the next search.
    pause: u64,
    /// Whether probes are waiting to be sent.
    unsent: bool,
    /// When they were last sent, or the phase ended.
    since: u64,
    checked_at: Option<u64>,
    /// The last result of [`MtuSearch::joining_limit`].
    told: Option<u16>,
}

impl MtuSearch {
    /// For a path about which only one thing is known: both ends accept packets of `agreed` bytes.
    pub fn new(agreed: u16) -> MtuSearch {
        MtuSearch {
            mtu: agreed.min(BASE_MTU),
            agreed,
            phase: Phase::Idle,
            probes: ArrayVec::new(),
            control: None,
            is_there: false,
            pause: RAISE_NANOS,
            unsent: false,
            since: 0,
            checked_at: None,
            told: None,
        }
    }

    /// The largest packets known to get through.
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// How long datagrams may get by joining packets, if that has changed. While a path is being checked, no more than
    /// is certain: short packets that share a long datagram would be lost with it, including the probes of
    /// [`BASE_MTU`].
    pub fn joining_limit(&mut self) -> Option<u16> {
        let limit = if self.phase == Phase::Checking { self.mtu.min(BASE_MTU) } else { self.mtu };
        let is_news = self.told.replace(limit) != Some(limit);
        is_news.then_some(limit)
    }

    /// Searches from the known size up to the agreed one, unless a search or check is running.
    pub fn begin(&mut self, random: impl FnMut() -> u64) {
        if self.phase == Phase::Idle {
            self.search(u32::from(self.agreed) + 1, random);
        }
    }

    /// Searches sizes below `limit`.
    fn search(&mut self, limit: u32, mut random: impl FnMut() -> u64) {
        self.probes.clear();
        self.phase = Phase::Idle;
        let top = (limit - 1) as u16;
        // Always try the agreed size; sizes below a black-holed one only if the gain is worth it.
        let grain = if top == self.agreed { 1 } else { GRAIN };
        if limit <= u32::from(self.mtu) + u32::from(grain) {
            return;
        }
        let step = (top - self.mtu) / PROBES_MAX as u16;
        for number in 1..=PROBES_MAX as u16 {
            let size = if number == PROBES_MAX as u16 { top } else { self.mtu + step * number };
            if self.probes.last().map_or(self.mtu, |probe| probe.size) < size {
                self.probes.push(Probe { size, token: random(), tries: 0 });
            }
        }
        self.control = Some(Probe { size: BASE_MTU, token: random(), tries: 0 });
        (self.phase, self.unsent, self.is_there) = (Phase::Searching, true, false);
    }

    /// Full packets seem not to arrive: checks whether the path still carries them.
    pub fn check(&mut self, now: u64, mut random: impl FnMut() -> u64) {
        let is_recent = self.checked_at.is_some_and(|at| now < at + CHECK_PAUSE_NANOS);
        if self.mtu <= BASE_MTU || is_recent || self.phase == Phase::Checking {
            return;
        }
        self.probes.clear();
        self.probes.push(Probe { size: self.mtu, token: random(), tries: 0 });
        self.control = Some(Probe { size: BASE_MTU, token: random(), tries: 0 });
        self.checked_at = Some(now);
        (self.phase, self.unsent, self.is_there) = (Phase::Checking, true, false);
    }

    /// The probes to send now.
    pub fn due(&mut self, now: u64) -> ArrayVec<Probe, SENT_MAX> {
        let is_time = self.unsent || now.saturating_sub(self.since) >= TRY_NANOS;
        if self.probes.is_empty() || !is_time || self.probes.iter().all(|probe| probe.tries == TRIES) {
            return ArrayVec::new();
        }
        (self.unsent, self.since, self.is_there) = (false, now, false);
        self.probes.iter_mut().for_each(|probe| probe.tries += 1);
        self.probes.iter().copied().chain(self.control).collect()
    }

    /// The peer has answered a probe.
    pub fn on_answer(&mut self, token: u64, now: u64, random: impl FnMut() -> u64) -> Outcome {
        if self.control.is_some_and(|control| control.token == token) {
            (self.is_there, self.pause) = (true, RAISE_NANOS);
            return Outcome::Nothing;
        }
        let Some(at) = self.probes.iter().position(|probe| probe.token == token) else { return Outcome::Nothing };
        let size = self.probes.remove(at).size;
        match self.phase {
            Phase::Idle => Outcome::Nothing,
            Phase::Checking => {
                // All is well. A search that the check interrupted starts over.
                (self.phase, self.since) = (Phase::Idle, now);
                self.probes.clear();
                self.begin(random);
                Outcome::Nothing
            }
            Phase::Searching => {
                let outcome = if size > self.mtu { Outcome::Changed } else { Outcome::Nothing };
                self.mtu = self.mtu.max(size);
                let mtu = self.mtu;
                self.probes.retain(|probe| probe.size > mtu);
                if self.probes.is_empty() {
                    (self.phase, self.since) = (Phase::Idle, now);
                }
                outcome
            }
        }
    }

    /// Checks whether probes have stayed unanswered for so long that they count as black-holed, and whether it is time
    /// to search again.
    pub fn on_time(&mut self, now: u64, random: impl FnMut() -> u64) -> Outcome {
        let waited = now.saturating_sub(self.since);
        if self.phase == Phase::Idle {
            if self.mtu < self.agreed && waited >= self.pause {
                self.begin(random);
            }
            return Outcome::Nothing;
        }
        if self.unsent || waited < TRY_NANOS || self.probes.iter().any(|probe| probe.tries < TRIES) {
            return Outcome::Nothing;
        }
        self.since = now;
        if !self.is_there {
            self.pause = if self.pause == RAISE_NANOS { RETRY_NANOS } else { (2 * self.pause).min(RAISE_NANOS - 1) };
            self.phase = Phase::Idle;
            self.probes.clear();
            return Outcome::Nothing;
        }
        match self.phase {
            Phase::Checking => {
                self.mtu = BASE_MTU;
                self.search(u32::from(self.agreed) + 1, random);
                Outcome::Changed
            }
            Phase::Idle | Phase::Searching => {
                let swallowed = self.probes.iter().map(|probe| probe.size).min().unwrap_or(self.agreed);
                self.search(swallowed.into(), random);
                Outcome::Nothing
            }
        }
    }

    /// Whether a search ever began.
    pub fn has_begun(&self) -> bool {
        self.is_busy() || self.since > 0
    }

    /// Whether answers are awaited.
    pub fn is_busy(&self) -> bool {
        self.phase != Phase::Idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a search over a path that carries `carries` bytes, answers at once, and loses nothing else; returns the
    /// number of probes it took.
    fn run(search: &mut MtuSearch, now: &mut u64, carries: u16) -> usize {
        let mut tokens = *now;
        let mut random = || {
            tokens += 1;
            tokens
        };
        let mut sent = 0;
        while search.is_busy() {
            let probes = search.due(*now);
            sent += probes.len();
            for probe in probes.iter().filter(|probe| probe.size <= carries) {
                let _ = search.on_answer(probe.token, *now, &mut random);
            }
            *now += TRY_NANOS / 4;
            let _ = search.on_time(*now, &mut random);
        }
        sent
    }

    #[test]
    fn every_path_is_found_to_the_grain() {
        for agreed in [300, 1200, 1201, 1230, 1470, 1500, 4000, 8972, 9352, 65_535] {
            for carries in (BASE_MTU.min(agreed)..=agreed).step_by(17).chain([agreed]) {
                let mut search = MtuSearch::new(agreed);
                let mut now = 1;
                search.begin(|| 7 + now);
                search.probes.iter_mut().enumerate().for_each(|(i, probe)| probe.token = i as u64);
                let sent = run(&mut search, &mut now, carries);
                let found = search.mtu();
                assert!(
                    found <= carries && carries - found < 2 * GRAIN,
                    "{found} of {carries}, {agreed} were agreed on"
                );
                assert!(sent <= 6 * 3 * 8 && now < 4_000_000_000, "{sent} probes and {now} ns for {carries}");
                if carries == agreed {
                    assert_eq!(found, agreed);
                    assert!(sent <= SENT_MAX, "one round trip");
                }
            }
        }
    }

    #[test]
    fn a_path_that_shrinks_is_noticed_and_searched_anew() {
        let mut search = MtuSearch::new(1470);
        let mut now = 1;
        let mut tokens = 0;
        let mut random = || {
            tokens += 1;
            tokens
        };
        search.begin(&mut random);
        run(&mut search, &mut now, 1470);
        assert_eq!(search.mtu(), 1470);
        // It was a false alarm.
        search.check(now, &mut random);
        run(&mut search, &mut now, 1470);
        assert_eq!(search.mtu(), 1470);
        assert_eq!(search.joining_limit(), Some(1470));
        search.check(now, &mut random);
        assert!(!search.is_busy(), "so soon after the last check");
        // The peer is silent.
        now += CHECK_PAUSE_NANOS;
        search.check(now, &mut random);
        assert_eq!((search.joining_limit(), search.joining_limit()), (Some(BASE_MTU), None));
        run(&mut search, &mut now, 0);
        assert_eq!((search.mtu(), search.joining_limit()), (1470, Some(1470)));
        now += CHECK_PAUSE_NANOS;
        search.check(now, &mut random);
        run(&mut search, &mut now, 1300);
        assert!((1269..=1300).contains(&search.mtu()), "{}", search.mtu());
        // The path carries more again.
        now += RAISE_NANOS;
        let _ = search.on_time(now, &mut random);
        run(&mut search, &mut now, 1470);
        assert_eq!(search.mtu(), 1470);
    }

    #[test]
    fn a_peer_that_is_away_while_its_path_is_searched_tells_nothing() {
        for away in [400_000_000, 3_000_000_000, 60_000_000_000] {
            for answers_first in [false, true] {
                let mut search = MtuSearch::new(1470);
                let (mut now, mut tokens) = (1, 0);
                let mut random = || {
                    tokens += 1;
                    tokens
                };
                search.begin(&mut random);
                let (back, mut sent) = (now + away, 0);
                while now < 3 * back {
                    let probes = search.due(now);
                    sent += probes.len();
                    let is_first = answers_first && now == 1;
                    for probe in probes.iter().filter(|probe| now >= back || is_first && probe.size < 1300) {
                        let _ = search.on_answer(probe.token, now, &mut random);
                    }
                    now += TRY_NANOS / 4;
                    let _ = search.on_time(now, &mut random);
                }
                assert_eq!(search.mtu(), 1470, "after {away} ns");
                assert!(sent < 12 * 3 * SENT_MAX, "{sent} probes");
            }
        }
    }

    #[test]
    fn answers_that_nobody_awaits_change_nothing() {
        let mut search = MtuSearch::new(1470);
        assert_eq!(search.on_answer(3, 1, || 9), Outcome::Nothing);
        search.begin(|| 9);
        assert_eq!(search.on_answer(3, 1, || 9), Outcome::Nothing);
        assert_eq!(search.mtu(), BASE_MTU);
    }
}
