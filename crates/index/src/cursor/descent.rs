//! How cursors come to where they start: in steps, of which each reads what the one before has prefetched. So cursors of
//! a burst take turns, and their cache misses overlap.

use super::{Cursor, Fences, Place, leaves_ahead, prefetch_ahead};
use crate::guard::Guard;
use crate::index::Index;
use crate::node::{Conflict, Control, Link, Node, Search, Target, Task, search};
use crate::range::{Gap, Order};
use crate::scan::Scan;
use crate::slice::{Slice, shortest};

impl Index {
    /// Opens cursors for a burst of scans, as [`Index::cursor_for`] does for one. They descend together.
    pub(crate) fn cursors_for<'a>(&'a self, scans: &[Scan<'_>], layers: usize, guard: &'a Guard) -> Vec<Cursor<'a>> {
        let mut cursors: Vec<Cursor<'a>> = scans.iter().map(|scan| Cursor::new(self, *scan, layers, guard)).collect();
        let link = self.anchor.link(guard);
        let mut descents: Vec<Descent<'a, '_>> =
            scans.iter().map(|scan| Descent::new(link, scan.start(), scan.order, 0)).collect();
        take_turns(&mut cursors, &mut descents);
        for ((cursor, descent), scan) in cursors.iter_mut().zip(&descents).zip(scans) {
            if descent.result().is_err() {
                cursor.seek(scan.start());
            }
        }
        cursors
    }
}

/// The way of a cursor from the root of a layer into a gap.
#[derive(Debug)]
pub(super) struct Descent<'a, 'k> {
    /// In this layer, before which keys have `path` bytes.
    gap: Gap<'k>,
    path: usize,
    target: Target,
    /// How far it has come, and the bounds there and of the node above.
    link: Link<'a>,
    fences: Fences,
    outer: Fences,
    stage: Stage<'a>,
}

/// What a descent reads next, which was prefetched.
#[derive(Debug, Clone, Copy)]
enum Stage<'a> {
    /// The header of the node that the link refers to; if it is a leaf, all of it.
    Header,
    /// A group of keys and children of this node.
    Group { node: Node<'a>, control: Control, group: usize },
    /// Nothing: the cursor has arrived.
    There,
    /// Nothing: it met a change.
    Failed,
}

impl<'a, 'k> Descent<'a, 'k> {
    pub(super) fn new(link: Link<'a>, gap: Gap<'k>, order: Order, path: usize) -> Descent<'a, 'k> {
        let (fences, outer, stage) = (Fences::default(), Fences::default(), Stage::Header);
        Descent { gap, path, target: Target::new(slice_beside(gap, order)), link, fences, outer, stage }
    }

    fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::There | Stage::Failed)
    }

    pub(super) fn result(&self) -> Result<(), Conflict> {
        if let Stage::Failed = self.stage { Err(Conflict) } else { Ok(()) }
    }

    #[inline(always)]
    fn step<S: Search>(&mut self, cursor: &mut Cursor<'a>) -> Result<(), Conflict> {
        match self.stage {
            Stage::Header => {
                let node = self.link.child()?;
                let control = node.stable()?;
                // The node was still the right one when its control word was loaded: as in `reach_with`.
                self.link.check()?;
                if control.is_leaf() {
                    return self.arrive(node, control, cursor);
                }
                let group = node.route_group::<S>(&self.target);
                node.prefetch_group(group);
                self.stage = Stage::Group { node, control, group };
            }
            Stage::Group { node, control, group } => {
                self.link = Link { holder: node, control, at: node.route_in::<S>(group, &self.target) };
                // Valid if the next step finds the node unchanged.
                self.outer = self.fences;
                self.fences = self.outer.narrowed(node.fences(control, self.link.at));
                if control.level() == 1 {
                    for ahead in 0..=leaves_ahead(cursor.wanted) {
                        prefetch_ahead(self.link, ahead, cursor.order);
                    }
                } else {
                    self.link.prefetch();
                }
                self.stage = Stage::Header;
            }
            Stage::There | Stage::Failed => {}
        }
        Ok(())
    }

    /// Copies the leaf, and goes on in a layer below it if the gap is there.
    #[inline(never)]
    fn arrive(&mut self, node: Node<'a>, control: Control, cursor: &mut Cursor<'a>) -> Result<(), Conflict> {
        let Descent { gap, path, link, fences, outer, .. } = *self;
        self.stage = Stage::There;
        cursor.frame.leaf.replace(node, control)?;
        cursor.frame.place = Place { path, at: 0, link, outer, fences };
        let Some(at) = cursor.frame.move_into(gap) else {
            cursor.is_at_end = false;
            return Ok(());
        };
        // This frame's cursor passes the layer, whichever way it goes.
        cursor.frame.pass(at, cursor.order);
        if cursor.leave_for_deeper() {
            let (slice, rest) = gap.key().split_at(8);
            cursor.key.extend_from_slice(slice);
            let link = Link { holder: node, control, at };
            link.prefetch();
            *self = Descent::new(link, gap.with_key(rest), cursor.order, path + 8);
        }
        Ok(())
    }
}

/// Lets cursors descend, a step of each in turn, until each of them has arrived or failed.
pub(super) fn take_turns<'a>(cursors: &mut [Cursor<'a>], descents: &mut [Descent<'a, '_>]) {
    search(TakeTurns { cursors, descents });
}

/// Descents of several cursors.
struct TakeTurns<'t, 'a, 'k> {
    cursors: &'t mut [Cursor<'a>],
    descents: &'t mut [Descent<'a, 'k>],
}

impl Task for TakeTurns<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Search>(self) {
        let mut is_over = false;
        while !is_over {
            is_over = true;
            for (cursor, descent) in self.cursors.iter_mut().zip(&mut *self.descents) {
                if descent.step::<S>(cursor).is_err() {
                    descent.stage = Stage::Failed;
                }
                is_over &= descent.has_ended();
            }
        }
    }
}

/// The slice of the nearest keys that a cursor in this gap may reach: it may be in another leaf than the keys on the
/// other side.
fn slice_beside(gap: Gap<'_>, order: Order) -> u64 {
    let bits = Slice::of(gap.key()).bits;
    match gap {
        Gap::AfterPrefix(prefix) if prefix.len() <= 8 => Slice::last_with_prefix(prefix),
        Gap::Before(key) if order == Order::Descending && key.len() == shortest(bits).1 => bits.saturating_sub(1),
        _ => bits,
    }
}
