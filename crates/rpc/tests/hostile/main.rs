//! Packets that no honest peer sends: at any time, from strangers and from peers, they end nothing, open nothing and cost nothing.
//!
//! | File | What it tries |
//! |---|---|
//! | [`strangers`] | packets of those who have no session |
//! | [`peers`] | packets of those who have one, and lie |
//! | [`hoarders`] | packets of those who want everything |
//! | [`bursts`] | the same at once, before the first of them is answered |
//! | [`forged`] | what somebody says in the name of another |
//! | [`memory`] | how much memory they can make a server hold |
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
