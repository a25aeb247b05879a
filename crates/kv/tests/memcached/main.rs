//! The memcached protocol: compared byte by byte with the answers of memcached 1.6.45, split everywhere, with several
//! cores, and over sockets.

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
mod stalls;
mod work;
