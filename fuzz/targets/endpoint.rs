//! Fuzzes live endpoints with sequences of packets.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dunlin_fuzz::endpoint::check(bytes));
