//! Sleeping until a packet comes or another thread calls.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;
use std::time::Duration;

use crate::error::NetError;
use crate::transport::Waker;

use super::socket::Socket;

/// Ends a sleep from any thread, by an event counter of the kernel that wakers keep open however long they live.
pub(super) struct Wake {
    event: Arc<File>,
}

impl Wake {
    pub(super) fn new() -> Result<Self, NetError> {
        // SAFETY: no pointers; a descriptor that is returned is ours alone.
        let event = unsafe {
            match libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) {
                fd if fd >= 0 => File::from_raw_fd(fd),
                _ => return Err(NetError::last_os("making an eventfd to wake a UDP transport")),
            }
        };
        Ok(Wake { event: Arc::new(event) })
    }

    /// A handle that ends this or the next [`Wake::wait`].
    pub(super) fn waker(&self) -> Waker {
        let event = Arc::clone(&self.event);
        // The write fails only when the counter is at its maximum: then a wake-up is due anyway.
        Waker::new(move || drop((&*event).write(&1u64.to_ne_bytes())))
    }

    /// Sleeps until a socket is readable or has an error, a waker was used, or `timeout` is over.
    pub(super) fn wait(&self, main: &Socket, direct: Option<&Socket>, timeout: Duration) {
        let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // The kernel passes over an entry with a negative descriptor.
        let mut fds = [poll(self.event.as_raw_fd()), poll(main.fd()), poll(direct.map_or(-1, Socket::fd))];
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // SAFETY: the pointers are to three entries, a time, and no signal mask.
        let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), 3, &timeout, std::ptr::null()) };
        if ready > 0 && fds[0].revents != 0 {
            let mut count = [0; 8];
            let _: io::Result<usize> = (&*self.event).read(&mut count);
        }
    }
}
