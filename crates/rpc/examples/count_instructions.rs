//! A fixed number of 32-byte echoes between two endpoints of one thread, over loopback with a clock that this program
//! moves: the same instructions in every run, to be counted under callgrind. `docs/count-instructions` does that, and
//! `docs/performance.md` has the results.
//!
//!     cargo run --release -p dunlin-rpc --example count_instructions 100000 callback 1
//!
//! Arguments: calls, layer (callback or async), calls in a batch (1 to 32).

use std::cell::RefCell;
use std::error::Error;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::Addr;
use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_rpc::{Endpoint, EndpointConfig, MsgBuf, Payload, Session};
use futures::future::join_all;

const ECHO: u8 = 1;
const SERVER: u32 = 1;
const CLIENT: u32 = 2;
/// The network's delay, and the step of the clock between two iterations of an endpoint.
const DELAY: Duration = Duration::from_micros(1);
/// Sessions: enough slots and credits for a batch.
const SESSIONS: usize = 4;
const BATCH_MAX: usize = 32;

/// Two endpoints and the network between them.
struct Pair {
    network: LoopbackNetwork,
    server: Endpoint<LoopbackTransport>,
    client: Endpoint<LoopbackTransport>,
    sessions: Vec<Session>,
}

impl Pair {
    fn new() -> Result<Pair, Box<dyn Error>> {
        let network = LoopbackNetwork::new(LoopbackConfig { delay: DELAY, ..LoopbackConfig::default() });
        let config = EndpointConfig { seed: Some(1), ..EndpointConfig::default() };
        let server = Endpoint::new(network.endpoint(SERVER)?, config.clone())?;
        server.register(ECHO, |request| {
            let payload = request.payload();
            request.respond(payload);
        })?;
        let client = Endpoint::new(network.endpoint(CLIENT)?, config)?;
        let mut pair = Pair { network, server, client, sessions: Vec::new() };
        for _ in 0..SESSIONS {
            let session = pair.drive(pair.client.connect(&Addr::Node(SERVER)))?;
            pair.sessions.push(session);
        }
        Ok(pair)
    }

    /// One iteration of each endpoint; each then finds what the other sent.
    fn turn(&self) {
        self.client.run_once();
        self.network.advance(DELAY);
        self.server.run_once();
        self.network.advance(DELAY);
    }

    /// Runs both endpoints until a future of the client is done.
    fn drive<F: Future>(&self, future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        loop {
            if let Some(output) = self.client.poll_once(future.as_mut()) {
                return output;
            }
            self.network.advance(DELAY);
            self.server.run_once();
            self.network.advance(DELAY);
        }
    }

    fn session(&self, i: usize) -> &Session {
        &self.sessions[i % SESSIONS]
    }
}

/// Calls with a continuation.
fn callback(pair: &Pair, calls: usize, batch: usize) -> Result<(), Box<dyn Error>> {
    let free: Rc<RefCell<Vec<Payload>>> = Rc::default();
    for _ in 0..batch {
        free.borrow_mut().push(MsgBuf::copy_from(&[7; 32])?.into());
    }
    let done = free.clone();
    let continuation = pair.client.register_continuation(move |completion| done.borrow_mut().push(completion.request));
    for _ in 0..calls / batch {
        for i in 0..batch {
            let request = free.borrow_mut().pop().ok_or("a call did not end")?;
            pair.session(i).enqueue_request(ECHO, request, continuation, 0)?;
        }
        while free.borrow().len() < batch {
            pair.turn();
        }
    }
    Ok(())
}

/// Calls that are awaited.
fn awaited(pair: &Pair, calls: usize, batch: usize) -> Result<(), Box<dyn Error>> {
    if batch == 1 {
        return pair.drive(async {
            let mut request = MsgBuf::copy_from(&[7; 32])?;
            for _ in 0..calls {
                request = pair.session(0).call(ECHO, request).await?.request;
            }
            Ok(())
        });
    }
    pair.drive(async {
        for _ in 0..calls / batch {
            let requests = (0..batch).map(|_| MsgBuf::copy_from(&[7; 32])).collect::<Result<Vec<_>, _>>()?;
            let calls = requests.into_iter().enumerate().map(|(i, request)| pair.session(i).call(ECHO, request));
            for reply in join_all(calls).await {
                reply?;
            }
        }
        Ok(())
    })
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [calls, layer, batch] = &arguments[..] else {
        return Err("give the number of calls, callback or async, and calls in a batch: 100000 callback 1".into());
    };
    let (calls, batch) = (calls.parse()?, batch.parse()?);
    if !(1..=BATCH_MAX).contains(&batch) {
        return Err(format!("a batch of {batch}: choose 1 to {BATCH_MAX}").into());
    }
    let pair = Pair::new()?;
    match layer.as_str() {
        "callback" => callback(&pair, calls, batch)?,
        "async" => awaited(&pair, calls, batch)?,
        other => return Err(format!("there is no layer {other:?}: choose callback or async").into()),
    }
    println!("{} calls completed", pair.client.stats().counters.calls_completed);
    Ok(())
}

fn main() {
    if let Err(error) = run() {
        eprintln!("count_instructions: {error}");
        std::process::exit(1);
    }
}
