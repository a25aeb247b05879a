//! Message buffers at their limit. The limit belongs to the process, so this test has a process of its own.

#[path = "pair/mod.rs"]
mod pair;

use dunlin_rpc::{CallError, MsgBuf, msgbuf};
use pair::Lab;

const LARGE: u8 = 1;
const LARGE_BYTES: usize = 4 << 20;

#[test]
fn a_response_without_a_buffer_has_an_error_of_its_own() {
    let lab = Lab::pair();
    let response = bytes::Bytes::from(vec![5; LARGE_BYTES]);
    lab.server().register(LARGE, move |request| request.respond_from(response.clone()).unwrap()).unwrap();
    let session = lab.connect();
    // All buffers of the client's process are in use for something else.
    let limit = msgbuf::limit_bytes();
    msgbuf::set_limit_bytes(64 << 20);
    let others: Vec<_> = std::iter::from_fn(|| MsgBuf::with_len(LARGE_BYTES).ok()).collect();
    let failure = lab.drive(1, session.call(LARGE, MsgBuf::copy_from(b"all of it").unwrap())).unwrap_err();
    assert_eq!((failure.error, &failure.request[..]), (CallError::NoBuffer, &b"all of it"[..]));
    drop(others);
    msgbuf::set_limit_bytes(limit);
    let reply = lab.drive(1, session.call(LARGE, failure.request)).unwrap();
    assert_eq!(reply.response.len(), LARGE_BYTES);
}
