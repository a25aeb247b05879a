//! Datagrams between processes of one host, through shared memory.
//!
//! Every endpoint owns a *region*, a file of mapped memory that is its receive queue. A sender maps the receiver's
//! file. So the memory of a receiver does not grow with its senders, and the receiver finds a packet by looking at one
//! place, as with the receive queue of a NIC. Packet loss is allowed here: when the queue is full, the sender drops.
//!
//! # The queue
//!
//! A ring of cells of two cache lines, designed as a ticketed multi-producer queue. A sender takes tickets for a whole
//! burst with one compare-and-swap of the *tail*, then fills each cell and publishes it with one store of a word that
//! holds the ticket's sequence number; a packet of up to 48 B is one cache line. The receiver looks at the next cell
//! only, copies the packet to private memory, and publishes its *head* once per burst. Packets over
//! [`INLINE_BYTES_MAX`] lie in bulk buffers beside the ring and are copied once by the sender and once by the consumer.
//!
//! # Senders that stop or die
//!
//! A sender may be descheduled, stopped or killed between taking a place and publishing it. The receiver passes such a
//! place before it sleeps, or after some polls: 32 if something was published in one of the next 16 places, and
//! otherwise some hundred. No sender uses its cell on later laps: other senders wait for few polls and lose nothing. A
//! packet that a stopped sender publishes late is delivered late. The places it holds are those its own packets would
//! take, so that all other senders together still have the rest of the queue; a place comes back when the ring has gone
//! round once more.
//!
//! Each endpoint holds a lock on a byte of its own region, and each sender on the byte of its slot in the receiver's
//! region. The kernel releases them when a process ends, however it ends. So a peer's death is seen at once, the places
//! that a dead sender took and did not publish are given up, and its slots and buffers are reused.
//!
//! # Trust
//!
//! Region files are private to the user. Another process of the same user can still write anything into them at any
//! time: that can lose, forge or garble packets, which the RPC layer survives, but no length, index or name is used
//! before a private copy of it was checked. (It can also shorten the file, which kills this process by SIGBUS; it could
//! as well send the signal itself.)
//!
//! Start reading at [`ShmTransport`], then `sender.rs` and `receiver.rs`.

mod backing;
mod bell;
mod bulk;
mod burst;
mod bytes;
mod cell;
mod config;
mod endpoint;
mod file;
mod futex;
mod holes;
mod intent;
mod layout;
mod lock;
mod mapping;
mod peers;
pub mod raw;
mod receiver;
mod region;
mod sender;

#[cfg(all(test, not(miri)))]
mod hostile_tests;
#[cfg(test)]
mod queue_tests;
#[cfg(test)]
mod sleep_tests;

pub use bytes::SharedBytes;
pub use config::ShmConfig;
pub use endpoint::ShmTransport;
pub use file::sweep as remove_dead;
pub use layout::INLINE_BYTES_MAX;
