//! The socket: opened with its options, then the few system calls of the packet path as safe functions. They bypass the
//! C library, whose wrappers prepare for cancellation of the thread: that costs as much as building the packet.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use arrayvec::ArrayVec;

use super::control::{self, Control};
use super::sockaddr::SockAddr;
use super::train::TRAIN_DATAGRAMS_MAX;

/// A non-blocking UDP socket.
pub(super) struct Socket {
    inner: socket2::Socket,
    /// Whether the last receive found something.
    pub(super) queue: Queue,
    /// The last count of drops that the kernel reported.
    pub(super) drops: u32,
}

/// What the next receive from a socket's queue may find.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    /// It was empty a moment ago: asking for a second arrival would delay the first.
    Empty,
    /// There was something just now, so there may be more.
    Busy,
}

/// A datagram that was received, or several of one size from one sender that the kernel joined.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    /// The sender; `None` if the kernel gave no IPv4 or IPv6 address.
    pub(super) from: Option<SocketAddr>,
    /// Bytes received.
    pub(super) len: usize,
    /// Bytes of every joined datagram but the last. Never 0.
    pub(super) segment: usize,
    /// Datagrams that the kernel has dropped at this socket since it was opened (wrapping), if it reports them.
    pub(super) drops: Option<u32>,
    /// Whether the buffer was too short for it.
    pub(super) truncated: bool,
    /// Whether a switch marked it (ECN).
    pub(super) ecn_marked: bool,
}

