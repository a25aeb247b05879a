//! Transfers records from files into a server, and back: `dunlin kv load` and `dunlin kv dump`.

mod dump;
mod feed;
mod load;

pub use dump::{DumpError, dump_server, dump_snapshot};
pub use load::{LoadError, Loaded, Loading, Misfit, Skipped, Target, Watch, load};
