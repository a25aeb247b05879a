//! Packets that no well-behaved peer sends: whenever they come, from strangers or from peers, they end nothing, open
//! nothing and cost nothing.
//!
//! | File | What it tries |
//! |---|---|
//! | [`strangers`] | packets of senders without a session |
//! | [`peers`] | lying packets of peers with a session |
//! | [`hoarders`] | peers that want everything |
//! | [`bursts`] | handshakes that arrive together, before the first is answered |
//! | [`forged`] | packets with a forged sender |
//! | [`memory`] | how much memory peers can make a server hold |
//! | [`parsing`] | properties of the parsers |

#[path = "../pair/mod.rs"]
mod pair;

mod bursts;
mod forged;
mod hoarders;
mod memory;
mod parsing;
mod peers;
mod raw;
mod strangers;
