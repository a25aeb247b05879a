//! Whole clusters with their logs on simulated disks that hang, over loopback, on fake time.

mod forged;
mod hangs;
mod harness;
mod pieces;
mod room;
mod snapshots;
