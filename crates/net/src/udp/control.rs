//! Control messages: what the kernel reports about a datagram besides its bytes, and what we tell the kernel.

use std::mem::size_of;

/// Room for the control messages of one system call.
#[repr(C, align(8))]
pub(super) struct Control<const N: usize>([u8; N]);

/// Control bytes of a received datagram: the segment size, the count of drops and the ECN field, with spare room.
pub(super) const RECEIVE_BYTES: usize = 96;
/// The ECN field of a datagram that may be marked (ECT(0)), and of one that was.
pub(super) const ECN_CAPABLE: libc::c_int = 2;
const ECN_MARKED: u32 = 3;
/// Control bytes of a send: the segment size.
pub(super) const SEND_BYTES: usize = 24;
/// Control bytes of an entry of the error queue: the error, the address of the host that reported it, and the two
/// above.
pub(super) const ERROR_BYTES: usize = 256;

impl<const N: usize> Control<N> {
    pub(super) const fn empty() -> Self {
        Control([0; N])
    }

    /// Points `header` at this room.
    pub(super) fn attach(&mut self, header: &mut libc::msghdr) {
        header.msg_control = (&raw mut self.0).cast();
        header.msg_controllen = N as _;
    }
}

impl Control<SEND_BYTES> {
    /// Requests segmentation offload: the kernel cuts the bytes of the send into datagrams of `segment` bytes.
    pub(super) fn segment(segment: u16) -> Self {
        let mut control = Control::empty();
        let header = libc::cmsghdr {
            // SAFETY: CMSG_LEN only computes.
            cmsg_len: unsafe { libc::CMSG_LEN(size_of::<u16>() as u32) } as _,
            cmsg_level: libc::SOL_UDP,
            cmsg_type: libc::UDP_SEGMENT,
        };
        // SAFETY: the room is aligned for a header, and a header and two bytes fit in it (checked by the constant
        // below).
        unsafe {
            let to = (&raw mut control.0).cast::<libc::cmsghdr>();
            to.write(header);
            libc::CMSG_DATA(to).cast::<u16>().write_unaligned(segment);
        }
        control
    }
}

const _: () = assert!(size_of::<libc::cmsghdr>() + size_of::<u64>() <= SEND_BYTES);

/// Calls `visit` with level, type and data of every control message that the kernel wrote for `header`.
///
/// # Safety
/// `header` must have been filled in by a system call, with [`Control::attach`] before it and the room still alive.
pub(super) unsafe fn each(header: &libc::msghdr, mut visit: impl FnMut(libc::c_int, libc::c_int, &[u8])) {
    // SAFETY: the caller promises that the kernel wrote the header and its room; the macros stay within msg_controllen.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(header);
        while !at.is_null() {
            let message = at.read_unaligned();
            let data_len = (message.cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
            visit(message.cmsg_level, message.cmsg_type, std::slice::from_raw_parts(libc::CMSG_DATA(at), data_len));
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
}

/// Whether a control message says that the datagram was marked: the two lowest bits of IPv4's TOS, a byte, or IPv6's
/// traffic class, a number.
pub(super) fn tells_mark(level: libc::c_int, kind: libc::c_int, data: &[u8]) -> bool {
    let field = match (level, kind) {
        (libc::IPPROTO_IP, libc::IP_TOS) => data.first().copied().map(u32::from),
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => number(data),
        _ => None,
    };
    field.is_some_and(|field| field & ECN_MARKED == ECN_MARKED)
}

/// The number at the start of a control message's data.
pub(super) fn number(data: &[u8]) -> Option<u32> {
    data.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}
