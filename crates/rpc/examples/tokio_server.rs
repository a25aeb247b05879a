//! One thread that serves echoes over shared memory and UDP, and a page of counters over TCP: the endpoint runs inside tokio's event loop,
//! and the thread sleeps once for all three.
//!
//! In one terminal:   cargo run --release -p dunlin-rpc --example tokio_server shm:echo udp://127.0.0.1:31850
//! In others:         cargo run --release -p dunlin-rpc --example many_calls shm:echo
//!                    cargo run --release -p dunlin-rpc --example many_calls udp://127.0.0.1:31850
//!                    nc 127.0.0.1 31851
//!
//! The same works in any event loop: `drive` below is all that is special to tokio.

use std::convert::Infallible;
use std::error::Error;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::{Addr, AnyTransport, NetError, Transport};
use dunlin_rpc::{Endpoint, EndpointConfig, Turn};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::TcpListener;
use tokio::task::{LocalSet, spawn_local, yield_now};
use tokio::time::timeout;

/// The request type that server and client agree on.
const ECHO: u8 = 1;
/// Where counters are told.
const COUNTERS: &str = "127.0.0.1:31851";
/// Nanoseconds after which tokio's other tasks and sockets have their turn.
const YIELD_NANOS: u64 = 20_000;
/// Tokio's timers go off up to a millisecond late; what is due sooner is waited for awake.
const SLEEP_MIN: Duration = Duration::from_millis(1);

/// Runs an endpoint as a task of a current-thread runtime.
async fn drive<T: Transport>(endpoint: &Endpoint<T>) -> Result<Infallible, Box<dyn Error>> {
    #[allow(deprecated, reason = "what replaces it is an unsafe function; for a descriptor that is owned the two are alike")]
    let fd = AsyncFd::with_interest(endpoint.wake_fd()?, Interest::READABLE)?;
    loop {
        let mut yielded_at = endpoint.now();
        let time = loop {
            match endpoint.turn() {
                Turn::Sleep(time) if time >= SLEEP_MIN => break time,
                Turn::Busy | Turn::Spin | Turn::Sleep(_) => {}
            }
            if endpoint.now().saturating_sub(yielded_at) >= YIELD_NANOS {
                yield_now().await;
                yielded_at = endpoint.now();
            }
        };
        if let Ok(readable) = timeout(time, fd.readable()).await {
            readable?.clear_ready();
        }
    }
}

/// Tells the endpoint's counters to whoever connects.
async fn tell_counters(endpoint: &Endpoint<AnyTransport>) -> Result<Infallible, Box<dyn Error>> {
    let listener = TcpListener::bind(COUNTERS).await?;
    println!("telling counters at {COUNTERS}");
    loop {
        let (mut stream, _) = listener.accept().await?;
        let page = format!("{}\n", endpoint.stats());
        // Of a page that short all fits the socket's buffer, so no reader holds us up; one that is gone is no error of ours.
        let _ = stream.write_all(page.as_bytes()).await;
    }
}

fn serve() -> Result<(), Box<dyn Error>> {
    let addrs = std::env::args().skip(1).map(|addr| addr.parse()).collect::<Result<Vec<Addr>, NetError>>()?;
    if addrs.is_empty() {
        return Err("give one or two addresses: shm:echo udp://127.0.0.1:31850".into());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let endpoint = Rc::new(Endpoint::new(AnyTransport::bind_all(&addrs)?, EndpointConfig::default())?);
        endpoint.register(ECHO, |request| {
            let payload = request.payload();
            request.respond(payload);
        })?;
        let driven = endpoint.clone();
        let driver = spawn_local(async move { drive(&driven).await.map_err(|error| error.to_string()) });
        let addrs: Vec<_> = endpoint.local_addrs().iter().map(Addr::to_string).collect();
        println!("serving echoes at {}; ctrl-C ends it", addrs.join(" and "));
        tokio::select! {
            driven = driver => Err(driven?.err().unwrap_or_default().into()),
            told = tell_counters(&endpoint) => told.map(drop),
        }
    })
}

fn main() {
    if let Err(error) = serve() {
        eprintln!("tokio_server: {error}");
        std::process::exit(1);
    }
}
