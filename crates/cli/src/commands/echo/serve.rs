//! `dunlin echo serve`.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Result;
use dunlin_bench::echo::ECHO;
use dunlin_net::{Addr, Transport};
use dunlin_rpc::{Endpoint, EndpointStats};
use dunlin_serve::metrics::{exposition, of_cores, of_endpoint};
use dunlin_serve::port::{Pages, Port};
use dunlin_serve::{Core, Interrupt, Mailboxes, Pace, ServeConfig, ServeError, Server, Service, Site, addresses};
use tokio::sync::oneshot;

use crate::commands::warn_of_exposure;
use crate::output;
use crate::settings::Source;

/// Prefix of the metric names.
const METRICS_PREFIX: &str = "dunlin_echo";

/// Echo each request, until ctrl-C
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin echo serve --at shm:echo
  dunlin echo serve --at udp://0.0.0.0:31850
  dunlin echo serve --at shm:echo --at udp://127.0.0.1:31850 --cores 2 --metrics 127.0.0.1:9700")]
pub struct Arguments {
    /// Where to serve: shm:NAME, udp://HOST:PORT, or one of each; port 0 takes a free one
    #[arg(long, value_name = "WHERE", required = true)]
    at: Vec<Addr>,
    /// Cores: each is a thread with an address of its own, and one port higher than the one before
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u16).range(1..=i64::from(ServeConfig::CORES_MAX)))]
    cores: u16,
    /// CPUs to pin the cores to, one for each
    #[arg(long, value_name = "PROCESSORS", value_delimiter = ',')]
    pin: Vec<usize>,
    /// Serve metrics for Prometheus at http://HOST:PORT/metrics, and health at /healthz
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<SocketAddr>,
    /// Print the counters of each endpoint at the end
    #[arg(long)]
    stats: bool,
    #[command(flatten)]
    _source: Source,
}

/// Asks a core for its number and its endpoint's counters.
struct Inquiry(oneshot::Sender<(u16, EndpointStats)>);

/// The service.
struct Echo;

struct EchoCore<T: Transport> {
    number: u16,
    endpoint: Rc<Endpoint<T>>,
}

impl<T: Transport + 'static> Core for EchoCore<T> {
    type Letter = Inquiry;
    type Plan = ();
    type Error = ServeError;

    fn read(&mut self, Inquiry(answer): Inquiry) -> Pace {
        // The caller may be gone.
        let _ = answer.send((self.number, self.endpoint.stats()));
        Pace::Go
    }
}

impl<T: Transport + 'static> Service<T> for Echo {
    type Core = EchoCore<T>;
    type Ready = ();
    /// The counters of each core.
    type Finish = Vec<EndpointStats>;

    fn build(&self, site: Site<T, Inquiry>) -> Result<(EchoCore<T>, ()), ServeError> {
        site.endpoint.register(ECHO, |request| {
            let payload = request.payload();
            request.respond(payload);
        })?;
        Ok((EchoCore { number: site.core, endpoint: site.endpoint }, ()))
    }

    fn plan(&self, _: Vec<()>) -> Result<(), ServeError> {
        Ok(())
    }

    async fn finish(&self, mailboxes: &Mailboxes<Inquiry>) -> Result<Vec<EndpointStats>, ServeError> {
        Ok(mailboxes.ask_all(Inquiry).await.into_iter().map(|(_, stats)| stats).collect())
    }
}

/// Runs the command.
pub fn run(arguments: Arguments, interrupt: Interrupt) -> Result<ExitCode> {
    let config = ServeConfig {
        listen: arguments.at,
        cores: arguments.cores,
        pin: arguments.pin,
        interrupt,
        ..ServeConfig::named("echo")
    };
    let server = Server::start(Arc::new(Echo), config)?;
    let exposed = server.addresses().iter().filter(|address| addresses::is_exposed(address));
    exposed.for_each(|address| warn_of_exposure(&address.to_string()));
    server.advice().iter().for_each(|advice| eprintln!("dunlin: {advice}"));
    let port = arguments.metrics.map(|address| serve_metrics(address, &server)).transpose()?;
    let places = server.addresses().iter().map(Addr::to_string);
    let metrics = port.as_ref().map(|port| format!("metrics at http://{}/metrics", port.address()));
    let places: Vec<String> = places.chain(metrics).collect();
    output::line(format_args!("serving echoes at {}; ctrl-C ends it", places.join(", ")))?;
    let stats = server.run()?;
    let answered: u64 = stats.iter().map(|stats| stats.counters.requests_handled).sum();
    output::line(format_args!("{answered} requests answered"))?;
    if arguments.stats {
        stats.iter().try_for_each(output::line)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Serves the metrics of all cores as long as the port lives.
fn serve_metrics(address: SocketAddr, server: &Server<Echo>) -> Result<Port, ServeError> {
    if !address.ip().is_loopback() {
        warn_of_exposure(&format!("http://{address}"));
    }
    let mailboxes = server.mailboxes().clone();
    let metrics = async move || {
        let cores = mailboxes.ask_all(Inquiry).await.into_iter().map(|(core, stats)| (core, of_endpoint(&stats)));
        Ok::<_, ServeError>(exposition(METRICS_PREFIX, of_cores(cores)))
    };
    Port::open(address, Pages { title: "Dunlin echo server", metrics, failure: server.failure().clone() })
}
