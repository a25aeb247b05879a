//! Virtual time: the queue of events to come, and what an event is.

pub(crate) mod event;
pub(crate) mod queue;
pub(crate) mod time;

pub(crate) use event::Event;
pub(crate) use queue::EventQueue;
