//! Bursts: look-ups that descend the tree together, so that their cache misses overlap.
//!
//! A burst goes through the tree in passes. In each pass, every look-up reads the line that it prefetched in the pass
//! before, and prefetches the line it needs next: the header of an interior node, a group of its keys and children,
//! the header of a leaf, a pair of it, and a block if there is one. If the key continues in another layer, the passes
//! begin anew; slices that all keys have in common are passed once for all. The upper two levels are in the cache: each
//! is one pass, so that the searches of several look-ups overlap.
//!
//! Each pass is a loop of its own: a state machine for each look-up took a tenth more instructions.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use arrayvec::ArrayVec;

use crate::error::Refused;
use crate::guard::Guard;
use crate::index::{Index, Reached, reach_with, retry};
use crate::node::{Conflict, Control, Entry, Link, Node, Search, Target, Task, search};
use crate::scan::Scan;
use crate::slice::{LONG, Slice};
use crate::value::Value;

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
        if let ([key], [value, ..]) = (keys, &mut *values) {
            *value = self.get(key, guard);
            return;
        }
        for (keys, values) in keys.chunks(PROBES_MAX).zip(values.chunks_mut(PROBES_MAX)) {
            search(Burst { index: self, keys, guard, purpose: LookUps(values) });
        }
    }

    /// Looks up a burst of keys as [`Index::get_burst`] does, then runs a burst of short scans. All of them descend
    /// together, and are then visited one after the other. `visit` gets the index of the scan, the key and the value.
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
            let mut cursors = self.cursors_for(scans, usize::MAX, guard);
            for (at, (scan, cursor)) in scans.iter().zip(&mut cursors).enumerate() {
                cursor.visit(scan.limit, |key, value| visit(PROBES_MAX * part + at, key, value));
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
        self.look_up_or_fetch(keys.map(|key| (key, true)), guard, &mut [None; PROBES_MAX]);
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
            if is_written {
                written.add(at);
            }
        }
        search(Burst { index: self, keys: &keys, guard, purpose: LookUpsAndWrites { values, written } });
    }

    /// Where all keys of a burst begin: the root of the layer of what they have in common, and how many bytes that is.
    #[inline(always)]
    fn start<'a, S: Search>(&'a self, keys: &[&[u8]], guard: &'a Guard) -> Result<(Reached<'a>, usize), Conflict> {
        let (mut link, mut above) = (self.anchor.link(guard), 0);
        loop {
            let node = link.child()?;
            let control = node.stable()?;
            link.check()?;
            let root = Reached { link, node, control };
            let Some(slice) = common_slice(keys, above) else { return Ok((root, above)) };
            let Reached { node, control, .. } = reach_with::<S, _>(link, slice.bits, |_, _| Ok::<_, Conflict>(()))?;
            let Some(at) = node.find::<S>(control, slice) else { return Ok((root, above)) };
            let Entry::Layer = node.entry(control, at)? else { return Ok((root, above)) };
            (link, above) = (Link { holder: node, control, at }, above + 8);
        }
    }
}

/// The slice after `above` bytes, if all of several keys have the same one and go on behind it.
#[inline(always)]
fn common_slice(keys: &[&[u8]], above: usize) -> Option<Slice> {
    let (first, others) = keys.split_first().filter(|(_, others)| !others.is_empty())?;
    let slice = Slice::of(&first[above..]);
    for key in others {
        // The keys have what is above in common.
        if slice.class != LONG || Slice::of(&key[above..]) != slice {
            return None;
        }
    }
    Some(slice)
}

/// Levels of the layer in which a burst starts, from its root on, that are in the cache. Tests within the crate have no
/// trees that are high enough, and let no level be near.
const LEVELS_NEAR: usize = if cfg!(test) { 0 } else { 2 };

/// Look-ups of up to [`PROBES_MAX`] keys.
///
/// All that runs for each look-up is in functions that are inlined always. Closures are not: they would be compiled
/// without the instructions of the [`Search`].
struct Burst<'a, 'k, P> {
    index: &'a Index,
    keys: &'k [&'k [u8]],
    guard: &'a Guard,
    purpose: P,
}

