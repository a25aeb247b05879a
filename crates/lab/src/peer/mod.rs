//! The processes of an experiment.
//!
//! Servers and clients run in separate processes, as in production. The program executes itself with one hidden
//! argument, and the two ends exchange lines of JSON:
//!
//! | Line | From | Says |
//! |---|---|---|
//! | `{"role": "...", "core": 1, "task": {...}}` | parent, first | the role, its core and its parameters |
//! | `{"ready": ...}` | child | others may connect; for example the address it listens at |
//! | `{"live": [METRIC, FIGURE]}` | child | a figure to show while it runs |
//! | `stop` | parent | finish and return the result |
//! | `{"result": ...}` or `{"error": "..."}` | child, last | the outcome |
//!
//! No process outlives its use: a child ends when its standard input does, which the system closes when the parent dies
//! for any reason, and a parent kills a child that exceeds its time or is no longer needed.

mod child;
mod launcher;
mod message;
mod parent;

pub use child::{Control, Entry, Role, serve};
pub use launcher::Launcher;
pub use parent::Peer;

/// The hidden argument that makes the program a peer.
pub const ARGUMENT: &str = "__peer";
