//! What the fuzz targets do with their input.
//!
//! | Module | What it feeds |
//! |---|---|
//! | [`packet`] | the parsers of headers and of control packets |
//! | [`endpoint`] | two live endpoints with sessions and calls in progress |
//! | [`memcached`] | the memcached protocol of a server of one core |
//! | [`seeds`] | the first corpus: one packet of each kind |

pub mod endpoint;
pub mod memcached;
pub mod packet;
pub mod seeds;
