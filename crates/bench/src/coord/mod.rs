//! The experiments on the cluster manager.

mod coord_scale;
pub(crate) mod roles;

use dunlin_lab::peer::Entry;

use crate::experiments::{Area, Experiment};

pub(crate) const AREA: Area = Area { experiments: EXPERIMENTS, roles: ROLES, papers: "" };

const EXPERIMENTS: &[Experiment] = &[Experiment {
    name: "coord-scale",
    paper: "beyond the papers",
    about: "what members cost the cluster manager, and the time until the last of 1 to 1,000 watchers is told",
    run: coord_scale::run,
}];

const ROLES: &[Entry] =
    &[Entry::of::<roles::CoordNode>(), Entry::of::<roles::CoordMembers>(), Entry::of::<roles::CoordWatchers>()];
