//! What a call through a handle costs beside the bare call, over shared memory: `cargo run --release -p dunlin-serve --example handle_cost`.
//!
//! The server, the thread of the handle and this thread want three processors. With fewer, a call waits for the scheduler as well.

use std::error::Error;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_net::{AnyTransport, Transport};
use dunlin_rpc::{Endpoint, EndpointConfig, MsgBuf};
use dunlin_serve::channel::{CallPolicy, Channel, ChannelConfig};
use dunlin_serve::handle::{Handle, HandleConfig};
use dunlin_serve::{Core, ServeConfig, ServeError, Server, Service, Site};

const ECHO: u8 = 1;
const CALLS: usize = 20_000;
/// Long enough for everybody to sleep.
const IDLE: Duration = Duration::from_millis(5);
const IDLE_CALLS: usize = 200;

struct Echo;
struct EchoCore;

impl Core for EchoCore {
    type Letter = ();
    type Plan = ();
    type Error = ServeError;
}

impl<T: Transport + 'static> Service<T> for Echo {
    type Core = EchoCore;
    type Ready = ();
    type Finish = ();

    fn build(&self, site: Site<T, ()>) -> Result<(EchoCore, ()), ServeError> {
        site.endpoint.register(ECHO, |request| {
            let payload = request.payload();
            request.respond(payload);
        })?;
        Ok((EchoCore, ()))
    }

    fn plan(&self, _: Vec<()>) -> Result<(), ServeError> {
        Ok(())
    }
}

/// Prints the median and the 99th percentile of what `call` takes, with a pause before each.
fn measure(what: &str, calls: usize, pause: Duration, mut call: impl FnMut()) {
    let mut times: Vec<Duration> = (0..calls)
        .map(|_| {
            if !pause.is_zero() {
                std::thread::sleep(pause);
            }
            let begun = Instant::now();
            call();
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    println!("{what:<32} p50 {:>10.2?}   p99 {:>10.2?}", times[calls / 2], times[calls * 99 / 100]);
}

fn main() -> Result<(), Box<dyn Error>> {
    let address: dunlin_net::Addr = format!("shm:handle-cost-{}", std::process::id()).parse()?;
    let config = ServeConfig { listen: vec![address.clone()], ..ServeConfig::named("echo") };
    let server = Server::start(Arc::new(Echo), config)?;
    let request = || MsgBuf::copy_from(&[7; 32]).expect("32 bytes of memory");

    let endpoint = Rc::new(Endpoint::new(AnyTransport::for_peer(&address)?, EndpointConfig::default())?);
    let session = endpoint.block_on(endpoint.connect(&address))?;
    let channel = Channel::new(&endpoint, vec![address.clone()], ChannelConfig::default());
    let handle = Handle::start(vec![address], HandleConfig::default())?;
    let states = [("busy", CALLS, Duration::ZERO), ("idle", IDLE_CALLS, IDLE)];
    for (state, calls, pause) in states {
        measure(&format!("bare call, {state}"), calls, pause, || {
            endpoint.block_on(session.call(ECHO, request())).expect("the server is there");
        });
        measure(&format!("channel, {state}"), calls, pause, || {
            endpoint.block_on(channel.call(ECHO, request())).expect("the server is there");
        });
    }
    // Nobody turns that endpoint from now on, so its server gives it up.
    for (state, calls, pause) in states {
        measure(&format!("handle, blocking, {state}"), calls, pause, || {
            handle.call_blocking(ECHO, request(), CallPolicy::default()).expect("the server is there");
        });
    }
    drop(handle);
    server.stop()?;
    Ok(())
}