/// An error that the network reported for an earlier send.
pub(super) struct SendError {
    /// The destination of that datagram.
    pub(super) to: Option<SocketAddr>,
    /// Whether the host reported that nobody listens at the port.
    pub(super) refused: bool,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl Socket {
    /// Wraps a socket whose options are set.
    pub(super) fn new(inner: socket2::Socket) -> Self {
        Socket { inner, queue: Queue::Empty, drops: 0 }
    }

    pub(super) fn inner(&self) -> &socket2::Socket {
        &self.inner
    }

    pub(super) fn fd(&self) -> RawFd {
        self.inner.as_raw_fd()
    }

    /// Sends one datagram, with the least work. Without `to`, here and below, it goes to the peer of a connected
    /// socket.
    #[inline]
    pub(super) fn send_to(&self, bytes: &[u8], to: Option<&SockAddr>) -> io::Result<()> {
        let (name, name_len) = to.map_or((std::ptr::null(), 0), |to| (to.as_ptr(), to.len() as usize));
        // SAFETY: both pointers come with the lengths of what they point at.
        let sent = unsafe {
            libc::syscall(libc::SYS_sendto, self.fd() as usize, bytes.as_ptr(), bytes.len(), 0usize, name, name_len)
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Sends the bytes of `slices` as datagrams of `segment` bytes (the last may be shorter), or as one without it.
    pub(super) fn send_slices(
        &self,
        slices: &[IoSlice<'_>],
        to: Option<&SockAddr>,
        segment: Option<u16>,
    ) -> io::Result<()> {
        let mut header = message_to(slices, to);
        let mut room;
        if let Some(segment) = segment {
            room = Control::segment(segment);
            room.attach(&mut header);
        }
        // SAFETY: the header points at slices, address and control room that outlive the call; the kernel only reads
        // them.
        let sent = unsafe { libc::syscall(libc::SYS_sendmsg, self.fd() as usize, &raw const header, 0usize) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Sends each element of `datagrams` as one, and returns how many were sent. At most [`TRAIN_DATAGRAMS_MAX`] are
    /// tried.
    pub(super) fn send_each(&self, datagrams: &[&[IoSlice<'_>]], to: Option<&SockAddr>) -> io::Result<usize> {
        let mut headers: ArrayVec<libc::mmsghdr, TRAIN_DATAGRAMS_MAX> = ArrayVec::new();
        for slices in datagrams.iter().take(TRAIN_DATAGRAMS_MAX) {
            headers.push(libc::mmsghdr { msg_hdr: message_to(slices, to), msg_len: 0 });
        }
        let (fd, count) = (self.fd() as usize, headers.len());
        // SAFETY: as in `send_slices`, for each header; the kernel writes only msg_len.
        let sent = unsafe { libc::syscall(libc::SYS_sendmmsg, fd, headers.as_mut_ptr(), count, 0usize) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }

    /// Takes one arrival into `buffer`; [`io::ErrorKind::WouldBlock`] if there is none.
    #[inline]
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<Arrival> {
        let mut from = SockAddr::empty();
        let mut room = Control::<{ control::RECEIVE_BYTES }>::empty();
        let mut slice = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut header = message_from(&mut slice, Some(&mut from));
        room.attach(&mut header);
        // SAFETY: the header points at a buffer, address and control room of the lengths given, all exclusively ours.
        let len = unsafe { libc::syscall(libc::SYS_recvmsg, self.fd() as usize, &raw mut header, 0usize) };
        if len < 0 {
            return Err(io::Error::last_os_error());
        }
        from.set_len(header.msg_namelen);
        // SAFETY: the call above filled the header in; the room is alive.
        Ok(unsafe { arrival(&header, from.to_std(), len as usize) })
    }

    /// As [`Socket::receive`], with the least work, for a socket connected to `peer` whose datagrams are never joined.
    /// Drops are not reported.
    #[inline]
    pub(super) fn receive_connected(&self, buffer: &mut [u8], peer: SocketAddr) -> io::Result<Arrival> {
        let nobody = std::ptr::null_mut::<libc::sockaddr>();
        let (fd, to, len) = (self.fd() as usize, buffer.as_mut_ptr(), buffer.len());
        // SAFETY: the pointer comes with the length of the buffer, which is exclusively ours; no address is requested.
        let len = unsafe { libc::syscall(libc::SYS_recvfrom, fd, to, len, 0usize, nobody, nobody) };
        if len < 0 {
            return Err(io::Error::last_os_error());
        }
        let len = len as usize;
        Ok(Arrival { from: Some(peer), len, segment: len.max(1), drops: None, truncated: false, ecn_marked: false })
    }

    /// As [`Socket::receive`] for a socket connected to `peer`, whose datagrams may be joined.
    #[inline]
    pub(super) fn receive_joined(&self, buffer: &mut [u8], peer: SocketAddr) -> io::Result<Arrival> {
        let mut room = Control::<{ control::RECEIVE_BYTES }>::empty();
        let mut slice = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut header = message_from(&mut slice, None);
        room.attach(&mut header);
        // SAFETY: as in `receive`; no address is requested.
        let len = unsafe { libc::syscall(libc::SYS_recvmsg, self.fd() as usize, &raw mut header, 0usize) };
        if len < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above filled the header in; the room is alive.
        Ok(unsafe { arrival(&header, Some(peer), len as usize) })
    }

    /// Takes up to `N` arrivals, each into a buffer of its own, and returns how many.
    pub(super) fn receive_many<const N: usize>(
        &self,
        buffers: [&mut [u8]; N],
        arrivals: &mut ArrayVec<Arrival, N>,
    ) -> io::Result<()> {
        arrivals.clear();
        let mut from = [SockAddr::empty(); N];
        let mut rooms = [const { Control::<{ control::RECEIVE_BYTES }>::empty() }; N];
        let mut slices = buffers.map(|b| libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() });
        let mut headers: ArrayVec<libc::mmsghdr, N> = ArrayVec::new();
        for ((slice, from), room) in slices.iter_mut().zip(&mut from).zip(&mut rooms) {
            let mut msg_hdr = message_from(slice, Some(from));
            room.attach(&mut msg_hdr);
            headers.push(libc::mmsghdr { msg_hdr, msg_len: 0 });
        }
        let no_timeout = std::ptr::null_mut::<libc::timespec>();
        let (fd, to) = (self.fd() as usize, headers.as_mut_ptr());
        // SAFETY: as in `receive`, for each header.
        let count = unsafe { libc::syscall(libc::SYS_recvmmsg, fd, to, N, 0usize, no_timeout) };
        if count < 0 {
            return Err(io::Error::last_os_error());
        }
        for (header, mut from) in headers.iter().zip(from).take(count as usize) {
            from.set_len(header.msg_hdr.msg_namelen);
            // SAFETY: the call above filled this header in; its room is alive.
            arrivals.push(unsafe { arrival(&header.msg_hdr, from.to_std(), header.msg_len as usize) });
        }
        Ok(())
    }

    /// Takes one entry from the error queue, if there is one.
    pub(super) fn take_error(&self) -> Option<SendError> {
        let mut to = SockAddr::empty();
        let mut room = Control::<{ control::ERROR_BYTES }>::empty();
        let mut slice = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let mut header = message_from(&mut slice, Some(&mut to));
        room.attach(&mut header);
        // SAFETY: as in `receive`; the buffer is empty.
        if unsafe { libc::recvmsg(self.fd(), &mut header, libc::MSG_ERRQUEUE) } < 0 {
            return None;
        }
        to.set_len(header.msg_namelen);
        let mut refused = false;
        // SAFETY: the call above filled the header in; the room is alive.
        unsafe {
            control::each(&header, |level, kind, data| {
                let is_error = matches!((level, kind), (libc::IPPROTO_IP, libc::IP_RECVERR))
                    || matches!((level, kind), (libc::IPPROTO_IPV6, libc::IPV6_RECVERR));
                // The first field of a sock_extended_err is the error number.
                refused |= is_error && control::number(data) == Some(libc::ECONNREFUSED as u32);
            });
        }
        Some(SendError { to: to.to_std(), refused })
    }
}

/// A header for sending `slices` to `to`; valid while both are.
fn message_to(slices: &[IoSlice<'_>], to: Option<&SockAddr>) -> libc::msghdr {
    // SAFETY: plain integers and pointers, for which zero is valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    if let Some(to) = to {
        header.msg_name = to.as_ptr().cast_mut().cast();
        header.msg_namelen = to.len();
    }
    // IoSlice has the layout of iovec on Unix.
    header.msg_iov = slices.as_ptr().cast_mut().cast();
    header.msg_iovlen = slices.len() as _;
    header
}

/// A header for receiving into `slice`, and the sender's address into `from` if given; valid while both are.
fn message_from(slice: &mut libc::iovec, from: Option<&mut SockAddr>) -> libc::msghdr {
    // SAFETY: as above.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    if let Some(from) = from {
        header.msg_name = from.as_mut_ptr().cast();
        header.msg_namelen = from.len();
    }
    header.msg_iov = slice;
    header.msg_iovlen = 1;
    header
}

/// Reads what the kernel filled in for an arrival from `from`.
///
/// # Safety
/// As [`control::each`].
unsafe fn arrival(header: &libc::msghdr, from: Option<SocketAddr>, len: usize) -> Arrival {
    let truncated = header.msg_flags & libc::MSG_TRUNC != 0;
    let mut arrival = Arrival { from, len, segment: len.max(1), drops: None, truncated, ecn_marked: false };
    if header.msg_controllen > 0 {
        // SAFETY: the caller's promise, passed on.
        unsafe {
            control::each(header, |level, kind, data| match (level, kind, control::number(data)) {
                (libc::SOL_UDP, libc::UDP_GRO, Some(segment)) => arrival.segment = (segment as usize).max(1),
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL, drops) => arrival.drops = drops,
                _ => arrival.ecn_marked |= control::tells_mark(level, kind, data),
            });
        }
    }
    arrival
}
