//! Opening the socket: options, buffers, and errors that say what to do.

use std::io;
use std::mem::size_of;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use socket2::{Domain, Protocol, Type};

use crate::addr::Addr;
use crate::error::NetError;

use super::config::{Ecn, Offload, UdpConfig};
use super::control;
use super::socket::Socket;

/// An open socket and what the kernel granted it.
pub(super) struct Opened {
    pub(super) socket: Socket,
    pub(super) local: SocketAddr,
    /// Receive buffer in the kernel's accounting, which includes bookkeeping for each datagram.
    pub(super) recv_buffer_bytes: usize,
    /// Segmentation offload, if requested and supported by the kernel.
    pub(super) gso: Offload,
}

/// Opens and binds a socket.
pub(super) fn open(config: &UdpConfig) -> Result<Opened, NetError> {
    let addr = Addr::Udp(config.addr);
    let failed = |doing: &str| {
        let doing = format!("{doing} for {addr}");
        move |cause| NetError::Io { doing, cause }
    };
    let inner = configure(config).map_err(failed("opening a socket"))?;
    inner.bind(&config.addr.into()).map_err(|cause| bind_error(&addr, cause))?;
    let local = inner.local_addr().map_err(failed("reading the local address"))?;
    let Some(local) = local.as_socket() else {
        return Err(failed("reading the local address")(io::ErrorKind::InvalidData.into()));
    };

    let recv_buffer_bytes = inner.recv_buffer_size().map_err(failed("reading the buffer's size"))?;
    let gso = if config.gso == Offload::Auto && knows_segmentation(&inner) { Offload::Auto } else { Offload::Off };
    Ok(Opened { socket: Socket::new(inner), local, recv_buffer_bytes, gso })
}

/// Opens a socket and sets its options, but does not bind it.
pub(super) fn configure(config: &UdpConfig) -> io::Result<socket2::Socket> {
    let domain = Domain::for_address(config.addr);
    // socket2 opens every socket with O_CLOEXEC.
    let socket = socket2::Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    if domain == Domain::IPV6 {
        socket.set_only_v6(true)?;
    }
    ask_buffer(&socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, config.recv_buffer_bytes)?;
    ask_buffer(&socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, config.send_buffer_bytes)?;
    report_errors(&socket, domain)?;
    if config.ecn == Ecn::On {
        use_marks(&socket, domain)?;
    }
    set(&socket, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)?;
    if config.gro == Offload::Auto {
        // A kernel without receive offload delivers datagrams one by one, which is correct, only slower.
        let _ = set(&socket, libc::SOL_UDP, libc::UDP_GRO, 1);
    }
    Ok(socket)
}

/// Explains why an address could not be bound.
fn bind_error(addr: &Addr, cause: io::Error) -> NetError {
    let hint = match cause.raw_os_error() {
        Some(libc::EADDRINUSE) => return NetError::InUse { addr: addr.clone() },
        Some(libc::EACCES) => " (ports below 1024 need CAP_NET_BIND_SERVICE: choose a higher one)",
        Some(libc::EADDRNOTAVAIL) => " (no interface of this host has that address: see `ip address`)",
        _ => "",
    };
    NetError::Io { doing: format!("binding {addr}{hint}"), cause }
}

/// Requests a buffer of `bytes`, past the system's limit if this process may.
pub(super) fn ask_buffer(
    socket: &impl AsRawFd,
    force: libc::c_int,
    plain: libc::c_int,
    bytes: usize,
) -> io::Result<()> {
    // The kernel doubles the number to cover its bookkeeping.
    let bytes = bytes.min(i32::MAX as usize / 2) as libc::c_int;
    set(socket, libc::SOL_SOCKET, force, bytes).or_else(|_| set(socket, libc::SOL_SOCKET, plain, bytes))
}

/// Makes the kernel keep the network's answers to our datagrams ("port unreachable") with the address that caused them,
/// and ignore what the network reports about its MTU: the MTU is configured, so a forged report must not change it.
fn report_errors(socket: &socket2::Socket, domain: Domain) -> io::Result<()> {
    if domain == Domain::IPV6 {
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)?;
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)
    } else {
        set(socket, libc::IPPROTO_IP, libc::IP_RECVERR, 1)?;
        set(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)
    }
}

/// Makes the kernel send datagrams as ECN-capable, and report the ECN field of received ones.
fn use_marks(socket: &socket2::Socket, domain: Domain) -> io::Result<()> {
    if domain == Domain::IPV6 {
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, control::ECN_CAPABLE)?;
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)
    } else {
        set(socket, libc::IPPROTO_IP, libc::IP_TOS, control::ECN_CAPABLE)?;
        set(socket, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)
    }
}

/// Whether the kernel supports segmentation offload for UDP (Linux 4.18).
fn knows_segmentation(socket: &socket2::Socket) -> bool {
    get(socket, libc::SOL_UDP, libc::UDP_SEGMENT).is_ok()
}

/// Whether the interface that leads to `peer` takes datagrams of this many bytes. Opens a socket to find out.
pub(super) fn carries(peer: SocketAddr, datagram_bytes: usize) -> io::Result<bool> {
    let socket = socket2::Socket::new(Domain::for_address(peer), Type::DGRAM, Some(Protocol::UDP))?;
    socket.connect(&peer.into())?;
    // The interface's MTU, and the bytes of the headers of IP and UDP.
    let (mtu, headers) = match peer {
        SocketAddr::V4(_) => (get(&socket, libc::IPPROTO_IP, libc::IP_MTU)?, 20 + 8),
        SocketAddr::V6(_) => (get(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU)?, 40 + 8),
    };
    Ok(usize::try_from(mtu).is_ok_and(|mtu| mtu >= datagram_bytes + headers))
}

/// Reads a numeric option of a socket.
fn get(socket: &impl AsRawFd, level: libc::c_int, name: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointers are to a number and its length.
    let rc = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &mut len) };
    if rc == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Sets a numeric option of a socket.
pub(super) fn set(socket: &impl AsRawFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the pointer is to a number of that length.
    let rc = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
