//! Bursts: look-ups that descend the tree together, so that their cache misses overlap.
//!
//! A probe is one look-up. In each round, every probe reads the line that it prefetched in the previous round, and
//! prefetches the line it needs next. The upper levels are in the cache anyway: a probe passes them in one round. From
//! the last interior level on it reads one line per round.

use arrayvec::ArrayVec;

use crate::block::Block;
use crate::error::Refused;
use crate::guard::Guard;
use crate::index::{Index, retry};
use crate::node::{Conflict, Control, Entry, Link, Node, Shape};
use crate::range::Order;
use crate::scan::{Scan, prefetch_from};
use crate::slice::Slice;
use crate::value::{Repr, Value};

/// Look-ups that run together. Longer bursts are split into parts of this size.
pub(crate) const PROBES_MAX: usize = 32;

impl Index {
    /// Looks up a burst of keys: `values[i]` becomes the value of `keys[i]`. Each look-up is linearizable by itself;
    /// the burst as a whole is not atomic. Bursts of 16 or 32 gain most.
    ///
    /// # Panics
    /// If there are fewer values than keys.
    pub fn get_burst<'a>(&'a self, keys: &[&[u8]], guard: &'a Guard, values: &mut [Option<Value<'a>>]) {
        self.burst(keys, &[], guard, values, |_, _, _| {});
    }

    /// Looks up a burst of keys as [`Index::get_burst`] does, then runs a burst of short scans, one after the other.
    /// While the look-ups run, the first leaves of all scans are prefetched. `visit` gets the index of the scan, the
    /// key and the value.
    ///
    /// # Panics
    /// If there are fewer values than keys.
    pub fn burst<'a>(
        &'a self,
        mut keys: &[&[u8]],
        scans: &[Scan<'_>],
        guard: &'a Guard,
        mut values: &mut [Option<Value<'a>>],
        mut visit: impl FnMut(usize, &[u8], &[u8]),
    ) {
        assert_eq!(keys.len(), values.len(), "a value for each key");
        let mut scanned = 0;
        while !keys.is_empty() || scanned < scans.len() {
            let (part, later) = keys.split_at(keys.len().min(PROBES_MAX));
            let (found, values_later) = values.split_at_mut(part.len());
            let scans_end = scans.len().min(scanned + PROBES_MAX - part.len());
            let (link, root) = self.root(guard);
            let look_ups = part.iter().map(|key| Probe::new(link, root, key, Purpose::LookUp));
            let starts = scans[scanned..scans_end].iter();
            let starts = starts.map(|scan| Probe::new(link, root, scan.start(), Purpose::Scan(scan.order)));
            self.run(&mut look_ups.chain(starts).collect(), guard, |at, value| {
                if let Some(found) = found.get_mut(at) {
                    *found = value;
                }
            });
            for (at, &Scan { range, order, limit }) in scans.iter().enumerate().take(scans_end).skip(scanned) {
                self.scan(range, order, limit, guard, |key, value| visit(at, key, value));
            }
            (keys, values, scanned) = (later, values_later, scans_end);
        }
    }

    /// Runs a burst of short scans: see [`Index::burst`].
    pub fn scan_burst(&self, scans: &[Scan<'_>], guard: &Guard, visit: impl FnMut(usize, &[u8], &[u8])) {
        self.burst(&[], scans, guard, &mut [], visit);
    }

    /// Inserts a burst of items in order. `done` gets the index of each and the result of its [`Index::insert`].
    pub fn insert_burst<'a>(
        &'a self,
        items: &[(&[u8], &[u8])],
        guard: &'a Guard,
        mut done: impl FnMut(usize, Result<Option<Value<'a>>, Refused>),
    ) {
        for (part, items) in items.chunks(PROBES_MAX).enumerate() {
            self.fetch(items.iter().map(|item| item.0), guard);
            for (at, (key, value)) in items.iter().enumerate() {
                done(PROBES_MAX * part + at, self.insert(key, value, guard));
            }
        }
    }

    /// Removes a burst of keys in order. `done` gets the index of each and the result of its [`Index::remove`].
    pub fn remove_burst<'a>(
        &'a self,
        keys: &[&[u8]],
        guard: &'a Guard,
        mut done: impl FnMut(usize, Option<Value<'a>>),
    ) {
        for (part, keys) in keys.chunks(PROBES_MAX).enumerate() {
            self.fetch(keys.iter().copied(), guard);
            for (at, key) in keys.iter().enumerate() {
                done(PROBES_MAX * part + at, self.remove(key, guard));
            }
        }
    }

    /// Brings what writes of up to [`PROBES_MAX`] keys need into the cache.
    fn fetch<'k>(&self, keys: impl Iterator<Item = &'k [u8]>, guard: &Guard) {
        let (link, root) = self.root(guard);
        let mut probes = keys.map(|key| Probe::new(link, root, key, Purpose::Write)).collect();
        self.run(&mut probes, guard, |_, _| {});
    }

    /// Looks up some keys of a burst of up to [`PROBES_MAX`], and brings what writes of the others need into the cache.
    /// Each operation is a key, and whether it is written.
    pub(crate) fn look_up_or_fetch<'a, 'k>(
        &'a self,
        operations: impl Iterator<Item = (&'k [u8], bool)>,
        guard: &'a Guard,
        values: &mut [Option<Value<'a>>],
    ) {
        let (link, root) = self.root(guard);
        let purpose = |is_write| if is_write { Purpose::Write } else { Purpose::LookUp };
        let probes = operations.map(|(key, is_write)| Probe::new(link, root, key, purpose(is_write)));
        self.run(&mut probes.collect(), guard, |at, value| values[at] = value);
    }

    /// Brings the first leaves of a burst of up to [`PROBES_MAX`] short scans into the cache, together.
    pub(crate) fn fetch_scans<'k>(&self, scans: impl Iterator<Item = Scan<'k>>, guard: &Guard) {
        let (link, root) = self.root(guard);
        let probes = scans.map(|scan| Probe::new(link, root, scan.start(), Purpose::Scan(scan.order)));
        self.run(&mut probes.collect(), guard, |_, _| {});
    }

    fn root<'a>(&'a self, guard: &'a Guard) -> (Link<'a>, Node<'a>) {
        retry(|| {
            let link = self.anchor.link(guard);
            link.child().map(|root| (link, root))
        })
    }

    /// Runs probes until all have ended.
    #[inline(always)]
    fn run<'a>(
        &'a self,
        probes: &mut ArrayVec<Probe<'a, '_>, PROBES_MAX>,
        guard: &'a Guard,
        mut ended: impl FnMut(usize, Option<Value<'a>>),
    ) {
        let mut running = u32::MAX.checked_shr((PROBES_MAX - probes.len()) as u32).unwrap_or(0);
        while running != 0 {
            let mut round = running;
            while round != 0 {
                let at = round.trailing_zeros() as usize;
                round &= round - 1;
                let value = match probes[at].step() {
                    Ok(Step::Again) => continue,
                    Ok(Step::Ended(value)) => value,
                    // The changed lines are in the cache now: there is nothing to overlap with.
                    Err(Conflict) => self.get(probes[at].key, guard),
                };
                running &= !(1 << at);
                ended(at, value);
            }
        }
    }
}