/// What a burst is for.
trait Purpose<'a> {
    /// A look-up has come to a leaf, by this link.
    fn approaches(&mut self, at: usize, link: Link<'a>);

    /// A look-up has ended.
    fn ended(&mut self, at: usize, value: Option<Value<'a>>);
}

/// The values are wanted.
struct LookUps<'v, 'a>(&'v mut [Option<Value<'a>>]);

impl<'a> Purpose<'a> for LookUps<'_, 'a> {
    #[inline(always)]
    fn approaches(&mut self, _: usize, _: Link<'a>) {}

    #[inline(always)]
    fn ended(&mut self, at: usize, value: Option<Value<'a>>) {
        self.0[at] = value;
    }
}

/// The values are wanted, and the leaves to which keys come that are written: the rank may be anywhere.
struct LookUpsAndWrites<'v, 'a> {
    values: &'v mut [Option<Value<'a>>],
    written: Set,
}

impl<'a> Purpose<'a> for LookUpsAndWrites<'_, 'a> {
    #[inline(always)]
    fn approaches(&mut self, at: usize, link: Link<'a>) {
        if self.written.has(at) && !link.control.is_leaf() {
            link.holder.prefetch_child(link.control, link.at);
        }
    }

    #[inline(always)]
    fn ended(&mut self, at: usize, value: Option<Value<'a>>) {
        self.values[at] = value;
    }
}

impl<'a, P: Purpose<'a>> Task for Burst<'a, '_, P> {
    type Output = ();

    #[inline(always)]
    fn run<S: Search>(self) {
        let Burst { index, keys, guard, mut purpose } = self;
        let keys = &keys[..keys.len().min(PROBES_MAX)];
        if keys.is_empty() {
            return;
        }
        let (root, above) = retry(|| index.start::<S>(keys, guard));
        // A vector would copy each probe where its `push` is not inlined, and values for all take as long as a level.
        let mut probes = [const { MaybeUninit::uninit() }; PROBES_MAX];
        let probes = &mut probes[..keys.len()];
        for (probe, key) in probes.iter_mut().zip(keys) {
            probe.write(Probe::new(root, &key[above..]));
        }
        // SAFETY: there are as many as keys, and all were just written.
        let probes = unsafe { &mut *(std::ptr::from_mut::<[MaybeUninit<Probe<'_>>]>(probes) as *mut [Probe<'_>]) };
        let mut probes = Probes { keys, above, has_failed: false, probes };
        let mut level = root.control.level();
        // The levels from here on down are not in the cache.
        let mut far = level.saturating_sub(LEVELS_NEAR);
        if level > far {
            probes.leave_root::<S>();
            level -= 1;
        }
        loop {
            while level > far {
                probes.pass_level::<S>(level);
                level -= 1;
            }
            while level > 0 {
                probes.choose_groups::<S>(level);
                probes.choose_children::<S>(level);
                level -= 1;
            }
            probes.approach(&mut purpose);
            probes.find_candidates::<S>();
            match probes.find_entries(&mut purpose) {
                Some(highest) => (level, far) = (highest, highest),
                None => break,
            }
        }
        // The changed lines are in the cache now: there is nothing to overlap with.
        if probes.has_failed {
            for (at, (probe, key)) in probes.probes.iter().zip(keys).enumerate() {
                if probe.state == State::Failed {
                    purpose.ended(at, index.get(key, guard));
                }
            }
        }
    }
}

/// Numbers of look-ups, as bits.
#[derive(Debug, Clone, Copy)]
struct Set(u32);

impl Set {
    #[inline(always)]
    fn has(self, at: usize) -> bool {
        self.0 & 1 << (at % PROBES_MAX) != 0
    }

    #[inline(always)]
    fn add(&mut self, at: usize) {
        self.0 |= 1 << (at % PROBES_MAX);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Ended,
    /// It met a change.
    Failed,
}

/// A look-up. It has a cache line of its own.
#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Probe<'a> {
    /// The part of the key that belongs to this layer.
    slice: Slice,
    target: Target,
    state: State,
    /// The node that refers to the look-up's node, and its control word.
    holder: Node<'a>,
    holder_control: Control,
    node: Node<'a>,
    /// The control word of the node.
    control: Control,
    /// Before a pass reads the node: its place in the holder. Then the group, or the candidates, or the entry.
    place: u32,
}

