//! Fuzzes the reader of a log's segments.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dunlin_fuzz::log::check(bytes));
