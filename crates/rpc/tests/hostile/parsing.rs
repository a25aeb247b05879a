//! Properties of the parsers: total, and the inverse of writing.

use dunlin_rpc::wire::control::{Accept, Body, Connect, Cookie, Presence, Refuse, Release};
use dunlin_rpc::wire::failure::{CODE_BYTES, Failure, MESSAGE_BYTES_MAX};
use dunlin_rpc::wire::packets::{Arrivals, Asked};
use dunlin_rpc::wire::{HEADER_BYTES_MAX, Header, Kind, MASK_24, Multi, Status};
use proptest::prelude::*;

fn kinds() -> impl Strategy<Value = Kind> {
    use Kind::*;
    proptest::sample::select(vec![
        Request,
        CreditReturn,
        RequestForResponse,
        Response,
        Connect,
        Cookie,
        Accept,
        Refuse,
        Close,
        CloseAck,
        Ping,
        Pong,
        Reset,
        Release,
        Credits,
    ])
}

fn statuses() -> impl Strategy<Value = Status> {
    proptest::sample::select(Status::ALL.to_vec())
}

/// Every header that this library may send, with the length of its payload.
fn headers() -> impl Strategy<Value = (Header, usize)> {
    let numbers = (0..=MASK_24, 0..1u64 << 40, 0..=MASK_24, 0..=MASK_24);
    let data = (any::<u8>(), 0..=u16::MAX as usize);
    let multi = proptest::option::of((any::<u32>(), any::<u32>()));
    let bits = (any::<bool>(), any::<bool>());
    (kinds(), statuses(), numbers, data, multi, proptest::option::of(any::<u32>()), bits).prop_map(
        |(kind, status, (session, request, tag, aux), (req_type, len), multi, deadline_us, (ecn_echo, deferred))| {
            let is_data = matches!(kind, Kind::Request | Kind::Response);
            // The payload that a response of this status may have.
            let len = match status {
                _ if kind != Kind::Response => len,
                Status::Ok => len,
                Status::Busy => len % 2,
                Status::Application => CODE_BYTES + len % (MESSAGE_BYTES_MAX + 1),
                _ => 0,
            };
            let aux = if is_data { Header::data_aux(req_type, len) } else { aux };
            let mut header = Header::new(kind, aux, session, request, tag);
            if kind == Kind::Response {
                header.status = status;
                header.deferred = deferred;
            }
            header.ecn_echo = ecn_echo && matches!(kind, Kind::Response | Kind::CreditReturn);
            if is_data && header.status == Status::Ok {
                header.multi = multi.map(|(message_bytes, packet)| Multi { message_bytes, packet });
            }
            if kind == Kind::Request {
                header.deadline_us = deadline_us;
            }
            (header, len)
        },
    )
}

fn written(header: &Header) -> Vec<u8> {
    let mut bytes = [0; HEADER_BYTES_MAX];
    let len = header.write(&mut bytes);
    bytes[..len].to_vec()
}

/// Whether a body is either rejected, or written again unchanged.
fn round_trips<B: Body>(bytes: &[u8]) -> bool {
    B::parse(bytes).map_or(true, |body| {
        let mut again = Vec::new();
        body.write(&mut again);
        again == bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_header_survives_the_wire((header, len) in headers()) {
        let bytes = written(&header);
        prop_assert_eq!(bytes.len(), header.wire_len());
        prop_assert_eq!(Header::parse(&bytes, bytes.len() + len), Ok(header));
    }

    #[test]
    fn a_cut_packet_is_refused((header, len) in headers(), cut in 1usize..32) {
        let bytes = written(&header);
        let kept = bytes.len().saturating_sub(cut);
        prop_assert!(Header::parse(&bytes[..kept], kept).is_err());
        if matches!(header.kind, Kind::Request | Kind::Response) && len >= cut {
            prop_assert!(Header::parse(&bytes, bytes.len() + len - cut).is_err());
        }
    }

    #[test]
    fn any_bytes_parse_or_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..80), extra in 0usize..70_000) {
        for len in [bytes.len(), bytes.len() + extra] {
            if let Ok(header) = Header::parse(&bytes, len) {
                let again = written(&header);
                prop_assert_eq!(&again[..], &bytes[..again.len()]);
            }
        }
    }

    #[test]
    fn any_failure_is_refused_or_fits(bytes in proptest::collection::vec(any::<u8>(), 0..1_100)) {
        match Failure::parse(&bytes) {
            // Each byte that is not UTF-8 becomes the three bytes of U+FFFD at most.
            Ok(failure) => prop_assert!(failure.message.len() <= 3 * MESSAGE_BYTES_MAX),
            Err(_) => prop_assert!(!(CODE_BYTES..=CODE_BYTES + MESSAGE_BYTES_MAX).contains(&bytes.len())),
        }
    }

    #[test]
    fn any_body_is_refused_or_written_as_it_was(mut bytes in proptest::collection::vec(any::<u8>(), 0..80), zeros in any::<u64>()) {
        // Zeros in place of possible padding.
        for (i, byte) in bytes.iter_mut().enumerate() {
            if zeros >> (i % 64) & 1 == 1 {
                *byte = 0;
            }
        }
        prop_assert!(round_trips::<Connect>(&bytes));
        prop_assert!(round_trips::<Cookie>(&bytes));
        prop_assert!(round_trips::<Accept>(&bytes));
        prop_assert!(round_trips::<Refuse>(&bytes));
        prop_assert!(round_trips::<Presence>(&bytes));
        prop_assert!(round_trips::<Release>(&bytes));
        for len in [8, 16, 24, 32, 40, 64] {
            bytes.resize(len, 0);
            prop_assert!(round_trips::<Arrivals>(&bytes) && round_trips::<Asked>(&bytes));
            prop_assert!(round_trips::<Connect>(&bytes) && round_trips::<Accept>(&bytes) && round_trips::<Refuse>(&bytes));
        }
    }
}
