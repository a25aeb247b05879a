//! One timing wheel for everything that happens later: retransmission, deadlines, handshakes and keep-alive.
//!
//! A hierarchical wheel of six levels with 64 slots each. A tick is [`TICK_NANOS`]. The horizon is about 19 hours; a
//! later timer waits there and is then linked again. Arming, moving and disarming take constant time: each timer is a
//! node of an intrusive list, owned for as long as its user wants it, so arming allocates nothing.
//!
//! Users rearm timers lazily: a call that made progress does not move its timer, and checks again when the timer fires.
//! So a stream of small calls touches the wheel about once per retransmission timeout and slot, not once per packet.

/// Nanoseconds per tick: how late a timer may fire.
pub const TICK_NANOS: u64 = 1024;

const LEVELS: usize = 6;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const TICKS_MAX: u64 = 1 << (LEVELS as u32 * SLOT_BITS);
/// The last tick whose time 64 bits of nanoseconds hold.
const TICK_LAST: u64 = u64::MAX / TICK_NANOS;
const NONE: u32 = u32::MAX;
/// `Node::place` of a timer that is not armed.
const UNARMED: u16 = u16::MAX;

/// A timer of a [`Wheel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimerId(u32);

#[derive(Debug, Clone, Copy)]
struct Node {
    token: u64,
    /// Tick at which it is due.
    due: u64,
    prev: u32,
    next: u32,
    /// `level * SLOTS + slot`, or `UNARMED`.
    place: u16,
}

/// The wheel. See the [module](self).
///
/// ```
/// use dunlin_rpc::timer::Wheel;
///
/// let mut wheel = Wheel::new(0);
/// let timer = wheel.create(7);
/// wheel.arm(timer, 5_000_000);
/// let mut fired = Vec::new();
/// wheel.expire(4_999_000, &mut fired);
/// assert_eq!(fired, []);
/// wheel.expire(5_002_000, &mut fired);
/// assert_eq!(fired, [7]);
/// ```
#[derive(Debug)]
pub struct Wheel {
    nodes: Vec<Node>,
    free: Vec<u32>,
    heads: Box<[u32; LEVELS * SLOTS]>,
    occupied: [u64; LEVELS],
    /// All timers due at or before this tick have fired.
    elapsed: u64,
}

impl Wheel {
    /// A wheel whose time is `now`, in nanoseconds.
    pub fn new(now: u64) -> Wheel {
        Wheel {
            nodes: Vec::new(),
            free: Vec::new(),
            heads: Box::new([NONE; LEVELS * SLOTS]),
            occupied: [0; LEVELS],
            elapsed: now / TICK_NANOS,
        }
    }

    /// Creates a timer, not armed. [`Wheel::expire`] returns `token` when it fires.
    pub fn create(&mut self, token: u64) -> TimerId {
        let node = Node { token, due: 0, prev: NONE, next: NONE, place: UNARMED };
        if let Some(id) = self.free.pop() {
            self.nodes[id as usize] = node;
            return TimerId(id);
        }
        self.nodes.push(node);
        TimerId(self.nodes.len() as u32 - 1)
    }

    /// Removes the timer; its number may be reused.
    pub fn remove(&mut self, id: TimerId) {
        self.disarm(id);
        self.free.push(id.0);
    }

    /// When the timer is due, in nanoseconds, if it is armed.
    #[inline]
    pub fn due(&self, id: TimerId) -> Option<u64> {
        let node = &self.nodes[id.0 as usize];
        (node.place != UNARMED).then_some(node.due * TICK_NANOS)
    }

    /// Arms the timer for time `at`, or moves it there.
    pub fn arm(&mut self, id: TimerId, at: u64) {
        self.disarm(id);
        // Rounded up, so that it never fires early. The last ticks of all time count as one.
        let due = at.div_ceil(TICK_NANOS).min(TICK_LAST).max(self.elapsed + 1);
        self.nodes[id.0 as usize].due = due;
        self.link(id.0);
    }

