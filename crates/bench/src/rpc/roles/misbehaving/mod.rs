//! Clients that misbehave, and the server that must withstand them. Each reproduces the cause of a fault found in a
//! review, until it is stopped.

mod connections;
mod connects;
mod counted;
mod forged;
mod guesses;
mod guesses_in_name;
mod hoarder;
mod losing;
mod lost_calls;
mod raw;
mod sender;
mod server;
mod short_path;
mod slices;
mod stopper;
mod unreachable;

pub use connections::{Connections, Holding, UNREAD_BYTES};
pub use connects::{Claims, ConnectBursts};
pub use counted::{AskCounted, Counted};
pub use guesses::Guesses;
pub use guesses_in_name::ForgedGuesses;
pub use hoarder::Hoarder;
pub use lost_calls::LostCalls;
pub use sender::Sender;
pub use server::{BULK_BYTES, LimitedServer, RpcServing};
pub use short_path::{ShortPath, ShortPathCalls};
pub use slices::{Both, Processes, Slice, Sliced, SlicedEchoes, Slicing};
pub use stopper::{Stopped, Stopper};
pub use unreachable::ForgedUnreachables;
