//! The memcached protocol: byte by byte against the answers of memcached 1.6.45, cut everywhere, over several cores, and over sockets.

mod bytes;
mod commands;
mod cores;
mod counts;
mod dribbles;
mod dump;
mod evictions;
mod fairness;
mod full;
mod hostile;
mod lists;
mod memory;
mod script;
mod sockets;
mod work;
