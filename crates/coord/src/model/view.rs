//! Members, leases and a subtree at one revision.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::state::{Leaf, State};
use crate::error::CoordError;
use crate::path::{check_root, is_below};
use crate::types::{Entry, VIEW_BYTES_MAX, View};
use crate::wire::Answer;

/// The items at a root and below it.
fn within<'a, V>(map: &'a BTreeMap<String, V>, root: &'a str) -> impl Iterator<Item = (&'a String, &'a V)> + 'a {
    let following = map.range::<str, _>((Bound::Included(root), Bound::Unbounded));
    let beginning = following.take_while(move |(path, _)| path.starts_with(root));
    beginning.filter(move |(path, _)| *path == root || is_below(path, root))
}

impl State {
    /// All members, and the leases and entries at a root and below it.
    pub fn view(&self, root: &str) -> Result<Answer, CoordError> {
        check_root(root)?;
        // Check the size before copying a large tree.
        if within(&self.tree, root).map(|(path, leaf)| path.len() + leaf.value.len()).sum::<usize>() > VIEW_BYTES_MAX {
            return Err(View::too_large(root));
        }
        let entry = |(path, leaf): (&String, &Leaf)| {
            let (version, value) = (leaf.version, leaf.value.clone());
            Entry { path: path.clone(), version, value }
        };
        let view = View {
            members: self.all_members(),
            leases: within(&self.leases, root).map(|(name, held)| held.seen(name)).collect(),
            entries: within(&self.tree, root).map(entry).collect(),
        };
        Ok(Answer::View { view: view.check_bytes(root)? })
    }
}
