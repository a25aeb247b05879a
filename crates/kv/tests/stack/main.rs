//! Client and service through the whole stack, on simulated time.

mod disks;
mod limits;
mod operations;
mod random;
mod restarts;
mod transfer;
mod world;
