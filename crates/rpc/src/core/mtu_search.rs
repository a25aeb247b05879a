//! Which packet sizes get through to a peer: path MTU discovery by probes (RFC 8899). Arithmetic only; [`super::path`] sends the probes.
//!
//! A search sends probes of several sizes at once and raises what is known to get through with each answer. Sizes that stay unanswered after
//! [`TRIES`] tries count as swallowed, and the sizes between are searched next. A **check** asks whether the size in use still gets
//! through: if its probes stay unanswered while those of [`BASE_MTU`] are answered, the path has become a black hole for it.

use arrayvec::ArrayVec;

/// Every path is expected to carry packets of this many bytes.
pub(crate) const BASE_MTU: u16 = 1200;
/// Probes on their way at a time.
const PROBES_MAX: usize = 5;
/// Times that a probe is sent before its size counts as swallowed.
const TRIES: u8 = 3;
/// Time between them: what the answer to one may take, and sizes of which two get lost in a burst are still told apart.
const TRY_NANOS: u64 = 100_000_000;
/// Sizes that differ by less are not told apart.
const GRAIN: u16 = 32;
/// Between two checks of the same path.
const CHECK_PAUSE_NANOS: u64 = 1_000_000_000;
/// A path that carries less than it might is searched again after this time (RFC 8899's PMTU_RAISE_TIMER).
const RAISE_NANOS: u64 = 600_000_000_000;

/// A probe that is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Probe {
    /// Bytes of the packet.
    pub size: u16,
    /// Told to the peer, which repeats it.
    pub token: u64,
    tries: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Searching,
    /// Whether the answer to a probe of [`BASE_MTU`] has come.
    Checking {
        base_answered: bool,
    },
}

/// What came of an answer, or of waiting for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Outcome {
    Nothing,
    /// [`MtuSearch::mtu`] has changed.
    Changed,
}

/// What is known of the path to one peer.
#[derive(Debug)]
pub(crate) struct MtuSearch {
    mtu: u16,
    /// The largest packets that both ends take.
    agreed: u16,
    phase: Phase,
    probes: ArrayVec<Probe, PROBES_MAX>,
    /// Probes that wait to be sent.
    unsent: bool,
    /// When they were sent last, or the phase ended.
    since: u64,
    checked_at: Option<u64>,
    /// What [`MtuSearch::joining_limit`] said last.
    told: Option<u16>,
}

impl MtuSearch {
    /// Of a path of which nothing is known but that both ends take packets of `agreed` bytes.
    pub fn new(agreed: u16) -> MtuSearch {
        MtuSearch {
            mtu: agreed.min(BASE_MTU),
            agreed,
            phase: Phase::Idle,
            probes: ArrayVec::new(),
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

    /// How long datagrams may get by joining packets, if that is news. While a path is checked no more than is sure: short packets would be
    /// swallowed where they share a long datagram, and with them the probes of [`BASE_MTU`].
    pub fn joining_limit(&mut self) -> Option<u16> {
        let limit = if matches!(self.phase, Phase::Checking { .. }) { self.mtu.min(BASE_MTU) } else { self.mtu };
        let is_news = self.told.replace(limit) != Some(limit);
        is_news.then_some(limit)
    }

    /// Searches from what is known up to what was agreed on, unless something is going on.
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
        // What was agreed on is tried in any case, what lies below a swallowed size only if it is worth it.
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
        (self.phase, self.unsent) = (Phase::Searching, true);
    }

    /// Full packets seem not to arrive: asks whether the path still carries them.
    pub fn check(&mut self, now: u64, mut random: impl FnMut() -> u64) {
        let is_recent = self.checked_at.is_some_and(|at| now < at + CHECK_PAUSE_NANOS);
        if self.mtu <= BASE_MTU || is_recent || matches!(self.phase, Phase::Checking { .. }) {
            return;
        }
        self.probes.clear();
        for size in [self.mtu, BASE_MTU] {
            self.probes.push(Probe { size, token: random(), tries: 0 });
        }
        self.checked_at = Some(now);
        (self.phase, self.unsent) = (Phase::Checking { base_answered: false }, true);
    }

    /// The probes that are to be sent now.
    pub fn due(&mut self, now: u64) -> ArrayVec<Probe, PROBES_MAX> {
        let is_time = self.unsent || now.saturating_sub(self.since) >= TRY_NANOS;
        if self.probes.is_empty() || !is_time || self.probes.iter().all(|probe| probe.tries == TRIES) {
            return ArrayVec::new();
        }
        (self.unsent, self.since) = (false, now);
        self.probes.iter_mut().for_each(|probe| probe.tries += 1);
        self.probes.clone()
    }

    /// The peer has answered a probe.
    pub fn on_answer(&mut self, token: u64, now: u64, random: impl FnMut() -> u64) -> Outcome {
        let Some(at) = self.probes.iter().position(|probe| probe.token == token) else { return Outcome::Nothing };
        let size = self.probes.remove(at).size;
        match &mut self.phase {
            Phase::Idle => Outcome::Nothing,
            Phase::Checking { base_answered } if size == BASE_MTU => {
                *base_answered = true;
                Outcome::Nothing
            }
            Phase::Checking { .. } => {
                // All is well. A search that the check interrupted begins anew.
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

    /// Looks whether probes have stayed unanswered for so long that they count as swallowed, and whether it is time to search again.
    pub fn on_time(&mut self, now: u64, random: impl FnMut() -> u64) -> Outcome {
        let waited = now.saturating_sub(self.since);
        if self.phase == Phase::Idle {
            if self.mtu < self.agreed && waited >= RAISE_NANOS {
                self.begin(random);
            }
            return Outcome::Nothing;
        }
        if self.unsent || waited < TRY_NANOS || self.probes.iter().any(|probe| probe.tries < TRIES) {
            return Outcome::Nothing;
        }
        self.since = now;
        match self.phase {
            Phase::Checking { base_answered: true } => {
                self.mtu = BASE_MTU;
                self.search(u32::from(self.agreed) + 1, random);
                Outcome::Changed
            }
            Phase::Checking { base_answered: false } => {
                // Nothing gets through: that says nothing of sizes.
                self.phase = Phase::Idle;
                self.probes.clear();
                Outcome::Nothing
            }
            Phase::Idle | Phase::Searching => {
                let swallowed = self.probes.iter().map(|probe| probe.size).min().unwrap_or(self.agreed);
                self.search(swallowed.into(), random);
                Outcome::Nothing
            }
        }
    }

    /// Whether it ever began.
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

    /// Lets a search run over a path that carries `carries` bytes, answers at once, and loses no more; gives the probes that it took.
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
                assert!(found <= carries && carries - found < 2 * GRAIN, "{found} of {carries}, {agreed} were agreed on");
                assert!(sent <= 5 * 3 * 8 && now < 4_000_000_000, "{sent} probes and {now} ns for {carries}");
                if carries == agreed {
                    assert_eq!(found, agreed);
                    assert!(sent <= PROBES_MAX, "one round trip");
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
    fn answers_that_nobody_awaits_change_nothing() {
        let mut search = MtuSearch::new(1470);
        assert_eq!(search.on_answer(3, 1, || 9), Outcome::Nothing);
        search.begin(|| 9);
        assert_eq!(search.on_answer(3, 1, || 9), Outcome::Nothing);
        assert_eq!(search.mtu(), BASE_MTU);
    }
}
