//! Virtual time: events and their queue.

pub(crate) mod event;
pub(crate) mod queue;
pub(crate) mod time;

pub(crate) use event::Event;
pub(crate) use queue::EventQueue;
