//! Operations on an ordered index in memory, and an index server with its clients.

mod load;
mod ops;
mod server;

pub(super) use load::{IndexFigures, IndexLoad, Scanning};
pub(super) use ops::keys::{Shape, item_key};
pub(super) use ops::{Beside, FEW, IndexOps, Limit, MapFigures, OpsCase, SUMMED, SUMMED_FEW, System, Work};
pub(super) use server::IndexServer;
