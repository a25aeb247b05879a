//! Nested calls through three processes: a client sends a sentence to the front, which sends each word to the back, all
//! at the same time, and answers when all of them have come back reversed. The client's deadline is passed on.
//!
//! In one terminal:   cargo run --release -p dunlin-rpc --example nested back shm:back
//! In a second:       cargo run --release -p dunlin-rpc --example nested front shm:front shm:back
//! In a third:        cargo run --release -p dunlin-rpc --example nested call shm:front "drawer desserts live"
//!
//! Over UDP, write udp://127.0.0.1:31851 for the front and udp://127.0.0.1:31852 for the back. The front here binds one
//! address, so both must be of one kind; `AnyTransport::bind_all` gives an endpoint both kinds.

use std::error::Error;
use std::time::Duration;

use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{CallOptions, Endpoint, EndpointConfig, OwnedRequest, Session};
use futures::future::try_join_all;

/// Request type of the back: reverses a word.
const REVERSE_WORD: u8 = 1;
/// Request type of the front: reverses every word of a sentence.
const REVERSE_WORDS: u8 = 2;

const USAGE: &str = "say what to be: back ADDR | front ADDR BACK-ADDR | call FRONT-ADDR SENTENCE";

/// Reverses single words.
fn back(addr: &Addr) -> Result<(), Box<dyn Error>> {
    let endpoint = Endpoint::new(AnyTransport::bind(addr)?, EndpointConfig::default())?;
    endpoint.register(REVERSE_WORD, |request| {
        let word = request.payload();
        request.respond_with(word.len(), |out| {
            out.copy_from_slice(word);
            out.reverse();
        });
    })?;
    println!("the back serves at {}; ctrl-C ends it", endpoint.local_addr());
    endpoint.run_until(|| false);
    Ok(())
}

/// Reverses sentences with the help of the back.
fn front(addr: &Addr, back: &Addr) -> Result<(), Box<dyn Error>> {
    let endpoint = Endpoint::new(AnyTransport::bind(addr)?, EndpointConfig::default())?;
    let back = endpoint.block_on(endpoint.connect(back))?;
    endpoint.register_async(REVERSE_WORDS, move |request| reverse_words(request, back.clone()))?;
    println!("the front serves at {}; ctrl-C ends it", endpoint.local_addr());
    endpoint.run_until(|| false);
    Ok(())
}

/// The front's handler. While it awaits, the front serves other requests.
async fn reverse_words(request: OwnedRequest, back: Session) -> Vec<u8> {
    let mut options = CallOptions::default();
    options.timeout = request.time_left();
    let words = request.payload().split(|byte| *byte == b' ');
    let calls = words.map(|word| back.call_with(REVERSE_WORD, word.to_vec(), options));
    match try_join_all(calls).await {
        Ok(replies) => replies.iter().map(|reply| &reply.response[..]).collect::<Vec<_>>().join(&b' '),
        Err(failure) => format!("the back failed: {}", failure.error).into_bytes(),
    }
}

/// Calls the front.
fn call(front: &Addr, sentence: String) -> Result<(), Box<dyn Error>> {
    let endpoint = Endpoint::new(AnyTransport::for_peer(front)?, EndpointConfig::default())?;
    let session = endpoint.block_on(endpoint.connect(front))?;
    let options = CallOptions::timeout(Duration::from_secs(1));
    let reply = endpoint.block_on(session.call_with(REVERSE_WORDS, sentence.into_bytes(), options))?;
    println!("{}", String::from_utf8_lossy(&reply.response));
    Ok(())
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["back", addr] => back(&addr.parse()?),
        ["front", addr, behind] => front(&addr.parse()?, &behind.parse()?),
        ["call", addr, sentence] => call(&addr.parse()?, (*sentence).to_owned()),
        _ => Err(USAGE.into()),
    }
}

fn main() {
    if let Err(error) = run() {
        eprintln!("nested: {error}");
        std::process::exit(1);
    }
}
