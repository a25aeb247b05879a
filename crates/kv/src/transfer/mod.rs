//! Records of files into a server, and back: what `dunlin kv load` and `dunlin kv dump` do.

mod dump;
mod feed;
mod load;

pub use dump::{DumpError, dump_server, dump_snapshot};
pub use load::{LoadError, Loaded, Loading, Misfit, Skipped, Watch, load};
