//! A walk over all nodes, without recursion: layers may be thousands deep.

use crate::guard::Guard;
use crate::index::Index;
use crate::node::{Conflict, Control, Entry, LeafCopy, Link, Node};

/// A node that the walk has reached.
#[derive(Debug)]
pub(crate) struct Stop<'g> {
    pub(crate) node: Node<'g>,
    pub(crate) control: Control,
    /// Its contents, if it is a leaf.
    pub(crate) leaf: Option<LeafCopy<'g>>,
    /// Nodes above it, in its layer and all others, without the anchor.
    pub(crate) depth: usize,
    /// Layers above it.
    pub(crate) layer: usize,
    pub(crate) is_root_of_layer: bool,
    /// Bounds of its slices: from the first on, up to the second.
    pub(crate) slices: (u64, u64),
}

impl Index {
    /// Visits all nodes. With concurrent writes it may miss nodes that they change: then `conflict` is called.
    pub(crate) fn walk<'a>(&'a self, guard: &'a Guard, mut visit: impl FnMut(&Stop<'a>), mut conflict: impl FnMut()) {
        let root = Ahead { link: self.anchor.link(guard), depth: 0, layer: 0, slices: (0, u64::MAX) };
        let mut ahead = vec![root];
        while let Some(next) = ahead.pop() {
            let before = ahead.len();
            if next.pass(&mut ahead, &mut visit).is_err() {
                ahead.truncate(before);
                conflict();
            }
        }
    }
}

/// A node still to be visited.
struct Ahead<'g> {
    link: Link<'g>,
    depth: usize,
    layer: usize,
    slices: (u64, u64),
}

impl<'g> Ahead<'g> {
    fn pass(self, ahead: &mut Vec<Ahead<'g>>, visit: &mut impl FnMut(&Stop<'g>)) -> Result<(), Conflict> {
        let Ahead { link, depth, layer, slices } = self;
        let node = link.child()?;
        let control = node.stable()?;
        link.check()?;
        let leaf = if control.is_leaf() { Some(node.copy(control)?) } else { None };
        if let Some(leaf) = &leaf {
            let layers = (0..leaf.count()).filter(|&at| matches!(leaf.entry(at), Entry::Layer));
            ahead.extend(layers.map(|at| {
                let link = Link { holder: node, control, at };
                Ahead { link, depth: depth + 1, layer: layer + 1, slices: (0, u64::MAX) }
            }));
        } else {
            let children = node.children(control)?;
            ahead.extend(children.iter().enumerate().map(|(at, child)| {
                let low = if at == 0 { slices.0 } else { child.least };
                let high = children.get(at + 1).map_or(slices.1, |next| next.least.saturating_sub(1));
                Ahead { link: Link { holder: node, control, at }, depth: depth + 1, layer, slices: (low, high) }
            }));
        }
        visit(&Stop { node, control, leaf, depth, layer, is_root_of_layer: link.control.is_leaf(), slices });
        Ok(())
    }
}
