//! A check of all invariants that hold between writes, for tests.

use crate::guard::Guard;
use crate::index::Index;
use crate::node::{Entry, LeafCopy, Link, Scalar, Shape, Target};
use crate::slice::Slice;
use crate::walk::Stop;

impl Index {
    /// Checks the invariants of all nodes and returns the number of items. For tests: there must be no concurrent
    /// writes.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn verify(&self, guard: &Guard) -> Result<usize, String> {
        let (mut items, mut fault, mut nodes) = (0, None, [1, 0, 0, 0]);
        let mut conflicts = 0;
        let visit = |stop: &Stop<'_>| {
            nodes[stop.control.shape() as usize] += 1;
            match check(stop) {
                Ok(found) => items += found,
                Err(what) => fault = fault.take().or_else(|| Some(format!("{what}: {stop:?}"))),
            }
        };
        self.walk(guard, visit, || conflicts += 1);
        if conflicts > 0 {
            return Err(format!(
                "{conflicts} nodes were changed during the check, or are locked or obsolete but in the tree"
            ));
        }
        if let Some(fault) = fault {
            return Err(fault);
        }
        if items != self.len() {
            return Err(format!("the leaves have {items} items, the counter says {}", self.len()));
        }
        for shape in Shape::ALL {
            let (found, taken) = (nodes[shape as usize], self.anchor.memory.nodes(shape));
            // Retired nodes that are not freed yet count as taken, too: `retired_nodes` counts them.
            if found > taken {
                return Err(format!("{found} nodes of shape {shape:?} are in the tree, but {taken} were taken"));
            }
        }
        Ok(items)
    }

    /// Allocated nodes that are not in the tree: retired ones that readers may still see. For tests of leaks.
    #[doc(hidden)]
    pub fn retired_nodes(&self, guard: &Guard) -> usize {
        let mut nodes = 1;
        self.walk(guard, |_| nodes += 1, || {});
        Shape::ALL.iter().map(|&shape| self.anchor.memory.nodes(shape)).sum::<usize>() - nodes
    }
}

fn check(stop: &Stop<'_>) -> Result<usize, String> {
    match &stop.leaf {
        Some(leaf) => check_leaf(stop, leaf),
        None => check_interior(stop).map(|()| 0),
    }
}

fn check_interior(stop: &Stop<'_>) -> Result<(), String> {
    let Stop { node, control, slices: (low, high), .. } = *stop;
    let children = node.children(control).map_err(|_| "changed during the check")?;
    if children.len() < 2 {
        return Err(format!("an interior node with {} children", children.len()));
    }
    let keys: Vec<u64> = children.iter().map(|child| child.least).collect();
    if !keys[1..].windows(2).all(|pair| pair[0] < pair[1]) {
        return Err(format!("keys are out of order: {keys:x?}"));
    }
    if keys[1..].iter().any(|&key| key <= low || high < key) {
        return Err(format!("keys are outside of what the holder says: {keys:x?}"));
    }
    for at in 0..children.len() {
        let child = Link { holder: node, control, at }.child().map_err(|_| "changed during the check")?;
        let level = child.control().level();
        if level >= control.level() {
            return Err(format!("a node of level {} has a child of level {level}", control.level()));
        }
    }
    // Pilots, padding and the first key: all routes are correct.
    for (at, &key) in keys.iter().enumerate() {
        let least = if at == 0 { low } else { key };
        let last = keys.get(at + 1).map_or(high, |next| next - 1);
        for bits in [least, last] {
            if node.route::<Scalar>(&Target::new(bits)) != at {
                return Err(format!("{bits:x} leads to child {}, not {at}", node.route::<Scalar>(&Target::new(bits))));
            }
        }
    }
    Ok(())
}

fn check_leaf(stop: &Stop<'_>, leaf: &LeafCopy<'_>) -> Result<usize, String> {
    let Stop { node, control, slices: (low, high), .. } = *stop;
    if control.count() == 0 && stop.is_root_of_layer && stop.layer > 0 {
        return Err("an empty layer".into());
    }
    if !stop.is_root_of_layer && control.shape() != Shape::Leaf28 {
        return Err("a small leaf that is not the root of a layer".into());
    }
    let mut items = 0;
    for at in 0..leaf.count() {
        let slice = leaf.slice(at);
        if at > 0 && leaf.slice(at - 1) >= slice {
            return Err(format!("entry {at} is out of order: {slice:x?}"));
        }
        if slice.bits < low || high < slice.bits {
            return Err(format!("entry {at} is in the wrong leaf: {slice:x?}"));
        }
        if leaf.fingerprint(at) != Slice::fingerprint(slice.bits) || node.find::<Scalar>(control, slice) != Some(at) {
            return Err(format!("entry {at} is not found by its fingerprint: {slice:x?}"));
        }
        if slice.class < 8 && slice.bits << (8 * slice.class) != 0 {
            return Err(format!("entry {at} has more bytes than its class says: {slice:x?}"));
        }
        items += usize::from(!matches!(leaf.entry(at), Entry::Layer));
    }
    Ok(items)
}
