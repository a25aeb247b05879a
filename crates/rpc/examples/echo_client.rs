//! A client that calls the echo server a few times, one call after the other, and shows how long each took.
//!
//! In one terminal:   cargo run --release -p dunlin-rpc --example echo_server shm:echo
//! In another:        cargo run --release -p dunlin-rpc --example echo_client shm:echo
//!
//! Over UDP, write udp://127.0.0.1:31850 in both places.

use std::error::Error;
use std::time::Instant;

use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{Endpoint, EndpointConfig, MsgBuf};

/// The request type that server and client agree on.
const ECHO: u8 = 1;

fn call() -> Result<(), Box<dyn Error>> {
    let server: Addr = std::env::args().nth(1).ok_or("give an address: shm:echo or udp://127.0.0.1:31850")?.parse()?;
    let endpoint = Endpoint::new(AnyTransport::for_peer(&server)?, EndpointConfig::default())?;
    endpoint.block_on(async {
        let session = endpoint.connect(&server).await?;
        let mut request = MsgBuf::copy_from(b"hello")?;
        for _ in 0..5 {
            let start = Instant::now();
            let reply = session.call(ECHO, request).await?;
            println!("{:?} after {:?}", String::from_utf8_lossy(&reply.response), start.elapsed());
            request = reply.request; // The same buffer again: nothing is allocated per call.
        }
        session.close().await;
        Ok(())
    })
}

fn main() {
    if let Err(error) = call() {
        eprintln!("echo_client: {error}");
        std::process::exit(1);
    }
}
