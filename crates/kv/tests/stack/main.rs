//! Client and service through the whole stack, on fake time.

mod limits;
mod operations;
mod random;
mod restarts;
mod transfer;
mod world;
