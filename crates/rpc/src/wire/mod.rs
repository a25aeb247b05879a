//! Packet formats: the [header] of every packet, and the bodies of [control] packets and of
//! those that speak of several [packets].
//!
//! Parsing is total: any bytes give a value or an error, and never change anything.

pub mod control;
pub mod header;
pub mod packets;

pub use header::{HEADER_BYTES, HEADER_BYTES_MAX, Header, Kind, MASK_24, Multi, ParseError, Status};
