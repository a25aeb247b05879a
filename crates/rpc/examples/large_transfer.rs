//! Messages of 8 MiB both ways, from the application's own memory, without a copy before the transport.
//!
//! In one terminal:   cargo run --release -p dunlin-rpc --example large_transfer serve shm:large
//! In another:        cargo run --release -p dunlin-rpc --example large_transfer call shm:large
//!
//! Over UDP, write udp://127.0.0.1:31850 in both places.

use std::error::Error;
use std::time::Instant;

use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{Endpoint, EndpointConfig};

/// Answers with the sum of the request's bytes (u64, little-endian).
const UPLOAD: u8 = 1;
/// Answers with as many bytes as the request (u64, little-endian) says.
const DOWNLOAD: u8 = 2;
/// The default limit of a message.
const BYTES: usize = 8 << 20;

const USAGE: &str = "say what to be: serve ADDR | call ADDR";

/// More credits than the default of 8: packets of one large message that may be in flight.
fn config() -> EndpointConfig {
    EndpointConfig { credits: 32, ..EndpointConfig::default() }
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}

fn serve(addr: &Addr) -> Result<(), Box<dyn Error>> {
    let endpoint = Endpoint::new(AnyTransport::bind(addr)?, config())?;
    endpoint.register(UPLOAD, |request| {
        let sum = sum(request.payload());
        request.respond(&sum.to_le_bytes());
    })?;
    endpoint.register(DOWNLOAD, |request| {
        let wanted = request.payload().try_into().map_or(0, u64::from_le_bytes).min(BYTES as u64);
        // Fails only if the caller has left.
        let _ = request.respond_from(vec![3; wanted as usize]);
    })?;
    println!("serving at {}; ctrl-C ends it", endpoint.local_addr());
    endpoint.run_until(|| false);
    Ok(())
}

fn call(server: &Addr) -> Result<(), Box<dyn Error>> {
    let endpoint = Endpoint::new(AnyTransport::for_peer(server)?, config())?;
    endpoint.block_on(async {
        let session = endpoint.connect(server).await?;
        let mut data = vec![3; BYTES];
        for _ in 0..3 {
            let start = Instant::now();
            let reply = session.call(UPLOAD, data).await?;
            report("sent", start);
            data = reply.request;
            if reply.response[..] != sum(&data).to_le_bytes() {
                return Err("the server saw other bytes than were sent".into());
            }
            let start = Instant::now();
            let reply = session.call(DOWNLOAD, (BYTES as u64).to_le_bytes().to_vec()).await?;
            report("received", start);
            if reply.response[..] != data {
                return Err("other bytes came than were asked for".into());
            }
        }
        Ok(())
    })
}

fn report(what: &str, start: Instant) {
    let took = start.elapsed();
    println!("{what} 8 MiB in {took:.2?}: {:.1} Gbit/s", BYTES as f64 * 8e-9 / took.as_secs_f64());
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", addr] => serve(&addr.parse()?),
        ["call", addr] => call(&addr.parse()?),
        _ => Err(USAGE.into()),
    }
}

fn main() {
    if let Err(error) = run() {
        eprintln!("large_transfer: {error}");
        std::process::exit(1);
    }
}
