//! Fuzzes the ordered index.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dunlin_fuzz::index::check(bytes));
