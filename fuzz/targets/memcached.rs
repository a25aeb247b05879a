//! Fuzzes the memcached protocol.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dunlin_fuzz::memcached::check(bytes));
