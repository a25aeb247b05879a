//! A load for anything that speaks memcached's text protocol over TCP, and what it is put on: the memcached of the system, and a bare
//! server that answers without looking.

mod bare;
mod connection;
mod load;
mod process;

pub use bare::BareServer;
pub use load::{MemcachedFigures, MemcachedLoad, TextOperation};
pub use process::{MemcachedProcess, Serving, installed_version};
