//! A load for any server of memcached's text protocol over TCP, and two such servers: the installed memcached, and a
//! bare server that answers without parsing.

mod bare;
mod connection;
mod load;
mod process;

pub use bare::BareServer;
pub use load::{MemcachedFigures, MemcachedLoad, SlicedMemcachedLoad, TextOperation};
pub use process::{MemcachedProcess, Serving, installed_version};
