//! `dunlin coord serve`.

use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, ensure};
use dunlin_coord::embedded::Watchman;
use dunlin_coord::model::{Hearing, Machine};
use dunlin_coord::{Limits, WatchmanConfig};
use dunlin_net::AnyTransport;
use dunlin_rpc::Endpoint;
use dunlin_serve::Interrupt;
use dunlin_smr::{Client, ClientConfig, LogStore, Node};

use crate::arguments::time::{Human, ordinary};
use crate::commands::raft::home::Kind;
use crate::commands::raft::replica::{Machinery, Replica, serve};

/// When members fail: must be the same at all nodes.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Patience {
    /// Time after which a member that was not heard has failed; it is heard each second
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = ordinary)]
    failure_timeout: Duration,
    /// Time between two looks at who was heard; at most a quarter of the failure timeout
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = ordinary)]
    check_every: Duration,
}

impl Patience {
    /// The watchman's configuration.
    pub fn config(self) -> Result<WatchmanConfig> {
        let Patience { failure_timeout, check_every } = self;
        ensure!(
            check_every <= failure_timeout / 4,
            "--check-every {} is too long for --failure-timeout {}: choose at most a quarter of it",
            Human(check_every),
            Human(failure_timeout)
        );
        Ok(WatchmanConfig { failure_timeout, look_every: check_every })
    }
}

/// Be a node of the cluster manager, until ctrl-C
///
/// SIGTERM and ctrl-C shut it down gracefully: a leader first transfers leadership. A second signal ends it at once. It
/// reports changes of the leader on standard error.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Run three, on machines that fail separately, or one. All are started with --new and the same --peers for the first time, and know each other by it; from then on
without --new. Without it an empty directory is refused, since a node that has lost its log must not begin anew under its id.

Examples:
  dunlin coord serve --id 1 --data c1 --peers 1=udp://10.0.0.1:7901,2=udp://10.0.0.2:7901,3=udp://10.0.0.3:7901 --new
  dunlin coord serve --id 1 --data c1 --peers 1=udp://10.0.0.1:7901,2=udp://10.0.0.2:7901,3=udp://10.0.0.3:7901      from then on
  dunlin coord serve --id 1 --volatile --peers 1=shm:coord --failure-timeout 1s --new

With --volatile a node that has ended must not come back: remove it (dunlin raft remove), and add another with an id that was never used. Nothing keeps it from being
started with --new again, and then what was acknowledged may be lost: let nothing restart it.")]
pub struct Arguments {
    #[command(flatten)]
    replica: Replica,
    #[command(flatten)]
    patience: Patience,
}

/// A node as described by the command line.
struct Coordination {
    watchman: WatchmanConfig,
    hearing: Hearing,
    members: Vec<(u64, dunlin_net::Addr)>,
}

impl Machinery for Coordination {
    type Machine = Machine;
    type Companion = Watchman;

    fn machine(&self) -> Result<Machine> {
        Ok(Machine::new(Limits::default(), self.hearing.clone()))
    }

    fn kind(&self) -> Kind {
        Kind::Coordinator
    }

    fn accompany<L: LogStore + 'static>(
        &self,
        endpoint: &Rc<Endpoint<AnyTransport>>,
        node: &Node<Machine, L>,
    ) -> Result<Watchman> {
        let client = Client::new(endpoint, self.members.iter().cloned(), ClientConfig::default());
        Ok(Watchman::start(endpoint, node, client, self.hearing.clone(), self.watchman)?)
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    let watchman = arguments.patience.config()?;
    let members = arguments.replica.members().to_vec();
    serve(&arguments.replica, Coordination { watchman, hearing: Hearing::default(), members }, interrupt)
}