/// One look-up.
#[derive(Debug)]
struct Probe<'a, 'k> {
    key: &'k [u8],
    /// The part of the key that belongs to this layer.
    rest: &'k [u8],
    slice: Slice,
    /// The place that refers to the node.
    link: Link<'a>,
    node: Node<'a>,
    control: Control,
    stage: Stage<'a>,
    purpose: Purpose,
}

/// The operation after a probe, which decides how much of a leaf the probe prefetches.
#[derive(Debug, Clone, Copy)]
enum Purpose {
    LookUp,
    Write,
    Scan(Order),
}

/// The line that was prefetched.
#[derive(Debug, Clone, Copy)]
enum Stage<'a> {
    /// The header of the node.
    Header,
    /// A group of keys and children.
    Group(usize),
    /// The pair of the first of these entries.
    Pair(u32),
    /// The key's suffix, and the value.
    Block(Block<'a>),
}

/// The next step of a probe.
enum Step<'a> {
    Again,
    Ended(Option<Value<'a>>),
}

impl<'a, 'k> Probe<'a, 'k> {
    fn new(link: Link<'a>, root: Node<'a>, key: &'k [u8], purpose: Purpose) -> Probe<'a, 'k> {
        let slice = Slice::of(key);
        Probe { key, rest: key, slice, link, node: root, control: link.control, stage: Stage::Header, purpose }
    }

