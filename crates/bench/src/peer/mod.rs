//! The processes of an experiment.
//!
//! Servers and clients run in processes of their own, as they would in life. The program executes itself with one hidden
//! argument and the two ends talk in lines of JSON:
//!
//! | Line | From | Says |
//! |---|---|---|
//! | `{"role": "...", "core": 1, "task": {...}}` | parent, first | what to be, on which core, with which parameters |
//! | `{"ready": ...}` | child | others may come; for example the address it listens at |
//! | `{"live": [METRIC, FIGURE]}` | child | a figure to show while it runs |
//! | `stop` | parent | finish and give the result |
//! | `{"result": ...}` or `{"error": "..."}` | child, last | the outcome |
//!
//! No process outlives its use: a child ends when its standard input does, which the system closes when the parent dies
//! however it dies, and a parent kills a child that is past its time or no longer wanted.

mod child;
mod launcher;
mod message;
mod parent;

pub use child::{Control, Entry, Role, serve};
pub use launcher::Launcher;
pub use parent::Peer;

/// The hidden argument that makes the program a peer.
pub const ARGUMENT: &str = "__peer";
