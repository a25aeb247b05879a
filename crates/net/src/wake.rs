//! Descriptors that wake a thread: what transports hand to foreign event loops.
//!
//! [`Event`] is a counter that any thread raises; [`WakeSet`] joins several descriptors into one. Both are kernel
//! objects (eventfd, epoll), so any other event loop can wait for them in turn.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};

use crate::error::NetError;

/// A descriptor that is readable from the time any thread raises it until it is cleared.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// An event that is not raised.
    ///
    /// # Errors
    /// [`NetError::Io`] if the system has no descriptor left.
    pub fn new() -> Result<Self, NetError> {
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        made.map(Event).map_err(refused("make an eventfd to wake a thread with"))
    }

    /// Makes it readable.
    pub fn raise(&self) {
        // It fails only when the counter is at its maximum: then it is readable anyway.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable; returns whether it was readable.
    pub fn clear(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }

    /// The descriptor of an event that is always raised: for transports that never sleep, because they do not run in
    /// real time.
    ///
    /// # Errors
    /// As [`Event::new`].
    pub fn raised_fd() -> Result<OwnedFd, NetError> {
        let event = Event::new()?;
        event.raise();
        Ok(event.0)
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A descriptor that is readable while any of its members is.
#[derive(Debug)]
pub struct WakeSet(OwnedFd);

impl WakeSet {
    /// A set without members.
    ///
    /// # Errors
    /// [`NetError::Io`] if the system has no descriptor left.
    pub fn new() -> Result<Self, NetError> {
        epoll::create(epoll::CreateFlags::CLOEXEC)
            .map(WakeSet)
            .map_err(refused("make an epoll set to wake a thread with"))
    }

    /// Adds `member` to the set, until [`WakeSet::remove`] or until it is closed.
    ///
    /// # Errors
    /// The system's error: `member` is in the set already or cannot be waited for, or there are too many.
    pub fn add(&self, member: impl AsFd) -> io::Result<()> {
        Ok(epoll::add(&self.0, member, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?)
    }

    /// Removes `member`. Does nothing if it is not in the set.
    pub fn remove(&self, member: impl AsFd) {
        let _ = epoll::delete(&self.0, member);
    }

    /// Whether a member is readable now.
    pub fn is_readable(&self) -> bool {
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }];
        // No error is known to occur here; a needless look for work does no harm.
        epoll::wait(&self.0, &mut events[..], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) != Ok(0)
    }

    /// Returns a duplicate descriptor of this set for the caller to keep.
    ///
    /// # Errors
    /// [`NetError::Io`] if the system has no descriptor left.
    pub fn fd(&self) -> Result<OwnedFd, NetError> {
        owned(self)
    }
}

impl AsFd for WakeSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Duplicates a descriptor.
pub(crate) fn owned(fd: impl AsFd) -> Result<OwnedFd, NetError> {
    fd.as_fd()
        .try_clone_to_owned()
        .map_err(|cause| NetError::Io { doing: "duplicate a descriptor to wake a thread with".into(), cause })
}

/// Sleeps until `fd` is readable or `timeout` is over, and returns whether it is readable; may return early.
pub fn wait_readable(fd: impl AsFd, timeout: Duration) -> bool {
    sleep_at(&mut [readable(&fd)], timeout)
}

/// Sleeps until one of `fds` is readable or `timeout` is over, and returns whether the first of them is; may return
/// early.
pub(crate) fn sleep_at(fds: &mut [PollFd<'_>], timeout: Duration) -> bool {
    let timeout =
        Timespec { tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: timeout.subsec_nanos().into() };
    poll(fds, Some(&timeout)).is_ok_and(|ready| ready > 0) && !fds[0].revents().is_empty()
}

/// An entry for [`sleep_at`].
pub(crate) fn readable(fd: &impl AsFd) -> PollFd<'_> {
    PollFd::new(fd, PollFlags::IN)
}

fn refused(doing: &'static str) -> impl Fn(rustix::io::Errno) -> NetError {
    move |errno| NetError::Io { doing: doing.into(), cause: errno.into() }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_readable_until_it_is_cleared() {
        let (event, set) = (Event::new().unwrap(), WakeSet::new().unwrap());
        set.add(&event).unwrap();
        assert!(!set.is_readable() && !event.clear());
        event.raise();
        event.raise();
        assert!(set.is_readable() && set.is_readable());
        assert!(event.clear());
        assert!(!set.is_readable());
    }

    #[test]
    fn a_set_in_a_set_passes_on_what_its_members_say() {
        let (event, inner, outer) = (Event::new().unwrap(), WakeSet::new().unwrap(), WakeSet::new().unwrap());
        outer.add(&inner).unwrap();
        inner.add(&event).unwrap();
        assert!(!outer.is_readable());
        event.raise();
        assert!(outer.is_readable());
        inner.remove(&event);
        inner.remove(&event);
        assert!(!outer.is_readable());
        inner.add(&event).unwrap();
        assert!(outer.is_readable(), "what was there before the membership counts");
    }

    #[test]
    fn a_sleep_ends_at_the_event_or_at_its_timeout() {
        let event = Event::new().unwrap();
        assert!(!sleep_at(&mut [readable(&event)], Duration::ZERO));
        event.raise();
        let start = std::time::Instant::now();
        assert!(sleep_at(&mut [readable(&event)], Duration::from_secs(20)));
        assert!(start.elapsed() < Duration::from_secs(20));
        assert!(Event::raised_fd().is_ok());
    }
}