    /// Arms the timer unless it is due by `at` already: the cheap way for users that check again when it fires.
    #[inline]
    pub fn arm_by(&mut self, id: TimerId, at: u64) {
        let node = &self.nodes[id.0 as usize];
        if node.place == UNARMED || node.due > at / TICK_NANOS + 1 {
            self.arm(id, at);
        }
    }

    /// Disarms the timer, if it is armed.
    pub fn disarm(&mut self, id: TimerId) {
        if self.nodes[id.0 as usize].place != UNARMED {
            self.unlink(id.0);
        }
    }

    /// Advances time to `now` and appends the tokens of all timers that fired to `fired`.
    pub fn expire(&mut self, now: u64, fired: &mut Vec<u64>) {
        let now_tick = now / TICK_NANOS;
        while let Some((place, at)) = self.next_place() {
            if at > now_tick {
                break;
            }
            self.elapsed = self.elapsed.max(at);
            while self.heads[place] != NONE {
                let id = self.heads[place];
                self.unlink(id);
                if self.nodes[id as usize].due <= self.elapsed {
                    fired.push(self.nodes[id as usize].token);
                } else {
                    self.link(id);
                }
            }
        }
        self.elapsed = self.elapsed.max(now_tick);
    }

    /// A time, in nanoseconds, before which no timer fires; `None` if none is armed.
    pub fn next_due(&self) -> Option<u64> {
        self.next_place().map(|(_, at)| at * TICK_NANOS)
    }

    /// The occupied slot whose time comes first, and that time in ticks.
    fn next_place(&self) -> Option<(usize, u64)> {
        let mut first: Option<(usize, u64)> = None;
        for level in 0..LEVELS {
            if self.occupied[level] == 0 {
                continue;
            }
            let shift = level as u32 * SLOT_BITS;
            let now_slot = (self.elapsed >> shift) as u32 % SLOTS as u32;
            // Slots in the order in which their time comes, the current one first.
            let ahead = self.occupied[level].rotate_right(now_slot).trailing_zeros();
            let slot = (now_slot + ahead) % SLOTS as u32;
            let start = ((self.elapsed >> shift) + ahead as u64) << shift;
            let at = start.max(self.elapsed);
            if first.is_none_or(|(_, best)| at < best) {
                first = Some((level * SLOTS + slot as usize, at));
            }
        }
        first
    }

    /// Links a node by its due tick, which is above `elapsed`.
    fn link(&mut self, id: u32) {
        let due = self.nodes[id as usize].due;
        // Beyond the horizon it waits in the last slot, from which it is linked again.
        let ticks = due.min(self.elapsed + TICKS_MAX / 2);
        let differing = (self.elapsed ^ ticks) | (SLOTS as u64 - 1);
        let level = ((63 - differing.leading_zeros()) / SLOT_BITS).min(LEVELS as u32 - 1);
        let slot = (ticks >> (level * SLOT_BITS)) as usize % SLOTS;
        let place = level as usize * SLOTS + slot;
        let head = self.heads[place];
        if head != NONE {
            self.nodes[head as usize].prev = id;
        }
        let node = &mut self.nodes[id as usize];
        (node.prev, node.next, node.place) = (NONE, head, place as u16);
        self.heads[place] = id;
        self.occupied[level as usize] |= 1 << slot;
    }

    fn unlink(&mut self, id: u32) {
        let Node { prev, next, place, .. } = self.nodes[id as usize];
        if prev == NONE {
            self.heads[place as usize] = next;
            if next == NONE {
                self.occupied[place as usize / SLOTS] &= !(1 << (place as usize % SLOTS));
            }
        } else {
            self.nodes[prev as usize].next = next;
        }
        if next != NONE {
            self.nodes[next as usize].prev = prev;
        }
        self.nodes[id as usize].place = UNARMED;
    }
}

#[cfg(test)]
mod tests;
