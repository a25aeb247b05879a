//! Fuzzes the reader and the loader of snapshots.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dunlin_fuzz::snapshot::check(bytes));
