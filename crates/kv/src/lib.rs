//! The key-value service: HERD's server and client (Kalia et al., SIGCOMM 2014; thesis chapter 4), and the memcached protocol.
#![deny(unsafe_code)]

pub mod metrics;