impl<'a> Probe<'a> {
    #[inline(always)]
    fn new(Reached { link, node, control }: Reached<'a>, rest: &[u8]) -> Probe<'a> {
        let slice = Slice::of(rest);
        Probe {
            slice,
            target: Target::new(slice.bits),
            state: State::Running,
            holder: link.holder,
            holder_control: link.control,
            node,
            control,
            place: link.at as u32,
        }
    }

    #[inline(always)]
    fn link(&self) -> Link<'a> {
        Link { holder: self.holder, control: self.holder_control, at: self.place as usize }
    }

    #[inline(always)]
    fn seek(&mut self, rest: &[u8]) {
        self.slice = Slice::of(rest);
        self.target = Target::new(self.slice.bits);
    }

    /// Reads the header of a node. Returns whether the node is at this level.
    #[inline(always)]
    fn read_header(&mut self, level: usize) -> Result<bool, Conflict> {
        let control = self.node.control();
        if !control.is_plain_at(level) {
            return self.read_other_header(level);
        }
        self.holder.check(self.holder_control)?;
        self.control = control;
        Ok(true)
    }

    #[cold]
    fn read_other_header(&mut self, level: usize) -> Result<bool, Conflict> {
        let control = self.node.stable()?;
        self.holder.check(self.holder_control)?;
        self.control = control;
        Ok(control.level() == level)
    }

    /// Goes to a node that the present one refers to, and prefetches its header.
    #[inline(always)]
    fn go(&mut self, at: usize, node: Node<'a>) {
        node.prefetch();
        (self.holder, self.holder_control, self.place) = (self.node, self.control, at as u32);
        self.node = node;
    }

    #[inline(always)]
    fn go_to_child(&mut self, at: usize) -> Result<(), Conflict> {
        let node = self.node.child(self.control, at)?;
        self.go(at, node);
        Ok(())
    }

    #[inline(always)]
    fn pass_level<S: Search>(&mut self, level: usize) -> Result<(), Conflict> {
        if self.read_header(level)? { self.descend::<S>() } else { Ok(()) }
    }

    #[inline(always)]
    fn descend<S: Search>(&mut self) -> Result<(), Conflict> {
        let group = self.node.route_group::<S>(&self.target);
        self.go_to_child(self.node.route_in::<S>(group, &self.target))
    }

    #[inline(always)]
    fn choose_group<S: Search>(&mut self, level: usize) -> Result<(), Conflict> {
        if self.read_header(level)? {
            let group = self.node.route_group::<S>(&self.target);
            self.node.prefetch_group(group);
            self.place = group as u32;
        }
        Ok(())
    }

    #[inline(always)]
    fn choose_child<S: Search>(&mut self, level: usize) -> Result<(), Conflict> {
        if self.control.is_plain_at(level) {
            self.go_to_child(self.node.route_in::<S>(self.place as usize, &self.target))?;
        }
        Ok(())
    }

    #[inline(always)]
    fn find_candidates<S: Search>(&mut self) -> Result<(), Conflict> {
        // If it is no leaf, the tree has grown below this look-up.
        if !self.read_header(0)? {
            return Err(Conflict);
        }
        let candidates = self.node.candidates::<S>(self.control, Slice::fingerprint(self.slice.bits));
        // If there are none, a line is prefetched in vain.
        self.node.prefetch_pair(candidates.trailing_zeros() as usize);
        self.place = candidates;
        Ok(())
    }

    /// Reads the pairs of the candidates.
    #[inline(always)]
    fn find_entry(&mut self) -> Result<Option<Entry<'a>>, Conflict> {
        match self.node.find_among(self.place, self.slice) {
            Some(place) => {
                self.place = place as u32;
                self.node.entry(self.control, place).map(Some)
            }
            None => self.node.check(self.control).map(|()| None),
        }
    }

    /// Goes to the root of the layer with the rests of the keys.
    #[inline(always)]
    fn go_to_layer(&mut self, rest: &[u8]) -> Result<(), Conflict> {
        let root = Link { holder: self.node, control: self.control, at: self.place as usize }.child()?;
        self.seek(rest);
        self.go(self.place as usize, root);
        root.prefetch_pair(0);
        Ok(())
    }
}

