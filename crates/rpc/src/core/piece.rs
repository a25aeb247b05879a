//! A multi-packet message carries its packet length: all packets but the last are equally long, and LAST marks the
//! last. So the two ends need not agree on a length, and it can change from one message to the next.

use super::{Core, packet_data_bytes};
use crate::wire::Header;

/// Minimum data bytes of the packets of a multi-packet message.
pub(crate) const PACKET_DATA_MIN: usize = packet_data_bytes(Core::MTU_MIN);

/// Where in its message a packet belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Data bytes of each packet of the message but the last.
    pub packet_data: u16,
    /// Bytes of the message before this packet.
    pub offset: usize,
}

impl Piece {
    /// Reads the place of a packet with a MULTI extension, if it is valid: in a message of at most `message_bytes_max`,
    /// in packets of at most `packet_data_max` data bytes.
    #[inline]
    pub fn of(header: &Header, packet_data_max: u16, message_bytes_max: u32) -> Option<Piece> {
        let multi = header.multi?;
        let (total, packet, len) = (multi.message_bytes as usize, multi.packet as usize, header.payload_len());
        let packet_data = if header.is_last {
            let before = total.checked_sub(len)?;
            // The first of several packets is never the last.
            (before.checked_rem(packet)? == 0).then(|| before / packet)?
        } else {
            len
        };
        let offset = packet * packet_data;
        let is_regular =
            (PACKET_DATA_MIN..=usize::from(packet_data_max)).contains(&packet_data) && packet_data % 16 == 0;
        let ends_right = if header.is_last { (1..=packet_data).contains(&len) } else { offset + len < total };
        let fits = is_regular && ends_right && total <= message_bytes_max as usize;
        fits.then_some(Piece { packet_data: packet_data as u16, offset })
    }

    /// Packets of a message of `message_bytes` bytes.
    pub fn packets(&self, message_bytes: usize) -> u32 {
        message_bytes.div_ceil(usize::from(self.packet_data)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Kind, Multi};

    fn packet(total: u32, packet: u32, len: usize, is_last: bool) -> Option<(u16, usize)> {
        let mut header = Header::new(Kind::Request, Header::data_aux(0, len), 1, 8, 1);
        (header.multi, header.is_last) = (Some(Multi { message_bytes: total, packet }), is_last);
        Piece::of(&header, 1440, 1 << 20).map(|piece| (piece.packet_data, piece.offset))
    }

    #[test]
    fn every_packet_of_every_cut_tells_its_place() {
        for packet_data in (PACKET_DATA_MIN..=1440).step_by(16) {
            for total in [packet_data + 1, 2 * packet_data, 5 * packet_data + 7, 1 << 20] {
                let packets = total.div_ceil(packet_data);
                for number in 0..packets {
                    let len = (total - number * packet_data).min(packet_data);
                    let found = packet(total as u32, number as u32, len, number + 1 == packets);
                    assert_eq!(found, Some((packet_data as u16, number * packet_data)), "{number} of {total}");
                }
            }
        }
    }

    #[test]
    fn what_no_cut_makes_is_refused() {
        for (total, number, len, is_last) in [
            (3000, 0, 1440, true),  // the first is not the last
            (2880, 1, 1440, false), // the last does not say so
            (4000, 1, 1440, true),  // nor does another
            (3000, 0, 1456, false), // too long
            (3000, 0, 1439, false), // no multiple of 16
            (3000, 0, 208, false),  // too short
            (3000, 0, 0, false),
            (1440, 1, 0, true),            // empty
            (2000, 1, 1000, true),         // 1,000 is no multiple of 16
            (1500, 1, 1440, true),         // longer than those before it
            (1 << 20 | 1, 0, 1440, false), // too long a message
            (3000, u32::MAX, 1440, false),
            (3000, u32::MAX, 100, true),
            (10, 1, 100, true),
        ] {
            assert_eq!(packet(total, number, len, is_last), None, "{number} of {total}: {len}, {is_last}");
        }
    }
}
