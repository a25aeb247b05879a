//! The experiments on the RPC library, and on what clients that misbehave cost.

mod misbehaving;
pub(crate) mod roles;
mod rpc_bandwidth;
mod rpc_busy;
mod rpc_cc_cost;
mod rpc_factors;
mod rpc_latency;
pub(crate) mod rpc_loss;
#[cfg(feature = "peers")]
mod rpc_peers;
mod rpc_rate;
mod rpc_sessions;
mod rpc_switch;
mod rpc_wakeup;
mod rpc_workers;
pub(crate) mod runs;
mod serve_handle;

use dunlin_lab::peer::Entry;

use crate::experiments::{Area, Experiment};

pub(crate) const AREA: Area = Area { experiments: EXPERIMENTS, roles: ROLES, papers: include_str!("papers.toml") };

const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "rpc-latency",
        paper: "eRPC Table 2",
        about: "latency of a 32 B echo, one outstanding",
        run: rpc_latency::run,
    },
    Experiment {
        name: "rpc-rate",
        paper: "eRPC Figure 4",
        about: "rate of 32 B echoes in batches of 1, 3 and 11, up to 60 in flight",
        run: rpc_rate::run,
    },
    Experiment {
        name: "rpc-factors",
        paper: "eRPC Table 3",
        about: "the same rate with one optimization after another switched off",
        run: rpc_factors::run,
    },
    Experiment {
        name: "rpc-cc-cost",
        paper: "eRPC section 6.2",
        about: "the same rate with each kind of congestion control against none",
        run: rpc_cc_cost::run,
    },
    Experiment {
        name: "rpc-sessions",
        paper: "eRPC section 6.3",
        about: "rate over 20,000 sessions against 100, and memory of an idle session",
        run: rpc_sessions::run,
    },
    Experiment {
        name: "rpc-bandwidth",
        paper: "eRPC Figure 6",
        about: "bandwidth of requests of 512 B to 8 MiB, one outstanding",
        run: rpc_bandwidth::run,
    },
    Experiment {
        name: "rpc-loss",
        paper: "eRPC Table 4",
        about: "bandwidth of 8 MiB requests while packets are lost",
        run: rpc_loss::run,
    },
    Experiment {
        name: "rpc-workers",
        paper: "eRPC section 3.2",
        about: "latency of quick calls beside a 1 ms handler, in the event loop and on a worker",
        run: rpc_workers::run,
    },
    Experiment {
        name: "rpc-switch",
        paper: "FaSST section 4.1",
        about: "time from one task of an endpoint to the next, beside a plain loop of polls",
        run: rpc_switch::run,
    },
    Experiment {
        name: "rpc-wakeup",
        paper: "beyond the papers",
        about: "what an idle endpoint costs, and how fast one that sleeps wakes",
        run: rpc_wakeup::run,
    },
    Experiment {
        name: "rpc-busy",
        paper: "beyond the papers",
        about: "rate and latency beside a neighbour on the server's core, against bare echoes",
        run: rpc_busy::run,
    },
    Experiment {
        name: "serve-handle",
        paper: "beyond the papers",
        about: "latency of a call through a handle of another thread, beside the bare call",
        run: serve_handle::run,
    },
    Experiment {
        name: "misbehaving",
        paper: "beyond the papers",
        about: "rate of a working client, and memory of its server, beside clients that misbehave",
        run: misbehaving::run,
    },
    #[cfg(feature = "peers")]
    Experiment {
        name: "rpc-peers",
        paper: "beyond the papers",
        about: "the same 32 B echo with tonic (gRPC) and tarpc over loopback TCP",
        run: rpc_peers::run,
    },
];

const ROLES: &[Entry] = &[
    Entry::of::<roles::LatencyFloor>(),
    Entry::of::<roles::RateFloor>(),
    Entry::of::<roles::BandwidthFloor>(),
    Entry::of::<roles::WakeFloor>(),
    Entry::of::<roles::CrossingCalls>(),
    Entry::of::<roles::EchoServer>(),
    Entry::of::<roles::LatencyClient>(),
    Entry::of::<roles::SlicedEchoes>(),
    Entry::of::<roles::RateClient>(),
    Entry::of::<roles::RatesInTurn>(),
    Entry::of::<roles::Switching>(),
    Entry::of::<roles::Symmetric>(),
    Entry::of::<roles::BandwidthClient>(),
    Entry::of::<roles::SessionsClient>(),
    Entry::of::<roles::SlowServer>(),
    Entry::of::<roles::WorkersClient>(),
    Entry::of::<roles::Connections>(),
    Entry::of::<roles::LimitedServer>(),
    Entry::of::<roles::Hoarder>(),
    Entry::of::<roles::ConnectBursts>(),
    Entry::of::<roles::ForgedUnreachables>(),
    Entry::of::<roles::Guesses>(),
    Entry::of::<roles::ForgedGuesses>(),
    Entry::of::<roles::Stopper>(),
    Entry::of::<roles::AskCounted>(),
    Entry::of::<roles::LostCalls>(),
    Entry::of::<roles::ShortPath>(),
    Entry::of::<roles::Sender>(),
    Entry::of::<roles::Sleeper>(),
    Entry::of::<roles::IdleWatcher>(),
    Entry::of::<roles::Alarm>(),
    #[cfg(feature = "peers")]
    Entry::of::<rpc_peers::OtherClient>(),
    #[cfg(feature = "peers")]
    Entry::of::<rpc_peers::OtherServer>(),
];
