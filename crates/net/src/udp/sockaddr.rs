//! Socket addresses in the kernel's form, kept ready so that a send converts nothing.

use std::mem::size_of;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Room for the address of either family.
#[derive(Clone, Copy)]
#[repr(C)]
union Storage {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

/// An IPv4 or IPv6 socket address in the form that system calls take. Every byte is initialised.
#[derive(Clone, Copy)]
pub(super) struct SockAddr {
    storage: Storage,
    len: libc::socklen_t,
}

impl SockAddr {
    /// Room for an address, all zero.
    pub(super) fn empty() -> Self {
        // SAFETY: both variants are plain integers, for which zero is valid.
        let v6 = unsafe { std::mem::zeroed::<libc::sockaddr_in6>() };
        SockAddr { storage: Storage { v6 }, len: size_of::<libc::sockaddr_in6>() as libc::socklen_t }
    }

    pub(super) fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    /// For a system call that fills in an address of at most [`SockAddr::len`] bytes; then [`SockAddr::set_len`].
    pub(super) fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.storage).cast()
    }

    pub(super) fn len(&self) -> libc::socklen_t {
        self.len
    }

    /// Stores the length that the kernel reported, which may exceed the room there was.
    pub(super) fn set_len(&mut self, len: libc::socklen_t) {
        self.len = len.min(size_of::<Storage>() as libc::socklen_t);
    }

    /// The address, if it is a complete IPv4 or IPv6 address.
    #[inline]
    pub(super) fn to_std(self) -> Option<SocketAddr> {
        let len = self.len as usize;
        // SAFETY: every byte of the union is initialised, and any bytes are valid for these structs.
        let (v4, v6) = unsafe { (self.storage.v4, self.storage.v6) };
        match libc::c_int::from(v4.sin_family) {
            libc::AF_INET if len >= size_of::<libc::sockaddr_in>() => {
                let ip = u32::from_be(v4.sin_addr.s_addr).into();
                Some(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(v4.sin_port))))
            }
            libc::AF_INET6 if len >= size_of::<libc::sockaddr_in6>() => {
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                // The flow label does not identify a peer.
                Some(SocketAddr::V6(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id)))
            }
            _ => None,
        }
    }
}

impl From<SocketAddr> for SockAddr {
    fn from(addr: SocketAddr) -> Self {
        let mut raw = SockAddr::empty();
        match addr {
            SocketAddr::V4(addr) => {
                raw.len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
                raw.storage.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: addr.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*addr.ip()).to_be() },
                    sin_zero: [0; 8],
                };
            }
            SocketAddr::V6(addr) => {
                raw.len = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
                raw.storage.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: addr.port().to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: addr.ip().octets() },
                    sin6_scope_id: addr.scope_id(),
                };
            }
        }
        raw
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for text in ["127.0.0.1:1", "255.1.2.3:65535", "[::1]:9", "[fe80::1%3]:7"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(SockAddr::from(addr).to_std(), Some(addr));
        }
    }

    #[test]
    fn incomplete_addresses_are_none() {
        assert_eq!(SockAddr::empty().to_std(), None);
        let mut short = SockAddr::from("127.0.0.1:1".parse::<SocketAddr>().unwrap());
        short.set_len(3);
        assert_eq!(short.to_std(), None);
    }
}
