//! Records of files into a server, and back: what `dunlin kv load` and `dunlin kv dump` do.

mod feed;
mod load;

pub use load::{LoadError, Loaded, Loading, Misfit, Skipped, Watch, load};
