//! The papers' experiments as commands.
#![forbid(unsafe_code)]

pub mod measure;
pub mod report;
