//! Work after a removal: small nodes are merged, unneeded nodes leave the tree.
#![allow(unsafe_code)]

use crate::guard::Guard;
use crate::index::{Index, reach, retry};
use crate::node::{Conflict, Control, Entry, Link, Locked, Node, Scalar};
use crate::slice::Slice;

/// A leaf with this few entries tries to merge with a neighbour.
pub(crate) const LEAF_FEW: usize = 7;
/// Two leaves with at most this many entries together become one, which leaves room for insertions.
const LEAF_MERGED_MAX: usize = 20;
const CHILDREN_FEW: usize = 16;
const CHILDREN_MERGED_MAX: usize = 48;

/// A node on the path to a key, and where the path continues.
#[derive(Debug, Clone, Copy)]
struct Step<'g> {
    node: Node<'g>,
    control: Control,
    at: usize,
}

impl<'g> Step<'g> {
    fn link(&self) -> Link<'g> {
        Link { holder: self.node, control: self.control, at: self.at }
    }
}

impl Index {
    /// Repairs underfull nodes on the path to a key, until there are none.
    #[cold]
    pub(crate) fn tidy(&self, key: &[u8], guard: &Guard) {
        while retry(|| self.tidy_once(key, guard)) {}
    }

    /// Goes up from the leaf to the anchor and repairs underfull nodes. Returns whether there were any. A node that needs
    /// nothing may be below one that does: a removal that met a change begins again at the leaf.
    fn tidy_once(&self, key: &[u8], guard: &Guard) -> Result<bool, Conflict> {
        let mut way = self.way(key, guard)?;
        let mut mended = false;
        while let Some(step) = way.pop()
            && let Some(above) = way.last_mut()
        {
            let is_first_layer = above.node == self.anchor.link(guard).holder;
            if let Some(holder) = self.mend(*above, step, is_first_layer, guard)? {
                (above.control, mended) = (holder, true);
            }
        }
        Ok(mended)
    }

    /// The nodes from the anchor to the last leaf on the path of a key.
    fn way<'a>(&'a self, key: &[u8], guard: &'a Guard) -> Result<Vec<Step<'a>>, Conflict> {
        let (mut link, mut rest, mut way) = (self.anchor.link(guard), key, Vec::new());
        loop {
            way.push(Step { node: link.holder, control: link.control, at: link.at });
            let slice = Slice::of(rest);
            let leaf = reach(link, slice.bits, |_, Link { holder: node, control, at }| {
                way.push(Step { node, control, at });
                Ok::<_, Conflict>(())
            })?;
            let entry = leaf
                .node
                .find::<Scalar>(leaf.control, slice)
                .map(|at| Ok((at, leaf.node.entry(leaf.control, at)?)))
                .transpose()?;
            let Some((at, Entry::Layer)) = entry else {
                way.push(Step { node: leaf.node, control: leaf.control, at: 0 });
                return Ok(way);
            };
            (link, rest) = (Link { holder: leaf.node, control: leaf.control, at }, &rest[8..]);
        }
    }

    /// Repairs one node, and returns the new control word of its holder; `None` if there is nothing to repair.
    fn mend(
        &self,
        above: Step<'_>,
        step: Step<'_>,
        is_first_layer: bool,
        guard: &Guard,
    ) -> Result<Option<Control>, Conflict> {
        let count = step.control.count();
        match (above.control.is_leaf(), step.control.is_leaf()) {
            (true, true) if count == 0 && !is_first_layer => self.remove_layer(above, step, guard).map(Some),
            (_, false) if count == 1 => self.remove_level(above, step, guard).map(Some),
            (false, true) if count <= LEAF_FEW => self.merge(above, LEAF_MERGED_MAX, guard),
            (false, false) if count <= CHILDREN_FEW => self.merge(above, CHILDREN_MERGED_MAX, guard),
            _ => Ok(None),
        }
    }

    /// Removes an empty layer from the leaf that refers to it.
    fn remove_layer(&self, above: Step<'_>, step: Step<'_>, guard: &Guard) -> Result<Control, Conflict> {
        let mut holder = above.node.lock(above.control)?;
        let root = step.node.lock(step.control)?;
        holder.remove(above.at);
        self.layers.add(-1);
        Ok(self.retire(holder, root, guard))
    }

    /// Replaces a node by its only child.
    fn remove_level(&self, above: Step<'_>, step: Step<'_>, guard: &Guard) -> Result<Control, Conflict> {
        let child = Link { at: 0, ..step.link() }.child()?;
        let mut holder = above.node.lock(above.control)?;
        let node = step.node.lock(step.control)?;
        holder.set_child(above.at, child);
        Ok(self.retire(holder, node, guard))
    }

    /// Merges a child with its right or left neighbour if they have at most `merged_max` entries together.
    fn merge(&self, above: Step<'_>, merged_max: usize, guard: &Guard) -> Result<Option<Control>, Conflict> {
        for at in [Some(above.at), above.at.checked_sub(1)].into_iter().flatten() {
            if at + 1 < above.control.count()
                && let Some(holder) = self.merge_pair(above, at, merged_max, guard)?
            {
                return Ok(Some(holder));
            }
        }
        Ok(None)
    }

    /// Merges child `at` with the next one.
    fn merge_pair(
        &self,
        above: Step<'_>,
        at: usize,
        merged_max: usize,
        guard: &Guard,
    ) -> Result<Option<Control>, Conflict> {
        let [left, right] = [at, at + 1].map(|at| Link { at, ..above.link() });
        let (left, right) = (left.child()?, right.child()?);
        let (left_control, right_control) = (left.stable()?, right.stable()?);
        above.node.check(above.control)?;
        let merged = left_control.count() + right_control.count();
        // A level that was removed beside a neighbour leaves nodes of two levels there.
        if left_control.level() != right_control.level() || merged > merged_max {
            return Ok(None);
        }
        let mut holder = above.node.lock(above.control)?;
        let mut left = left.lock(left_control)?;
        let right = right.lock(right_control)?;
        take_over(&mut left, &right, &holder, at + 1);
        holder.remove_child(at + 1);
        drop(left);
        Ok(Some(self.retire(holder, right, guard)))
    }

    /// Retires a node that its holder no longer refers to.
    fn retire(&self, holder: Locked<'_>, node: Locked<'_>, guard: &Guard) -> Control {
        let control = holder.publish();
        // SAFETY: a node has one holder, which was changed under its lock.
        unsafe { node.retire(&self.anchor.memory, guard) };
        control
    }
}

/// Appends the contents of the right node, which is child `at` of `holder`, to the left one. All three are locked.
fn take_over(left: &mut Locked<'_>, right: &Locked<'_>, holder: &Locked<'_>, at: usize) {
    if left.is_leaf() {
        left.append(&right.own_entries());
        return;
    }
    let mut children = left.own_children();
    let from = children.len();
    children.extend(right.own_children());
    // The right node's first key may be stale after a merge: the holder has the correct one.
    children[from].least = holder.own_children()[at].least;
    left.set_children(&children);
}
