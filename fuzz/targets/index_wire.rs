//! Fuzzes the requests and answers of the index service.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dunlin_fuzz::index_wire::check(bytes));
