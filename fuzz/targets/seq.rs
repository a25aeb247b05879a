//! Fuzzes the messages and datagrams of a sequencer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| dunlin_fuzz::seq::check(bytes));
