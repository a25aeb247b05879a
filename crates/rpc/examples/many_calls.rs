//! A client that keeps many calls outstanding with `FuturesUnordered`: as one ends, the next begins in its buffer.
//!
//! In one terminal:   cargo run --release -p dunlin-rpc --example echo_server shm:echo
//! In another:        cargo run --release -p dunlin-rpc --example many_calls shm:echo
//!
//! Over UDP, write udp://127.0.0.1:31850 in both places.

use std::error::Error;
use std::time::Instant;

use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{Endpoint, EndpointConfig, MsgBuf};
use futures::StreamExt;
use futures::stream::FuturesUnordered;

/// The request type that server and client agree on.
const ECHO: u8 = 1;
/// Sessions, each with up to eight requests in progress.
const SESSIONS: usize = 8;
/// Calls outstanding.
const WINDOW: usize = 60;
/// Calls to make in all.
const CALLS: usize = 200_000;

fn call() -> Result<(), Box<dyn Error>> {
    let server: Addr = std::env::args().nth(1).ok_or("give an address: shm:echo or udp://127.0.0.1:31850")?.parse()?;
    let endpoint = Endpoint::new(AnyTransport::for_peer(&server)?, EndpointConfig::default())?;
    endpoint.block_on(async {
        let mut sessions = Vec::new();
        for _ in 0..SESSIONS {
            sessions.push(endpoint.connect(&server).await?);
        }
        let start = Instant::now();
        let mut calls = FuturesUnordered::new();
        for issued in 0..WINDOW {
            calls.push(sessions[issued % SESSIONS].call(ECHO, MsgBuf::copy_from(&[7; 32])?));
        }
        let mut issued = WINDOW;
        while let Some(reply) = calls.next().await {
            let reply = reply?;
            if issued < CALLS {
                calls.push(sessions[issued % SESSIONS].call(ECHO, reply.request));
                issued += 1;
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        println!("{CALLS} calls in {seconds:.3} s, {WINDOW} outstanding: {:.0} calls/s", CALLS as f64 / seconds);
        println!("{}", endpoint.stats());
        Ok(())
    })
}

fn main() {
    if let Err(error) = call() {
        eprintln!("many_calls: {error}");
        std::process::exit(1);
    }
}