/// All look-ups of a burst.
struct Probes<'a, 'k, 'p> {
    keys: &'k [&'k [u8]],
    /// Bytes of the keys in the layers above.
    above: usize,
    has_failed: bool,
    /// By their numbers, as many as keys.
    probes: &'p mut [Probe<'a>],
}

/// A pass: a step of each look-up.
macro_rules! each {
    ($probes:expr, $probe:ident => $step:expr) => {
        for $probe in &mut *$probes.probes {
            if $probe.state == State::Running && $step.is_err() {
                $probe.state = State::Failed;
                $probes.has_failed = true;
            }
        }
    };
}

impl<'a> Probes<'a, '_, '_> {
    /// Passes the root, whose control word is known, and prefetches the headers of the children.
    #[inline(always)]
    fn leave_root<S: Search>(&mut self) {
        each!(self, probe => probe.descend::<S>());
    }

    /// Passes a level that is in the cache, and prefetches the headers of the children.
    #[inline(always)]
    fn pass_level<S: Search>(&mut self, level: usize) {
        each!(self, probe => probe.pass_level::<S>(level));
    }

    /// Reads the headers of interior nodes at a level and prefetches the group of keys and children that they say.
    #[inline(always)]
    fn choose_groups<S: Search>(&mut self, level: usize) {
        each!(self, probe => probe.choose_group::<S>(level));
    }

    /// Reads the groups and prefetches the headers of the children.
    #[inline(always)]
    fn choose_children<S: Search>(&mut self, level: usize) {
        each!(self, probe => probe.choose_child::<S>(level));
    }

    #[inline(always)]
    fn approach(&mut self, purpose: &mut impl Purpose<'a>) {
        for (at, probe) in self.probes.iter().enumerate() {
            if probe.state == State::Running {
                purpose.approaches(at, probe.link());
            }
        }
    }

    /// Reads the headers of leaves and prefetches the first pair with the slice's fingerprint.
    #[inline(always)]
    fn find_candidates<S: Search>(&mut self) {
        each!(self, probe => probe.find_candidates::<S>());
    }

    /// Reads the pairs of the candidates. Look-ups whose keys go on in a layer go to its root. Returns the highest
    /// level of a root; `None` if all look-ups have ended.
    #[inline(always)]
    fn find_entries(&mut self, purpose: &mut impl Purpose<'a>) -> Option<usize> {
        self.above += 8;
        let above = self.above;
        let mut blocks = [None; PROBES_MAX];
        let (mut in_blocks, mut go_on) = (0, 0);
        for (at, (probe, key)) in self.probes.iter_mut().zip(self.keys).enumerate() {
            if probe.state != State::Running {
                continue;
            }
            probe.state = State::Ended;
            match probe.find_entry() {
                Ok(None) => purpose.ended(at, None),
                Ok(Some(Entry::Value(value))) => {
                    if let Some(block) = value.block() {
                        block.prefetch();
                    }
                    purpose.ended(at, Some(value));
                }
                Ok(Some(Entry::Long(block))) => {
                    block.prefetch();
                    blocks[at] = Some(block);
                    in_blocks += 1;
                }
                Ok(Some(Entry::Layer)) if probe.go_to_layer(&key[above..]).is_ok() => {
                    probe.state = State::Running;
                    go_on += 1;
                }
                Ok(Some(Entry::Layer)) | Err(Conflict) => {
                    probe.state = State::Failed;
                    self.has_failed = true;
                }
            }
        }
        if in_blocks > 0 {
            for (at, (block, key)) in blocks.iter().zip(self.keys).enumerate() {
                if let Some(block) = *block {
                    let is_found = block.suffix() == &key[above..];
                    purpose.ended(at, is_found.then_some(Value::in_block(block)));
                }
            }
        }
        if go_on == 0 {
            return None;
        }
        let mut highest = 0;
        for probe in &*self.probes {
            if probe.state == State::Running {
                // A level that is not valid costs time only.
                highest = highest.max(probe.node.control().level());
            }
        }
        Some(highest)
    }
}
