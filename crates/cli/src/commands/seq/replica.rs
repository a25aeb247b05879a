//! `dunlin seq serve --replicated`.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use anyhow::Result;
use clap::builder::RangedU64ValueParser;
use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{Endpoint, Timers};
use dunlin_seq::reserve::{Keeper, KeeperConfig, RANGE_MAX, Replicated, ReplicatedConfig, Reservations};
use dunlin_seq::{Batching, Counter, NUMBERS_END, RUN_MAX, SeqService};
use dunlin_serve::metrics::Family;
use dunlin_serve::{Draining, Interrupt};
use dunlin_smr::{Client, ClientConfig, LogStore, Node};
use futures::future::select;

use super::direct::{Direct, DirectArguments};
use super::figures::{Figures, of_keeper};
use crate::commands::raft::home::Kind;
use crate::commands::raft::replica::{Machinery, Replica, serve};

/// How often the sequencer looks at who the replicas are.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Timeout of a reservation: several fit a term.
const RESERVE_TIMEOUT: Duration = Duration::from_millis(400);

/// Be a replica of a sequencer whose numbers never come twice, until ctrl-C
///
/// One of the replicas hands out numbers, from ranges that all reserve ahead of their use. If it fails, another one
/// takes its place when a lease of 2 s has run out, above everything that was reserved; if it is stopped in order, at
/// once. Clients are given all of them, and find the one.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
All are started with --new and the same --peers for the first time, and without --new from then on. An empty directory is refused without it, since a replica
that has lost its log must not begin anew under its id.

Examples:
  dunlin seq serve --replicated --id 1 --data q1 --peers 1=udp://10.0.0.1:7821,2=udp://10.0.0.2:7821,3=udp://10.0.0.3:7821 --new
  dunlin seq serve --replicated --id 1 --data q1 --peers 1=udp://10.0.0.1:7821                       from then on
  dunlin seq next --at 1=udp://10.0.0.1:7821,2=udp://10.0.0.2:7821,3=udp://10.0.0.3:7821
  dunlin raft status --at 1=udp://10.0.0.1:7821        how the replicas are")]
pub struct Arguments {
    #[command(flatten)]
    replica: Replica,
    /// The first number of all, the same at all replicas
    #[arg(long, value_name = "NUMBER", default_value = "0", value_parser = RangedU64ValueParser::<u64>::new().range(..NUMBERS_END))]
    start: u64,
    /// Numbers that are reserved at a time, in one commit: a crash loses up to one and a half times as many
    #[arg(long, value_name = "NUMBER", default_value = "1000000", value_parser = RangedU64ValueParser::<u64>::new().range(2 * u64::from(RUN_MAX)..=RANGE_MAX))]
    range: u64,
    #[command(flatten)]
    direct: DirectArguments,
}

/// A replica that a command line describes.
struct Sequencers {
    start: u64,
    range: u64,
    members: Vec<(u64, Addr)>,
    direct: DirectArguments,
    interrupt: Interrupt,
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Tells the sequencer's client who the replicas are, until this is dropped.
struct Following(Rc<RefCell<Option<Task>>>);

impl Drop for Following {
    fn drop(&mut self) {
        let task = self.0.borrow_mut().take();
        drop(task);
    }
}

/// The sequencer beside a replica.
struct Sequencer {
    _following: Following,
    keeper: Keeper,
    service: SeqService,
    direct: Option<Direct>,
}

impl Machinery for Sequencers {
    type Machine = Reservations;
    type Companion = Sequencer;

    fn machine(&self) -> Result<Reservations> {
        Ok(Reservations::new())
    }

    fn kind(&self) -> Kind {
        Kind::Sequencer
    }

    fn accompany<L: LogStore + 'static>(
        &self,
        endpoint: &Rc<Endpoint<AnyTransport>>,
        node: &Node<Reservations, L>,
    ) -> Result<Sequencer> {
        let config = ClientConfig { timeout: RESERVE_TIMEOUT, ..ClientConfig::default() };
        let client = Rc::new(Client::new(endpoint, self.members.iter().cloned(), config));
        let (following, node, timers) = (client.clone(), node.clone(), endpoint.timers());
        let work = async move {
            loop {
                following.follow(&node.status());
                timers.sleep(LOOK_EVERY).await;
            }
        };
        let task: Rc<RefCell<Option<Task>>> = Rc::new(RefCell::new(Some(Box::pin(work))));
        let running = task.clone();
        endpoint.spawn(poll_fn(move |context| {
            running.borrow_mut().as_mut().map_or(Poll::Ready(()), |task| task.as_mut().poll(context))
        }));
        let counter = Arc::new(Counter::idle());
        let reserve = Replicated::new(client, ReplicatedConfig { start: self.start, ..ReplicatedConfig::default() })?;
        let keeper =
            Keeper::start(endpoint, &counter, reserve, KeeperConfig { range: self.range, ..KeeperConfig::default() });
        let direct = Direct::start(&self.direct, &counter, 1, &self.interrupt)?;
        let service = SeqService::register(endpoint, counter, Batching::Bursts)?;
        Ok(Sequencer { _following: Following(task), keeper, service, direct })
    }

    fn families(&self, sequencer: &Sequencer, timers: &Timers) -> Vec<Family> {
        let Sequencer { keeper, service, direct, .. } = sequencer;
        let mut families = Figures::of(service.stats(), service.counter(), || timers.boot_now()).families();
        families.push(of_keeper(&keeper.stats()));
        families.extend(direct.iter().flat_map(|direct| direct.stats().families()));
        families
    }

    fn dismiss(&self, sequencer: Sequencer) -> Result<()> {
        let Sequencer { direct, .. } = sequencer;
        direct.map_or(Ok(()), |direct| direct.stop().map(drop))
    }

    /// Gives up the office while this replica still leads, if it does.
    fn part(&self, sequencer: &Sequencer, timers: Timers) -> Draining {
        let keeper = sequencer.keeper.clone();
        Box::pin(async move {
            select(pin!(keeper.stop()), pin!(timers.sleep(RELEASE_MAX))).await;
        })
    }
}

/// How long the holder may take to give up its office.
const RELEASE_MAX: Duration = Duration::from_secs(1);

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    let Arguments { replica, start, range, direct } = arguments;
    let (members, direct) = (replica.members().to_vec(), direct.clone());
    serve(
        replica,
        Sequencers { start: *start, range: *range, members, direct, interrupt: interrupt.clone() },
        interrupt,
    )
}
