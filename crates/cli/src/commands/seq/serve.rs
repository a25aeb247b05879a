//! `dunlin seq serve`.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use dunlin_net::{Addr, Transport};
use dunlin_rpc::EndpointStats;
use dunlin_seq::{Batching, Counter, NUMBERS_END, SeqService};
use dunlin_serve::metrics::{exposition, of_cores, of_endpoint};
use dunlin_serve::port::{Pages, Port};
use dunlin_serve::{
    Companion, Core, Interrupt, Mailboxes, Pace, ServeConfig, ServeError, Server, Service, Site, addresses,
};
use tokio::sync::oneshot;

use super::direct::{Direct, DirectArguments, Stats};
use super::figures::{Figures, of_keeper};
use super::office::{OfficeArguments, OfficeStats};
use super::replica;
use crate::commands::warn_of_exposure;
use crate::output;
use crate::settings::Source;

/// Prefix of the names of its metrics.
const METRICS_PREFIX: &str = "dunlin_seq";

/// Hand out numbers from one counter, until ctrl-C
///
/// All cores share the counter. It prints the number at which the next sequencer must begin when it ends in order. One
/// that was killed has not told: begin far above what it can have handed out, or use --replicated or --coord. With
/// --coord any number of sequencers compete for one lease of the cluster manager; its holder hands out numbers. With
/// --replicated, which comes before all other options, these are those of a replica.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, disable_help_subcommand = true)]
#[command(after_help = "\
Examples:
  dunlin seq serve --at shm:seq
  dunlin seq serve --at udp://127.0.0.1:7820 --start 5000000000 --metrics 127.0.0.1:9720
  dunlin seq serve --at shm:seq --cores 2 --pin 0,1
  dunlin seq serve --at shm:seq --direct-at shm:seq-s0        datagrams too: dunlin seq next --direct --at shm:seq-s0
  dunlin seq serve --replicated --help                        replicas, whose numbers never come twice
  dunlin seq serve --at udp://10.0.0.7:7820 --coord 1=udp://10.0.0.1:7901,2=udp://10.0.0.2:7901,3=udp://10.0.0.3:7901 --member 107
  dunlin seq next --at 1=udp://10.0.0.7:7820,2=udp://10.0.0.8:7820        whichever of the two holds the lease")]
pub struct Arguments {
    /// Where to serve: shm:NAME, udp://HOST:PORT, or one of each; port 0 takes a free one
    #[arg(long, value_name = "WHERE", required = true)]
    at: Vec<Addr>,
    /// The first number: above all that were handed out before
    #[arg(long, value_name = "NUMBER", default_value = "0")]
    start: u64,
    /// Cores: each is a thread with an address of its own, and one port higher than the one before
    #[arg(long, value_name = "CORES", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=i64::from(ServeConfig::CORES_MAX)))]
    cores: u16,
    #[command(flatten)]
    direct: DirectArguments,
    /// Processors to pin the cores to, one for each
    #[arg(long, value_name = "PROCESSORS", value_delimiter = ',')]
    pin: Vec<usize>,
    /// Serve metrics for Prometheus at http://HOST:PORT/metrics, and health at /healthz
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    office: OfficeArguments,
    #[command(flatten)]
    _source: Source,
    #[command(subcommand)]
    form: Option<Form>,
}

/// A sequencer of another form, which takes other options.
#[derive(Debug, clap::Subcommand)]
enum Form {
    #[command(long_flag = "replicated")]
    Replica(replica::Arguments),
}

/// The counters of a core.
struct Counts {
    core: u16,
    figures: Figures,
    endpoint: EndpointStats,
}

/// Asks a core for its counters.
struct Inquiry(oneshot::Sender<Counts>);

/// The service.
struct Sequencer {
    counter: Arc<Counter>,
}

struct SequencerCore<T: Transport> {
    site: Site<T, Inquiry>,
    service: SeqService,
}

impl<T: Transport + 'static> Core for SequencerCore<T> {
    type Letter = Inquiry;
    type Plan = ();
    type Error = ServeError;

    fn read(&mut self, Inquiry(answer): Inquiry) -> Pace {
        let (core, endpoint, timers) = (self.site.core, self.site.endpoint.stats(), self.site.endpoint.timers());
        let figures = Figures::of(self.service.stats(), self.service.counter(), || timers.boot_now());
        // The caller may be gone.
        let _ = answer.send(Counts { core, figures, endpoint });
        Pace::Go
    }
}

