//! Large requests between two hosts at 100 Gbit/s with packet faults, for the experiments on recovery.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_rpc::config::Recovery;
use dunlin_rpc::congestion::TimelyConfig;
use dunlin_rpc::{CongestionControl, EndpointConfig, MsgBuf};
use dunlin_sim::fault::{PacketFaults, Place};
use dunlin_sim::{CostModel, Fault, Port, Topology};

use crate::datacenter::{Cluster, SINK};
use crate::{BenchError, Trial};

/// Bytes of a request, as in the paper.
pub(super) const REQUEST_BYTES: usize = 8_000_000;
const RESPONSE_BYTES: usize = 32;
/// Credits of the session, as in the paper.
const CREDITS: u16 = 32;
/// The paper's retransmission timeout, which is not adaptive.
const RTO: Duration = Duration::from_millis(5);
/// Link rate of the hosts, in bits per second.
pub(super) const LINK_RATE: u64 = 100_000_000_000;
const CLIENT: u32 = 0;
const SERVER: u32 = 1;

/// The interval of checks for the first answer, and its time limit.
const FIRST_ANSWER: (u64, u64) = (1_000_000, 10_000_000_000);

/// Both kinds of recovery, with their names in reports.
pub(super) const RECOVERIES: [(Recovery, &str); 2] =
    [(Recovery::GoBackN, "go-back-N"), (Recovery::Selective, "selective")];

/// One client and one server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transfer {
    pub recovery: Recovery,
    /// The faults that each packet meets once on its path, in either direction.
    pub faults: PacketFaults,
    /// Its time, in nanoseconds.
    pub time: u64,
}

/// The result of a transfer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transferred {
    /// Bits of requests per second, from the first answer to the last.
    pub rate: f64,
    /// Packets that were lost.
    pub losses: u64,
}

/// When a request was answered, and how many had been.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    first: u64,
    last: u64,
    answered: u64,
}

impl Transfer {
    /// Runs it, and continues until `losses_min` packets are lost or `packets_max` are sent.
    pub fn run(&self, trial: Trial<'_>, losses_min: u64, packets_max: u64) -> Result<Transferred, BenchError> {
        let mut cluster = Cluster::of_trial(trial, &trial.topology_or(Topology::cx5_100g()), CostModel::default())?;
        let server = cluster.join(SERVER, 0, self.config())?;
        server.serve(RESPONSE_BYTES, 0)?;
        let client = cluster.join(CLIENT, 0, self.config())?;
        let progress = Rc::new(RefCell::new(Progress::default()));
        let (connecting, clock, seen) = (client.connect(server.addr()), client.clock(), progress.clone());
        client.spawn(async move {
            let session = connecting.await?;
            let mut request = MsgBuf::with_len(REQUEST_BYTES)?;
            seen.borrow_mut().first = clock.now();
            loop {
                request = session.call(SINK, request).await.map_err(|failure| failure.error)?.request;
                let mut seen = seen.borrow_mut();
                (seen.last, seen.answered) = (clock.now(), seen.answered + 1);
            }
        });
        // Each packet leaves by one of these ports, so it meets the faults once.
        for host in [CLIENT, SERVER] {
            let place = Place::Port(Port::HostUp { host });
            cluster.datacenter().inject(Fault::Packets { place, faults: self.faults })?;
        }
        trial.run_for(&mut cluster, self.time)?;
        let seen = |cluster: &mut Cluster| cluster.datacenter().counters();
        while seen(&mut cluster).lost < losses_min && seen(&mut cluster).sent < packets_max {
            trial.run_for(&mut cluster, self.time)?;
        }
        // However long the first answer takes.
        let is_answered = || progress.borrow().answered > 0;
        trial.run_until(&mut cluster, FIRST_ANSWER, "a large request was not answered", is_answered)?;
        let Progress { first, last, answered } = *progress.borrow();
        let rate = answered as f64 * REQUEST_BYTES as f64 * 8e9 / (last - first) as f64;
        Ok(Transferred { rate, losses: cluster.datacenter().counters().lost })
    }

    fn config(&self) -> EndpointConfig {
        let config = EndpointConfig { credits: CREDITS, recovery: self.recovery, ..EndpointConfig::default() };
        match self.recovery {
            // As in the paper.
            Recovery::GoBackN => {
                let timely = TimelyConfig { link_rate: LINK_RATE, ..TimelyConfig::default() };
                EndpointConfig {
                    rto_initial: RTO,
                    rto_min: RTO,
                    congestion: CongestionControl::Timely(timely),
                    ..config
                }
            }
            Recovery::Selective => config,
        }
    }
}
