//! Whole clusters with their logs on simulated disks that hang, over loopback, on fake time.

mod hangs;
mod harness;
mod room;
mod snapshots;