impl<T: Transport + 'static> Service<T> for Sequencer {
    type Core = SequencerCore<T>;
    type Ready = ();
    /// The numbers that were handed out.
    type Finish = u64;

    fn build(&self, site: Site<T, Inquiry>) -> Result<(SequencerCore<T>, ()), ServeError> {
        let service = SeqService::register(&site.endpoint, self.counter.clone(), Batching::Bursts)?;
        Ok((SequencerCore { site, service }, ()))
    }

    fn plan(&self, _: Vec<()>) -> Result<(), ServeError> {
        Ok(())
    }

    async fn finish(&self, mailboxes: &Mailboxes<Inquiry>) -> Result<u64, ServeError> {
        Ok(mailboxes.ask_all(Inquiry).await.iter().map(|counts| counts.figures.numbers()).sum())
    }
}

/// Runs the command.
pub fn run(arguments: Arguments, interrupt: Interrupt) -> Result<ExitCode> {
    if let Some(Form::Replica(arguments)) = &arguments.form {
        return replica::run(arguments, &interrupt);
    }
    let given = Counter::starting_at(arguments.start)?;
    let counter = Arc::new(if arguments.office.is_given() { Counter::idle() } else { given });
    let config = ServeConfig {
        listen: arguments.at,
        cores: arguments.cores,
        pin: arguments.pin,
        interrupt: interrupt.clone(),
        ..ServeConfig::named("sequencer")
    };
    let server = Server::start(Arc::new(Sequencer { counter: counter.clone() }), config)?;
    let exposed = server.addresses().iter().filter(|address| addresses::is_exposed(address));
    exposed.for_each(|address| warn_of_exposure(&address.to_string()));
    server.advice().iter().for_each(|advice| eprintln!("dunlin: {advice}"));
    let direct = Direct::start(&arguments.direct, &counter, server.cores(), &interrupt)?;
    let of_direct = direct.as_ref().map(Direct::stats);
    let office = OfficeStats::default();
    let of_office = arguments.office.is_given().then(|| office.clone());
    let port = arguments.metrics.map(|address| serve_metrics(address, &server, of_direct, of_office)).transpose()?;
    let by_datagrams = direct.iter().flat_map(Direct::addresses).map(|address| format!("datagrams at {address}"));
    let by_datagrams: Vec<String> = by_datagrams.collect();
    let about: Vec<String> = server.addresses_of_cores().iter().flatten().map(Addr::to_string).collect();
    let candidacy = arguments.office.compete(about.join(","), arguments.start, counter.clone(), office, &interrupt)?;
    let places = server.addresses().iter().map(Addr::to_string);
    let metrics = port.as_ref().map(|port| format!("metrics at http://{}/metrics", port.address()));
    let places: Vec<String> = places.chain(by_datagrams).chain(metrics).collect();
    let (places, start) = (places.join(", "), arguments.start);
    output::line(format_args!("serving numbers at {places}; from {start} on; ctrl-C ends it"))?;
    let ended = server.run();
    let by_datagrams = direct.map(Direct::stop).transpose();
    // Nobody draws any more, so the next holder may begin.
    let given_up = candidacy.map(Companion::stop).transpose();
    // The first is the error of the command.
    let failed = ended.as_ref().err().map(ToString::to_string).into_iter();
    let failed = failed.chain(by_datagrams.as_ref().err().map(|why| format!("{why:#}")));
    let failed = failed.chain(given_up.as_ref().err().map(|why| format!("{why:#}")));
    failed.skip(1).for_each(|why| eprintln!("dunlin: {why}"));
    let numbers = ended? + by_datagrams?.unwrap_or(0);
    if given_up?.is_some() {
        output::line(format_args!("{numbers} numbers handed out"))?;
        return Ok(ExitCode::SUCCESS);
    }
    match counter.next() {
        next if next >= NUMBERS_END => {
            output::line(format_args!("{numbers} numbers handed out; there are no more: the last one is handed out"))?;
        }
        next => output::line(format_args!("{numbers} numbers handed out; go on with --start {next}"))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Serves the metrics of all cores as long as the port lives.
fn serve_metrics(
    address: SocketAddr,
    server: &Server<Sequencer>,
    direct: Option<Stats>,
    office: Option<OfficeStats>,
) -> Result<Port, ServeError> {
    if !address.ip().is_loopback() {
        warn_of_exposure(&format!("http://{address}"));
    }
    let mailboxes = server.mailboxes().clone();
    let metrics = async move || {
        let families = |counts: Counts| {
            let mut families = counts.figures.families();
            families.extend(of_endpoint(&counts.endpoint));
            (counts.core, families)
        };
        let mut families = of_cores(mailboxes.ask_all(Inquiry).await.into_iter().map(families));
        families.extend(direct.iter().flat_map(Stats::families));
        families.extend(office.iter().map(|office| of_keeper(&office.get())));
        Ok::<_, ServeError>(exposition(METRICS_PREFIX, families))
    };
    Port::open(address, Pages { title: "Dunlin sequencer", metrics, failure: server.failure().clone() })
}
