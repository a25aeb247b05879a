//! A complete service: a counter on any number of cores, with metrics, health and graceful shutdown, and its client.
//!
//! In one terminal:   cargo run --release -p dunlin-serve --example counter serve udp://127.0.0.1:7800 2
//! In another:        cargo run --release -p dunlin-serve --example counter add udp://127.0.0.1:7800 5
//!                    curl http://127.0.0.1:9800/metrics http://127.0.0.1:9800/healthz

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;
use std::sync::Arc;

use dunlin_net::{Addr, AnyTransport, Transport};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_serve::metrics::{Family, Kind, exposition};
use dunlin_serve::port::{Pages, Port};
use dunlin_serve::{Channel, ChannelConfig, Core, Pace, ServeConfig, ServeError, Server, Service, Site, signals};
use tokio::sync::oneshot;

/// Adds a number and answers with the sum, both of eight bytes, little-endian.
const ADD: u8 = 1;

/// Asks a core for its sum.
struct Inquiry(oneshot::Sender<u64>);

struct Counter;

struct CounterCore {
    sum: Rc<Cell<u64>>,
}

impl Core for CounterCore {
    type Letter = Inquiry;
    type Plan = ();
    type Error = ServeError;

    fn read(&mut self, Inquiry(answer): Inquiry) -> Pace {
        // The caller may have gone away.
        let _ = answer.send(self.sum.get());
        Pace::Go
    }
}

impl<T: Transport + 'static> Service<T> for Counter {
    type Core = CounterCore;
    type Ready = ();
    /// The final sum, over all cores.
    type Finish = u64;

    fn build(&self, site: Site<T, Inquiry>) -> Result<(CounterCore, ()), ServeError> {
        let sum: Rc<Cell<u64>> = Rc::default();
        let counted = sum.clone();
        site.endpoint.register(ADD, move |request| {
            // A request that is dropped is answered with an error.
            let Ok(more) = request.payload().try_into().map(u64::from_le_bytes) else { return };
            counted.set(counted.get().wrapping_add(more));
            request.respond(&counted.get().to_le_bytes());
        })?;
        Ok((CounterCore { sum }, ()))
    }

    fn plan(&self, _: Vec<()>) -> Result<(), ServeError> {
        Ok(())
    }

    async fn finish(&self, mailboxes: &dunlin_serve::Mailboxes<Inquiry>) -> Result<u64, ServeError> {
        Ok(mailboxes.ask_all(Inquiry).await.iter().sum())
    }
}

fn serve(listen: Addr, cores: u16) -> Result<(), Box<dyn Error>> {
    let interrupt = signals::install()?;
    let config = ServeConfig { listen: vec![listen], cores, interrupt, ..ServeConfig::named("counter") };
    let server = Server::start(Arc::new(Counter), config)?;
    let mailboxes = server.mailboxes().clone();
    let metrics = async move || {
        let sum = mailboxes.ask_all(Inquiry).await.iter().sum();
        Ok::<_, ServeError>(exposition("counter", vec![Family::one(Kind::Counter, "added", "The sum.", sum)]))
    };
    let pages = Pages { title: "A counter", metrics, failure: server.failure().clone() };
    let port = Port::open("127.0.0.1:9800".parse()?, pages)?;
    println!("counting at {:?}, metrics at http://{}/metrics", server.addresses_of_cores(), port.address());
    println!("the sum was {}", server.run()?);
    Ok(())
}

fn add(server: Addr, more: u64) -> Result<(), Box<dyn Error>> {
    let endpoint = Rc::new(Endpoint::new(AnyTransport::for_peer(&server)?, EndpointConfig::default())?);
    let channel = Channel::new(&endpoint, vec![server], ChannelConfig::default());
    // Retried only if nothing ran: the number must not be added twice.
    let response = endpoint.block_on(channel.call(ADD, more.to_le_bytes().to_vec()))?;
    println!("the sum of that core is {}", u64::from_le_bytes(response[..].try_into()?));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", listen, cores] => serve(listen.parse()?, cores.parse()?),
        ["add", server, more] => add(server.parse()?, more.parse()?),
        _ => Err("give: serve ADDRESS CORES, or add ADDRESS NUMBER".into()),
    }
}
