//! `dunlin raft serve`.

use std::process::ExitCode;
use std::rc::Rc;

use anyhow::{Context, Result};
use clap::builder::RangedU64ValueParser;
use dunlin_net::AnyTransport;
use dunlin_rpc::Endpoint;
use dunlin_serve::Interrupt;
use dunlin_smr::kv::KvMachine;
use dunlin_smr::{LogStore, Node};

use super::home::Kind;
use super::replica::{Machinery, Replica, serve};
use crate::arguments::size::{bytes, human_bytes};

/// Bounds of the limit of keys and values: a snapshot of them is written and sent as a whole.
const LIMIT_MIN: u64 = 2 << 20;
const LIMIT_MAX: u64 = 2 << 30;

/// Be a replica of a key-value machine, until ctrl-C
///
/// SIGTERM and ctrl-C shut it down gracefully: a leader first transfers leadership. A second signal ends it at once. It
/// reports changes of the leader on standard error.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
All first members of a cluster are started with --new and the same --peers, and know each other by it. One that is added later is started with --join, and
then added: dunlin raft add. From then on a replica is started with neither: it knows the members from its log, and needs --peers for its own address only.
Without --new and --join an empty directory is refused, since a replica that has lost its log must not begin anew under its id.

Examples:
  dunlin raft serve --id 1 --data r1 --peers 1=udp://10.0.0.1:7801,2=udp://10.0.0.2:7801,3=udp://10.0.0.3:7801 --new
  dunlin raft serve --id 1 --data r1 --peers 1=udp://10.0.0.1:7801                           from then on
  dunlin raft serve --id 4 --data r4 --peers 4=udp://10.0.0.4:7801 --join
  dunlin raft serve --id 1 --data r1 --peers 1=udp://10.0.0.1:7801,2=udp://10.0.0.2:7801,3=udp://10.0.0.3:7801 --groups 16 --new
  dunlin raft serve --id 1 --volatile --peers 1=shm:one,2=shm:two,3=shm:three --reads lease --new

With --volatile a replica that has ended must not come back: remove it, and add another with an id that was never used. Nothing keeps it from being started with
--new again, and then writes that were acknowledged may be lost: let nothing restart it.")]
pub struct Arguments {
    #[command(flatten)]
    replica: Replica,
    /// Maximum size of the keys and values of a group, each item counting 64 bytes more, up to 2GiB; must be the same
    /// at all replicas, and cannot be changed
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = limit)]
    limit: u64,
    /// Number of groups over which keys are spread by their hash, each with its own leader; must be the same at all
    /// replicas, and cannot be changed
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = RangedU64ValueParser::<u16>::new().range(1..))]
    groups: u16,
}

pub fn limit(text: &str) -> Result<u64, String> {
    let bytes = bytes(text)? as u64;
    if !(LIMIT_MIN..=LIMIT_MAX).contains(&bytes) {
        return Err("give between 2MiB and 2GiB".into());
    }
    Ok(bytes)
}

/// A key-value machine.
struct KeyValue {
    limit: u64,
    groups: u16,
}

impl Machinery for KeyValue {
    type Machine = KvMachine;
    type Companion = ();

    fn machine(&self) -> Result<KvMachine> {
        KvMachine::new(self.limit).with_context(|| format!("no memory for --limit {}", human_bytes(self.limit)))
    }

    fn kind(&self) -> Kind {
        Kind::KeyValue { limit: self.limit, groups: self.groups }
    }

    fn groups(&self) -> u16 {
        self.groups
    }

    fn accompany<L: LogStore + 'static>(&self, _: &Rc<Endpoint<AnyTransport>>, _: &Node<KvMachine, L>) -> Result<()> {
        Ok(())
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    serve(&arguments.replica, KeyValue { limit: arguments.limit, groups: arguments.groups }, interrupt)
}
