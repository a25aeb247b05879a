//! Clients of any kind of key-value store in a run: their work and its timing, their observations, and whether these
//! are possible.
//!
//! | File | What it holds |
//! |---|---|
//! | `phases` | the phases of a run, up to its verdict |
//! | `driver` | the program of a client |
//! | `history` | the recorded operations |
//! | `object` | the object under a key, specified for the judge |
//! | `item` | the object of a key-value store: its operations, and their effect on one item |
//! | `patience` | operations that time out |
//! | `judge` | whether there is an order in which all answers are right |

pub mod driver;
pub mod history;
pub mod item;
pub mod judge;
pub mod object;
pub mod patience;
pub mod phases;
