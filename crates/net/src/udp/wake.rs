//! Sleeping until a packet comes or another thread wakes this one: in a system call of our own, or in a foreign event
//! loop.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::error::NetError;
use crate::transport::Waker;
use crate::wake::{Event, WakeSet, readable, sleep_at};

use super::socket::Socket;

/// Ends a sleep from any thread, by an event that wakers keep open as long as they live.
pub(super) struct Wake {
    event: Arc<Event>,
    /// For foreign event loops, once one asked for a descriptor. The event is always a member, the sockets only while
    /// this is armed: the kernel need not report packets that come while nobody sleeps.
    foreign: Option<WakeSet>,
    is_armed: bool,
}

/// Which socket may have packets after a sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Woken {
    /// In the connected socket, and the main one had none.
    ByDirect,
    /// Either, or none.
    Otherwise,
}

impl Wake {
    pub(super) fn new() -> Result<Self, NetError> {
        Ok(Wake { event: Arc::new(Event::new()?), foreign: None, is_armed: false })
    }

    /// A handle that ends this or the next sleep.
    pub(super) fn waker(&self) -> Waker {
        let event = Arc::clone(&self.event);
        Waker::new(move || event.raise())
    }

    /// Sleeps until a socket is readable or has an error, a waker was used, or `timeout` is over.
    pub(super) fn wait(&self, main: &Socket, direct: Option<&Socket>, timeout: Duration) -> Woken {
        let (event, main) = (readable(&*self.event), readable(main));
        let mut woken = Woken::Otherwise;
        let is_raised = match direct {
            Some(direct) => {
                let mut fds = [event, main, readable(direct)];
                let is_raised = sleep_at(&mut fds, timeout);
                if fds[1].revents().is_empty() && !fds[2].revents().is_empty() {
                    woken = Woken::ByDirect;
                }
                is_raised
            }
            None => sleep_at(&mut [event, main], timeout),
        };
        if is_raised {
            self.event.clear();
        }
        woken
    }

    /// A descriptor for a foreign event loop.
    pub(super) fn fd(&mut self) -> Result<OwnedFd, NetError> {
        if let Some(set) = &self.foreign {
            return set.fd();
        }
        let set = WakeSet::new()?;
        set.add(&*self.event)
            .map_err(|cause| NetError::Io { doing: "wait for a wake-up of a UDP transport".into(), cause })?;
        self.foreign.insert(set).fd()
    }

    /// Makes the foreign event loop wake up for what comes from now on. Returns false if something is there already.
    pub(super) fn arm(&mut self, main: &Socket, direct: Option<&Socket>) -> bool {
        let Some(set) = &self.foreign else { return false };
        self.is_armed = true;
        // If the kernel cannot add a socket, because it is out of memory, the socket is polled whenever a sleep ends.
        let is_member = set.add(main).is_ok() && direct.is_none_or(|direct| set.add(direct).is_ok());
        if is_member && !set.is_readable() {
            return true;
        }
        self.disarm(main, direct);
        false
    }

    /// Stops waking the foreign event loop.
    pub(super) fn disarm(&mut self, main: &Socket, direct: Option<&Socket>) {
        let (Some(set), true) = (&self.foreign, self.is_armed) else { return };
        self.is_armed = false;
        set.remove(main);
        if let Some(direct) = direct {
            set.remove(direct);
        }
        self.event.clear();
    }
}
