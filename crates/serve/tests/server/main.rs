//! Whole servers: how they start, end and fail, with either event loop.

mod failing;
mod graceful;
mod inline;
mod letters;
mod program;
mod starting;
