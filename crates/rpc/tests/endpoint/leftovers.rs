//! Memory is reused, but no message shows what an earlier one left there.

use dunlin_rpc::MsgBuf;

use crate::pair::Lab;

const SECRET: u8 = 0xaa;
/// In one packet, in several, and in a mapping of its own.
const LENGTHS: [usize; 7] = [0, 1, 31, 32, 900, 10_000, 300_000];

/// Leaves buffers of every class behind, full of recognisable bytes.
fn leave_secrets() {
    let full: Vec<_> =
        LENGTHS.iter().flat_map(|len| [*len; 3]).map(|len| MsgBuf::copy_from(&vec![SECRET; len]).unwrap()).collect();
    drop(full);
}

#[test]
fn a_buffer_of_a_length_is_zero() {
    for len in LENGTHS {
        leave_secrets();
        assert_eq!(MsgBuf::with_len(len).unwrap()[..], vec![0; len], "{len} bytes");
        leave_secrets();
        let mut buf = MsgBuf::copy_from(&[7]).unwrap();
        buf.set_len(buf.capacity());
        assert!(buf[0] == 7 && buf[1..].iter().all(|byte| *byte == 0));
        // Shorter and longer again: the cut-off bytes are gone.
        buf.fill(SECRET);
        buf.set_len(3);
        buf.set_len(buf.capacity());
        assert!(buf[..3] == [SECRET; 3] && buf[3..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn a_response_that_is_not_filled_shows_nothing() {
    for len in LENGTHS {
        let lab = Lab::pair();
        lab.server().register(1, move |request| request.respond(&vec![SECRET; len])).unwrap();
        lab.server().register(2, move |request| request.respond_with(len, |_| {})).unwrap();
        lab.server().register_burst(3, move |burst| burst.respond_with(0, len, |_| {})).unwrap();
        let session = lab.connect();
        for req_type in [2, 3] {
            // The slot keeps the buffer of its last response.
            for _ in 0..9 {
                lab.drive(1, session.call(1, vec![SECRET; len])).unwrap();
            }
            let reply = lab.drive(1, session.call(req_type, vec![])).unwrap();
            assert_eq!(reply.response[..], vec![0; len], "{len} bytes, type {req_type}");
        }
    }
}
