//! A handler that takes long runs on worker threads, and the quick handler beside it stays quick.
//!
//! In one terminal:   cargo run --release -p dunlin-rpc --example workers serve shm:workers
//! In another:        cargo run --release -p dunlin-rpc --example workers call shm:workers
//!
//! Over UDP, write udp://127.0.0.1:31850 in both places.

use std::error::Error;
use std::pin::pin;
use std::time::{Duration, Instant};

use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{Endpoint, EndpointConfig, MsgBuf, WorkerPool};
use futures::future::{Either, select};

/// Quick: answered by the event loop.
const PING: u8 = 1;
/// Slow: counts primes below a number (u64, little-endian), on a worker.
const COUNT_PRIMES: u8 = 2;
/// What the client asks for: some tens of milliseconds of work.
const BELOW: u64 = 300_000;

const USAGE: &str = "say what to be: serve ADDR | call ADDR";

fn count_primes(request: &[u8]) -> Vec<u8> {
    let Ok(below) = request.try_into().map(u64::from_le_bytes) else { return Vec::new() };
    let is_prime = |n: &u64| (2..).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
    ((2..below.min(10_000_000)).filter(is_prime).count() as u64).to_le_bytes().to_vec()
}

fn serve(addr: &Addr) -> Result<(), Box<dyn Error>> {
    let pool = WorkerPool::new(2, 64)?; // Two threads; at most 64 requests wait, more are pushed back as busy.
    let endpoint = Endpoint::new(AnyTransport::bind(addr)?, EndpointConfig::default())?;
    endpoint.register(PING, |request| request.respond(b"pong"))?;
    endpoint.register_worker(COUNT_PRIMES, &pool, |request| count_primes(request.payload()))?;
    println!("serving at {}; ctrl-C ends it", endpoint.local_addr());
    endpoint.run_until(|| false);
    Ok(())
}

fn call(server: &Addr) -> Result<(), Box<dyn Error>> {
    let endpoint = Endpoint::new(AnyTransport::for_peer(server)?, EndpointConfig::default())?;
    endpoint.block_on(async {
        let session = endpoint.connect(server).await?;
        let start = Instant::now();
        let mut slow = pin!(session.call(COUNT_PRIMES, MsgBuf::copy_from(&BELOW.to_le_bytes())?));
        let (mut pings, mut slowest) = (0, Duration::ZERO);
        // Pings on the same session, until the slow call ends.
        let reply = loop {
            let ping_start = Instant::now();
            match select(slow.as_mut(), session.call(PING, MsgBuf::copy_from(b"ping")?)).await {
                Either::Left((reply, _)) => break reply?,
                Either::Right((pong, _)) => drop(pong?),
            }
            (pings, slowest) = (pings + 1, slowest.max(ping_start.elapsed()));
        };
        let primes = reply.response[..].try_into().map(u64::from_le_bytes)?;
        println!("{primes} primes below {BELOW}, after {:?}", start.elapsed());
        println!("{pings} pings meanwhile, the slowest took {slowest:?}");
        Ok(())
    })
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
        eprintln!("workers: {error}");
        std::process::exit(1);
    }
}
