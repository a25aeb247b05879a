//! Packet formats: the [header] of every packet, the bodies of [control] packets and of those about several [packets],
//! and the payload beside an error status ([failure]).
//!
//! Parsing is total: any bytes yield a value or an error, and never change anything.

pub mod control;
pub mod failure;
pub mod header;
pub mod packets;

pub use header::{HEADER_BYTES, HEADER_BYTES_MAX, Header, Kind, MASK_24, Multi, ParseError, Status};
