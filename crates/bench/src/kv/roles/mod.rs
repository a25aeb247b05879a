//! A key-value server as shipped, and clients that load it through its own protocol. Every returned value is verified.

mod client;
mod driver;
mod memcached;
mod multiget;
mod server;

pub use client::{Fill, KvFigures, KvLoad};
pub use memcached::{
    BareServer, MemcachedFigures, MemcachedLoad, MemcachedProcess, Serving, SlicedMemcachedLoad, TextOperation,
    installed_version,
};
pub use multiget::{MultiGetFigures, MultiGetLoad};
pub use server::{KvMemcachedServer, KvServer, KvServing};