    #[inline(always)]
    fn step(&mut self) -> Result<Step<'a>, Conflict> {
        match self.stage {
            Stage::Header => self.read_header(),
            Stage::Group(group) => self.read_group(group),
            Stage::Pair(candidates) => self.read_pair(candidates),
            Stage::Block(block) => {
                let is_equal = block.suffix() == &self.rest[8..];
                Ok(Step::Ended(is_equal.then_some(Value(Repr::Block(block)))))
            }
        }
    }

    #[inline(always)]
    fn read_header(&mut self) -> Result<Step<'a>, Conflict> {
        loop {
            let control = self.node.stable()?;
            self.link.check()?;
            self.control = control;
            if control.is_leaf() {
                return self.read_tags();
            }
            let group = self.node.route_group(control, self.slice.bits);
            if control.level() == 1 {
                self.node.prefetch_group(group);
                self.stage = Stage::Group(group);
                return Ok(Step::Again);
            }
            let at = self.node.route_in(control, group, self.slice.bits);
            self.go(Link { holder: self.node, control, at })?;
            // Nodes at level 2 and above, one per two thousand items, are in the cache.
            if control.level() == 2 {
                return Ok(Step::Again);
            }
        }
    }

    #[inline(always)]
    fn read_tags(&mut self) -> Result<Step<'a>, Conflict> {
        let candidates = self.node.candidates(self.control, Slice::fingerprint(self.slice.bits));
        if candidates == 0 {
            return self.node.check(self.control).map(|()| Step::Ended(None));
        }
        if self.control.has_shape(Shape::Leaf4) {
            // Its pairs are in one line, which was prefetched with the header.
            return self.read_pair(candidates);
        }
        self.node.prefetch_pair(candidates.trailing_zeros() as usize);
        self.stage = Stage::Pair(candidates);
        Ok(Step::Again)
    }

    #[inline(always)]
    fn read_group(&mut self, group: usize) -> Result<Step<'a>, Conflict> {
        let at = self.node.route_in(self.control, group, self.slice.bits);
        self.go(Link { holder: self.node, control: self.control, at })?;
        match self.purpose {
            Purpose::LookUp => {}
            // The rank of a new key may be anywhere.
            Purpose::Write => self.link.holder.prefetch_child(self.link.control, at),
            Purpose::Scan(order) => prefetch_from(self.link, order),
        }
        Ok(Step::Again)
    }

    #[inline(always)]
    fn go(&mut self, link: Link<'a>) -> Result<(), Conflict> {
        self.node = link.child()?;
        self.node.prefetch();
        (self.link, self.stage) = (link, Stage::Header);
        Ok(())
    }

    #[inline(always)]
    fn read_pair(&mut self, candidates: u32) -> Result<Step<'a>, Conflict> {
        let (node, control) = (self.node, self.control);
        let Some(at) = node.find_among(candidates, self.slice) else {
            return node.check(control).map(|()| Step::Ended(None));
        };
        match node.entry(control, at)? {
            Entry::Value(value) => {
                if let Repr::Block(block) = value.0 {
                    block.prefetch();
                }
                Ok(Step::Ended(Some(value)))
            }
            Entry::Long(block) => {
                block.prefetch();
                self.stage = Stage::Block(block);
                Ok(Step::Again)
            }
            Entry::Layer => {
                self.rest = &self.rest[8..];
                self.slice = Slice::of(self.rest);
                self.go(Link { holder: node, control, at })?;
                self.node.prefetch_pair(0);
                Ok(Step::Again)
            }
        }
    }
}
