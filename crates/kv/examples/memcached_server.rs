//! The memcached protocol on one core, with a store that is a plain map and never full: to try clients, not for
//! production.
//!
//!     cargo run --release -p dunlin-kv --example memcached_server tcp://127.0.0.1:11211 unix:/tmp/kv.sock

use std::error::Error;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dunlin_kv::memcached::{Acceptor, ConnectionLimit, Listen, Service, Settings, Single};
use dunlin_store::Model;
use tokio::task::{LocalSet, spawn_local};

/// Concurrent connections: memcached's default.
const CONNECTIONS_MAX: usize = 1024;

fn now() -> u32 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as u32)
}

async fn serve(listens: Vec<Listen>) -> Result<(), Box<dyn Error>> {
    let limit = ConnectionLimit::new(CONNECTIONS_MAX);
    let acceptors =
        listens.iter().map(|listen| Acceptor::bind(listen, limit.clone())).collect::<Result<Vec<_>, _>>()?;
    let listens: Vec<Listen> = acceptors.iter().map(|acceptor| acceptor.listen().clone()).collect();
    let core = Rc::new(Single::new(Model::new(), now()));
    let service = Service::start(core.clone(), Settings::new(limit, None, now(), listens.clone()));
    for acceptor in acceptors {
        let service = service.clone();
        spawn_local(async move {
            loop {
                service.adopt(acceptor.accept().await);
            }
        });
    }
    for listen in listens {
        println!("serving memcached clients at {listen}; ctrl-C ends it");
    }
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        core.set_now(now());
    }
}

fn main() {
    let run = || -> Result<(), Box<dyn Error>> {
        let listens = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<Vec<Listen>, _>>()?;
        if listens.is_empty() {
            return Err("give at least one address: tcp://127.0.0.1:11211 or unix:/path/of/socket".into());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        LocalSet::new().block_on(&runtime, serve(listens))
    };
    if let Err(error) = run() {
        eprintln!("memcached_server: {error}");
        std::process::exit(1);
    }
}
