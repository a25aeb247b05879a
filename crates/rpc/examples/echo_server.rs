//! A server that echoes each request.
//!
//! In one terminal:   cargo run --release -p dunlin-rpc --example echo_server shm:echo
//! In another:        cargo run --release -p dunlin-rpc --example echo_client shm:echo
//!
//! Over UDP, write udp://127.0.0.1:31850 in both places.

use std::error::Error;

use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{Endpoint, EndpointConfig};

/// The request type that server and client agree on.
const ECHO: u8 = 1;

fn serve() -> Result<(), Box<dyn Error>> {
    let addr: Addr = std::env::args().nth(1).ok_or("give an address: shm:echo or udp://127.0.0.1:31850")?.parse()?;
    let endpoint = Endpoint::new(AnyTransport::bind(&addr)?, EndpointConfig::default())?;
    endpoint.register(ECHO, |request| {
        let payload = request.payload();
        request.respond(payload);
    })?;
    println!("serving echoes at {}; ctrl-C ends it", endpoint.local_addr());
    endpoint.run_until(|| false);
    Ok(())
}

fn main() {
    if let Err(error) = serve() {
        eprintln!("echo_server: {error}");
        std::process::exit(1);
    }
}
