//! Bursts: look-ups that descend the tree together, so that their cache misses overlap.
//!
//! A burst goes through the tree in passes. In each pass, every look-up reads the line that it prefetched in the pass
//! before, and prefetches the line it needs next: the header of a node at level 1, a group of its keys and children,
//! the header of a leaf, a pair of it, and a block if there is one. If the key continues in another layer, the passes
//! begin anew. Nodes at level 2 and above, one per two thousand items, are in the cache: one pass goes through them all.
//!
//! What a look-up knows is in arrays by its number, and each pass is a loop of its own: a state machine for each
//! look-up took a tenth more instructions.

use arrayvec::ArrayVec;

use crate::block::Block;
use crate::error::Refused;
use crate::guard::Guard;
use crate::index::{Index, retry};
use crate::node::{Conflict, Control, Entry, Link, Node};
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
        assert!(values.len() >= keys.len(), "a value for each key");
        for (keys, values) in keys.chunks(PROBES_MAX).zip(values.chunks_mut(PROBES_MAX)) {
            self.run(keys, guard, |_, _| {}, |at, value| values[at] = value);
        }
    }

    /// Looks up a burst of keys as [`Index::get_burst`] does, then runs a burst of short scans, one after the other,
    /// whose first leaves were prefetched together. `visit` gets the index of the scan, the key and the value.
    ///
    /// # Panics
    /// If there are fewer values than keys.
    pub fn burst<'a>(
        &'a self,
        keys: &[&[u8]],
        scans: &[Scan<'_>],
        guard: &'a Guard,
        values: &mut [Option<Value<'a>>],
        mut visit: impl FnMut(usize, &[u8], &[u8]),
    ) {
        self.get_burst(keys, guard, values);
        for (part, scans) in scans.chunks(PROBES_MAX).enumerate() {
            self.fetch_scans(scans.iter().copied(), guard);
            for (at, &Scan { range, order, limit }) in scans.iter().enumerate() {
                self.scan(range, order, limit, guard, |key, value| visit(PROBES_MAX * part + at, key, value));
            }
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
        let keys: ArrayVec<&[u8], PROBES_MAX> = keys.collect();
        self.run(&keys, guard, |_, link| fetch_leaf(link), |_, _| {});
    }

    /// Looks up some keys of a burst of up to [`PROBES_MAX`], and brings what writes of the others need into the cache.
    /// Each operation is a key, and whether it is written.
    pub(crate) fn look_up_or_fetch<'a, 'k>(
        &'a self,
        operations: impl Iterator<Item = (&'k [u8], bool)>,
        guard: &'a Guard,
        values: &mut [Option<Value<'a>>],
    ) {
        let (mut keys, mut written) = (ArrayVec::<&[u8], PROBES_MAX>::new(), Set(0));
        for (at, (key, is_written)) in operations.enumerate() {
            keys.push(key);
            written.add(if is_written { Set::one(at) } else { Set(0) });
        }
        let whole = |at, link| {
            if written.has(at) {
                fetch_leaf(link)
            }
        };
        self.run(&keys, guard, whole, |at, value| values[at] = value);
    }

    /// Brings the first leaves of a burst of up to [`PROBES_MAX`] short scans into the cache, together.
    pub(crate) fn fetch_scans<'k>(&self, scans: impl Iterator<Item = Scan<'k>>, guard: &Guard) {
        let scans: ArrayVec<Scan<'_>, PROBES_MAX> = scans.collect();
        let starts: ArrayVec<&[u8], PROBES_MAX> = scans.iter().map(Scan::start).collect();
        self.run(&starts, guard, |at, link| prefetch_from(link, scans[at].order), |_, _| {});
    }

    fn root<'a>(&'a self, guard: &'a Guard) -> (Link<'a>, Node<'a>) {
        retry(|| {
            let link = self.anchor.link(guard);
            link.child().map(|root| (link, root))
        })
    }

    /// Looks up at most [`PROBES_MAX`] keys. `approaches` gets the number of a look-up and the link to the leaf that it
    /// comes to, `ended` its number and its result.
    #[inline(always)]
    fn run<'a>(
        &'a self,
        keys: &[&[u8]],
        guard: &'a Guard,
        approaches: impl Fn(usize, Link<'a>),
        mut ended: impl FnMut(usize, Option<Value<'a>>),
    ) {
        let count = keys.len().min(PROBES_MAX);
        let (link, root) = self.root(guard);
        let mut probes = Probes {
            slices: [Slice::of(&[]); PROBES_MAX],
            links: [link; PROBES_MAX],
            nodes: [root; PROBES_MAX],
            controls: [link.control; PROBES_MAX],
            places: [0; PROBES_MAX],
        };
        for (slice, key) in probes.slices.iter_mut().zip(keys) {
            *slice = Slice::of(key);
        }
        let mut running = Set(u32::MAX.checked_shr((PROBES_MAX - count) as u32).unwrap_or(0));
        let mut failed = Set(0);
        // Bytes of the keys in the layers above.
        let mut above = 0;
        while running.0 != 0 {
            let mut leaves = Set(0);
            failed.add(running.each(|at| probes.pass_upper_levels(at)));
            failed.add(running.each(|at| probes.choose_group(at, &mut leaves)));
            failed.add(running.without(leaves).each(|at| probes.go_to_leaf(at, &approaches)));
            running.remove(failed);
            failed.add(running.each(|at| probes.find_candidates(at)));
            above += 8;
            let (mut over, mut blocks) = (Set(0), Blocks { are: Set(0), of: [None; PROBES_MAX] });
            failed.add(running.each(|at| {
                match probes.find_entry(at)? {
                    Some(Entry::Layer) => return probes.go_to_layer(at, &keys[at][above..]),
                    Some(Entry::Long(block)) => blocks.add(at, block),
                    Some(Entry::Value(value)) => {
                        if let Repr::Block(block) = value.0 {
                            block.prefetch();
                        }
                        ended(at, Some(value));
                    }
                    None => ended(at, None),
                }
                over.add(Set::one(at));
                Ok(())
            }));
            running.remove(over);
            blocks.read(|at, block| {
                ended(at, (block.suffix() == &keys[at][above..]).then_some(Value(Repr::Block(block))))
            });
        }
        // The changed lines are in the cache now: there is nothing to overlap with.
        failed.numbers().for_each(|at| ended(at, self.get(keys[at], guard)));
    }
}

/// Prefetches the leaf to which a key comes that is written: its rank may be anywhere.
#[inline(always)]
fn fetch_leaf(link: Link<'_>) {
    link.holder.prefetch_child(link.control, link.at);
}

/// Numbers of look-ups, as bits.
#[derive(Clone, Copy)]
struct Set(u32);

impl Set {
    #[inline(always)]
    fn one(at: usize) -> Set {
        Set(1 << (at % PROBES_MAX))
    }

    #[inline(always)]
    fn has(self, at: usize) -> bool {
        self.0 & Set::one(at).0 != 0
    }

    #[inline(always)]
    fn add(&mut self, others: Set) {
        self.0 |= others.0;
    }

    #[inline(always)]
    fn remove(&mut self, others: Set) {
        self.0 &= !others.0;
    }

    #[inline(always)]
    fn without(mut self, others: Set) -> Set {
        self.remove(others);
        self
    }

    #[inline(always)]
    fn numbers(mut self) -> impl Iterator<Item = usize> {
        std::iter::from_fn(move || {
            let at = self.0.trailing_zeros() as usize;
            self.0 &= self.0.wrapping_sub(1);
            (at < PROBES_MAX).then_some(at)
        })
    }

    /// One pass: a step of each. Those that met a change are removed, and returned.
    #[inline(always)]
    fn each(&mut self, mut step: impl FnMut(usize) -> Result<(), Conflict>) -> Set {
        let mut failed = Set(0);
        for at in self.numbers() {
            if step(at).is_err() {
                failed.add(Set::one(at));
            }
        }
        self.remove(failed);
        failed
    }
}

/// What each look-up knows, by its number.
struct Probes<'a> {
    /// The part of the key that belongs to this layer.
    slices: [Slice; PROBES_MAX],
    /// The place that refers to the node.
    links: [Link<'a>; PROBES_MAX],
    nodes: [Node<'a>; PROBES_MAX],
    /// The control word of the node.
    controls: [Control; PROBES_MAX],
    /// In an interior node, the group; in a leaf, the candidates.
    places: [u32; PROBES_MAX],
}

impl<'a> Probes<'a> {
    /// Goes to level 1 and prefetches the header there, or stays where it is if that is not above it.
    #[inline(always)]
    fn pass_upper_levels(&mut self, at: usize) -> Result<(), Conflict> {
        loop {
            let control = self.read_header(at)?;
            if control.level() < 2 {
                return Ok(());
            }
            let place = self.nodes[at].route(control, self.slices[at].bits);
            self.go(at, place)?;
            if control.level() == 2 {
                return Ok(());
            }
        }
    }

    /// Reads the header of a node at level 1 and prefetches the group of keys and children that it says.
    #[inline(always)]
    fn choose_group(&mut self, at: usize, leaves: &mut Set) -> Result<(), Conflict> {
        let control = self.read_header(at)?;
        if control.is_leaf() {
            leaves.add(Set::one(at));
            return Ok(());
        }
        let group = self.nodes[at].route_group(control, self.slices[at].bits);
        self.nodes[at].prefetch_group(group);
        self.places[at] = group as u32;
        Ok(())
    }

    /// Reads the group and prefetches the header of the leaf.
    #[inline(always)]
    fn go_to_leaf(&mut self, at: usize, approaches: &impl Fn(usize, Link<'a>)) -> Result<(), Conflict> {
        let place = self.nodes[at].route_in(self.controls[at], self.places[at] as usize, self.slices[at].bits);
        self.go(at, place)?;
        approaches(at, self.links[at]);
        Ok(())
    }

    /// Reads the header of the leaf and prefetches the first pair with the slice's fingerprint.
    #[inline(always)]
    fn find_candidates(&mut self, at: usize) -> Result<(), Conflict> {
        let control = self.read_header(at)?;
        if !control.is_leaf() {
            // The tree has grown below this look-up.
            return Err(Conflict);
        }
        let candidates = self.nodes[at].candidates(control, Slice::fingerprint(self.slices[at].bits));
        if candidates != 0 {
            self.nodes[at].prefetch_pair(candidates.trailing_zeros() as usize);
        }
        self.places[at] = candidates;
        Ok(())
    }

    /// Reads the pairs of the candidates.
    #[inline(always)]
    fn find_entry(&mut self, at: usize) -> Result<Option<Entry<'a>>, Conflict> {
        let (node, control) = (self.nodes[at], self.controls[at]);
        let Some(place) = node.find_among(self.places[at], self.slices[at]) else {
            return node.check(control).map(|()| None);
        };
        self.places[at] = place as u32;
        node.entry(control, place).map(Some)
    }

    /// Goes to the root of the layer with the rests of the keys, and prefetches its header and its first pairs.
    #[inline(always)]
    fn go_to_layer(&mut self, at: usize, rest: &[u8]) -> Result<(), Conflict> {
        self.slices[at] = Slice::of(rest);
        self.go(at, self.places[at] as usize)?;
        self.nodes[at].prefetch_pair(0);
        Ok(())
    }

    #[inline(always)]
    fn read_header(&mut self, at: usize) -> Result<Control, Conflict> {
        let control = self.nodes[at].stable()?;
        self.links[at].check()?;
        self.controls[at] = control;
        Ok(control)
    }

    /// Goes to the node that a place of this one refers to, and prefetches its header.
    #[inline(always)]
    fn go(&mut self, at: usize, place: usize) -> Result<(), Conflict> {
        let link = Link { holder: self.nodes[at], control: self.controls[at], at: place };
        let node = link.child()?;
        node.prefetch();
        (self.links[at], self.nodes[at]) = (link, node);
        Ok(())
    }
}

/// Blocks to compare with the rest of the key, by the number of the look-up.
struct Blocks<'a> {
    are: Set,
    of: [Option<Block<'a>>; PROBES_MAX],
}

impl<'a> Blocks<'a> {
    #[inline(always)]
    fn add(&mut self, at: usize, block: Block<'a>) {
        block.prefetch();
        self.are.add(Set::one(at));
        self.of[at] = Some(block);
    }

    #[inline(always)]
    fn read(&self, mut compare: impl FnMut(usize, Block<'a>)) {
        self.are.numbers().filter_map(|at| Some((at, self.of[at]?))).for_each(|(at, block)| compare(at, block));
    }
}
