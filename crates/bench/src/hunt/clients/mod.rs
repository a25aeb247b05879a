//! Clients of a key-value store in a run, of whichever kind: what all of them do and when, what they saw, and whether it could be.
//!
//! | File | What it holds |
//! |---|---|
//! | `phases` | what clients do in each phase of a run, up to its verdict |
//! | `driver` | the program of a client |
//! | `history` | what was done, and when |
//! | `object` | what is kept under a key, as the judge needs it |
//! | `item` | that of a key-value store: its words, and what operations do to one item |
//! | `patience` | operations that are given up |
//! | `judge` | whether there is an order in which all answers are right |

pub mod driver;
pub mod history;
pub mod item;
pub mod judge;
pub mod object;
pub mod patience;
pub mod phases;
