//! Large messages, over every transport.

use dunlin_net::shm::{ShmConfig, ShmTransport};
use dunlin_net::udp::{UdpConfig, UdpTransport};
use dunlin_net::{Addr, PollPolicy, ShmName, Transport};
use dunlin_rpc::{Endpoint, EndpointConfig, MsgBuf, Session};

use crate::pair::{Lab, config};
use crate::{ECHO, echo};

const MIB: usize = 1 << 20;

fn large_config() -> EndpointConfig {
    EndpointConfig { message_bytes_max: 24 * MIB, credits: 32, poll: PollPolicy::Spin, ..config() }
}

/// Bytes in which no packet repeats an earlier one.
fn content(len: usize) -> Vec<u8> {
    (0..len.div_ceil(8) as u64).flat_map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).take(len).collect()
}

/// Calls with messages of several sizes up to beyond the default limit, from different kinds of buffers.
fn large_calls(session: &Session, mut run: impl FnMut(std::pin::Pin<&mut (dyn Future<Output = ()> + '_)>)) {
    for len in [8 * MIB, 8 * MIB + 1, 20 * MIB + 12_345] {
        let bytes = content(len);
        let call = session.call(ECHO, bytes.clone());
        run(std::pin::pin!(async {
            let reply = call.await.unwrap();
            assert!(reply.response[..] == bytes[..], "the response of {len} bytes differs");
            assert!(reply.request == bytes);
        }));
    }
    let bytes = content(9 * MIB);
    let call = session.call(ECHO, MsgBuf::copy_from(&bytes).unwrap());
    run(std::pin::pin!(async {
        assert!(call.await.unwrap().response[..] == bytes[..]);
    }));
}

#[test]
fn large_messages_over_loopback() {
    let lab = Lab::new(&[large_config(), large_config()]);
    echo(lab.server());
    let session = lab.connect();
    large_calls(&session, |call| lab.drive(1, call));
}

/// Both endpoints in this thread, in turns.
fn large_messages_over<T: Transport>(server: T, client: T) {
    let address = server.local_addr();
    let server = Endpoint::new(server, large_config()).unwrap();
    let client = Endpoint::new(client, EndpointConfig { seed: Some(8), ..large_config() }).unwrap();
    echo(&server);
    let mut connecting = Box::pin(client.connect(&address));
    let session = loop {
        server.run_once();
        if let Some(session) = client.poll_once(connecting.as_mut()) {
            break session.unwrap();
        }
    };
    large_calls(&session, |mut call| {
        while client.poll_once(call.as_mut()).is_none() {
            server.run_once();
        }
    });
}

#[test]
fn large_messages_over_udp() {
    let bind = || UdpTransport::bind(UdpConfig::new("127.0.0.1:0".parse().unwrap())).unwrap();
    large_messages_over(bind(), bind());
}

#[test]
fn large_messages_over_shm() {
    let name = ShmName::new(&format!("test-{}-large", std::process::id())).unwrap();
    let server = ShmTransport::new(&ShmConfig::named(name.clone())).unwrap();
    assert_eq!(server.local_addr(), Addr::Shm(name));
    large_messages_over(server, ShmTransport::new(&ShmConfig::anonymous()).unwrap());
}
