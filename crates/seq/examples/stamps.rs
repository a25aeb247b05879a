//! Stamps log records: writers on several threads give each record a number, and the records of all, sorted by it, are
//! in an order that agrees with real time. Each thread has an endpoint of its own; its writers share requests.
//!
//! ```text
//! cargo run -p dunlin-seq --example stamps                          a sequencer of its own
//! cargo run -p dunlin-seq --example stamps -- udp://10.0.0.7:7820   one that runs
//! ```

use std::error::Error;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;

use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_seq::{Batching, Client, ClientConfig, Counter, SeqService};
use futures::future::join_all;

type Failure = Box<dyn Error + Send + Sync>;

const THREADS: usize = 2;
const WRITERS: usize = 3;
const RECORDS: usize = 4;

/// A record, and its place in the log of all.
struct Record {
    stamp: u64,
    text: String,
}

/// What the writers of one thread write.
fn write(sequencer: &Addr, thread: usize) -> Result<Vec<Record>, Failure> {
    let endpoint = Rc::new(Endpoint::new(AnyTransport::for_peer(sequencer)?, EndpointConfig::default())?);
    let client = Client::new(&endpoint, vec![sequencer.clone()], ClientConfig::default());
    let client = &client;
    let writers = (0..WRITERS).map(|writer| async move {
        let mut records = Vec::new();
        for number in 0..RECORDS {
            let stamp = client.next().await?;
            records.push(Record { stamp, text: format!("thread {thread}, writer {writer}, record {number}") });
        }
        Ok::<_, Failure>(records)
    });
    let all: Result<Vec<Vec<Record>>, Failure> = endpoint.block_on(join_all(writers)).into_iter().collect();
    eprintln!("thread {thread}: {:?}", client.stats());
    Ok(all?.into_iter().flatten().collect())
}

/// Serves numbers on a thread of its own until the flag is set.
fn serve(stop: Arc<AtomicBool>) -> Result<Addr, Failure> {
    let (ready, is_ready) = mpsc::channel();
    thread::spawn(move || -> Result<(), Failure> {
        let endpoint = Endpoint::new(AnyTransport::bind(&"udp://127.0.0.1:0".parse()?)?, EndpointConfig::default())?;
        SeqService::register(&endpoint, Arc::new(Counter::starting_at(1000)?), Batching::Bursts)?;
        ready.send(endpoint.local_addr())?;
        endpoint.run_until(|| stop.load(Relaxed));
        Ok(())
    });
    Ok(is_ready.recv()?)
}

fn main() -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let sequencer = match std::env::args().nth(1) {
        Some(address) => address.parse()?,
        None => serve(stop.clone())?,
    };
    let mut log = Vec::new();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn({
                    let sequencer = sequencer.clone();
                    move || write(&sequencer, thread)
                })
            })
            .collect();
        for thread in threads {
            log.extend(thread.join().expect("a thread of writers panicked")?);
        }
        Ok::<_, Failure>(())
    })?;
    stop.store(true, Relaxed);
    log.sort_by_key(|record| record.stamp);
    log.iter().for_each(|Record { stamp, text }| println!("{stamp}  {text}"));
    Ok(())
}
