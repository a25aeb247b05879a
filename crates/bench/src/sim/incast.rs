//! An incast on the simulated CX4, for several experiments.

use std::time::Duration;

use dunlin_rpc::congestion::{DcqcnConfig, TimelyConfig};
use dunlin_rpc::stats::RttHistogram;
use dunlin_rpc::wire::HEADER_BYTES;
use dunlin_rpc::{CongestionControl, EndpointConfig, MsgBuf, Switch};
use dunlin_sim::topology::{Ecn, Layout};
use dunlin_sim::trace::Series;
use dunlin_sim::{CostModel, Port, Topology};

use crate::datacenter::{Cluster, Member, SINK};
use crate::{BenchError, Trial};

/// The paper's largest incast.
pub(super) const CLIENTS_MAX: u32 = 100;
/// Bytes of a request.
const REQUEST_BYTES: usize = 8_000_000;
/// Bytes of its response.
const RESPONSE_BYTES: usize = 32;
/// Credits of a session, as in the paper.
const CREDITS: u16 = 32;
/// Bytes of eRPC's packets on Ethernet: 1,024 with the headers of Ethernet, IP and UDP (42), which the topology counts
/// as overhead.
const PACKET_BYTES: usize = 1024 - 42;
/// The server's host, and its thread.
pub(super) const VICTIM: u32 = 0;
const THREAD: u16 = 0;
/// Interval of checks while sessions open, and the time limit for all, in virtual time.
const OPENING: (u64, u64) = (100_000, 100_000_000);
/// Time between the first packet and the first measured one: the paper's clients had been running for long.
const SETTLING: u64 = 100_000_000;

/// Time span of the plots, and the interval of their samples.
const WATCHED: u64 = 10_000_000;
const SAMPLE_INTERVAL: u64 = 20_000;

/// The congestion control of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Control {
    /// None: only credits.
    Off,
    /// As in the paper.
    Timely,
    /// DCQCN, with marking switches.
    Ecn,
    /// The default. No switch marks.
    Ours,
}

impl Control {
    pub const ALL: [Control; 4] = [Control::Off, Control::Timely, Control::Ecn, Control::Ours];
    pub fn name(self) -> &'static str {
        match self {
            Control::Off => "no control",
            Control::Timely => "timely",
            Control::Ecn => "dcqcn (ECN)",
            Control::Ours => "swift (shipped)",
        }
    }

    fn congestion(self) -> CongestionControl {
        match self {
            Control::Off => CongestionControl::None,
            Control::Timely => CongestionControl::Timely(timely()),
            Control::Ecn => CongestionControl::Dcqcn(DcqcnConfig::default()),
            Control::Ours => CongestionControl::default(),
        }
    }

    /// The paper's CX4, with its packets; for DCQCN with marking as its authors advise for 25 Gbit/s.
    fn topology(self) -> Topology {
        let mut topology = Topology { mtu: PACKET_BYTES, ..Topology::cx4() };
        if let (Control::Ecn, Layout::TwoTier(layout)) = (self, &mut topology.layout) {
            let ecn = Ecn { kmin_bytes: 20_000, kmax_bytes: 120_000, pmax: 0.1 };
            (layout.tor.ecn, layout.spine.ecn) = (Some(ecn), Some(ecn));
        }
        topology
    }
}

/// Timely with the parameters in eRPC's paper. Two are missing there: the upper threshold is that of Timely's authors,
/// and the minimum rate is a third of what each of a hundred clients gets.
fn timely() -> TimelyConfig {
    TimelyConfig { t_high: Duration::from_micros(500), rate_min: 80_000_000, ..TimelyConfig::default() }
}

/// One incast.
#[derive(Debug, Clone, Copy)]
pub(super) struct Incast {
    /// Hosts with a client each.
    pub clients: u32,
    /// Their congestion control.
    pub control: Control,
    /// Measured time, in nanoseconds.
    pub time: u64,
}

/// What clients and their server observe.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outcome {
    /// Bit per second.
    pub bandwidth: f64,
    /// Round trips of packets, in nanoseconds.
    pub rtt_p50: f64,
    pub rtt_p99: f64,
}

/// The observations of an incast.
pub(super) struct Seen {
    /// Observations of clients once the incast had settled.
    pub outcome: Outcome,
    /// The victim's port during the first milliseconds.
    pub port: Series,
    /// Over the same time, in milliseconds, the median round trip of the packets since the previous point, in
    /// microseconds.
    pub rtts: Vec<(f64, f64)>,
}

/// An incast in a cluster: its sessions are open, and the first requests are in flight.
pub(super) struct Running {
    server: Member,
    clients: Vec<Member>,
}

impl Incast {
    /// Runs it from the beginning.
    pub fn run(self, trial: Trial<'_>) -> Result<Seen, BenchError> {
        let mut cluster = Cluster::of_trial(trial, &self.topology(trial), CostModel::default())?;
        cluster.datacenter().watch(SAMPLE_INTERVAL, [Port::HostDown { host: VICTIM }])?;
        let running = self.start(&mut cluster, trial)?;
        let watched = WATCHED.min(self.settling());
        let rtts = running.watch(&mut cluster, trial, watched)?;
        let port = cluster.datacenter().take_series();
        trial.run_for(&mut cluster, self.settling() - watched)?;
        Ok(Seen { outcome: running.measure(&mut cluster, trial, self.time)?, port, rtts })
    }

    /// Time to let pass before measuring: for a short run, twice its length.
    pub fn settling(self) -> u64 {
        SETTLING.min(2 * self.time)
    }

    /// The hosts and links given by the user, else those of the congestion control.
    pub fn topology(self, trial: Trial<'_>) -> Topology {
        trial.topology_or(self.control.topology())
    }

    /// The settings of every endpoint.
    pub fn config(self) -> EndpointConfig {
        EndpointConfig {
            credits: CREDITS,
            congestion: self.control.congestion(),
            observe_packets: Switch::On,
            ..EndpointConfig::default()
        }
    }

    /// Host of a client: clients are spread over all racks, including that of the victim.
    pub fn host(number: u32, clients: u32, hosts: u32) -> u32 {
        1 + (u64::from(number) * u64::from(hosts - 1) / u64::from(clients)) as u32
    }

    pub fn start(self, cluster: &mut Cluster, trial: Trial<'_>) -> Result<Running, BenchError> {
        let hosts = self.topology(trial).hosts();
        let server = cluster.join(VICTIM, THREAD, self.config())?;
        server.serve(RESPONSE_BYTES, 0)?;
        let mut clients = Vec::new();
        for number in 0..self.clients {
            let client = cluster.join(Self::host(number, self.clients, hosts), THREAD, self.config())?;
            let connecting = client.connect(server.addr());
            client.spawn(async move {
                let session = connecting.await?;
                let mut request = MsgBuf::with_len(REQUEST_BYTES)?;
                loop {
                    request = session.call(SINK, request).await.map_err(|failure| failure.error)?.request;
                }
            });
            clients.push(client);
        }
        let opened = || clients.iter().all(|client| client.endpoint().stats().counters.sessions_opened == 1);
        trial.run_until(cluster, OPENING, "sessions did not open", opened)?;
        Ok(Running { server, clients })
    }
}

impl Running {
    /// Lets `time` nanoseconds pass, and returns the round trips in that time, as in [`Seen`].
    fn watch(&self, cluster: &mut Cluster, trial: Trial<'_>, time: u64) -> Result<Vec<(f64, f64)>, BenchError> {
        let (mut before, mut rtts) = (self.rtt(), Vec::new());
        trial.watch_for(cluster, time, |now| {
            let rtt = self.rtt();
            let between = rtt.since(&before);
            if between.samples() > 0 {
                rtts.push((now as f64 / 1e6, between.percentile(50.0).as_nanos() as f64 / 1e3));
            }
            before = rtt;
        })?;
        Ok(rtts)
    }

    /// Measures for `time` nanoseconds.
    pub fn measure(&self, cluster: &mut Cluster, trial: Trial<'_>, time: u64) -> Result<Outcome, BenchError> {
        let before = self.snapshot();
        trial.run_for(cluster, time)?;
        let after = self.snapshot();
        let rtt = after.rtt.since(&before.rtt);
        let at = |percent| rtt.percentile(percent).as_nanos() as f64;
        if rtt.samples() == 0 {
            return Err(BenchError::no_samples("an incast"));
        }
        let bandwidth = (after.bytes - before.bytes) as f64 * 8e9 / time as f64;
        Ok(Outcome { bandwidth, rtt_p50: at(50.0), rtt_p99: at(99.0) })
    }

    fn snapshot(&self) -> Snapshot {
        let transport = self.server.endpoint().stats().transport;
        // Nearly all packets to the server are full packets of requests.
        let bytes = transport.rx_bytes - transport.rx_packets * HEADER_BYTES as u64;
        Snapshot { bytes, rtt: self.rtt() }
    }

    /// Round trips of the packets of all clients.
    fn rtt(&self) -> RttHistogram {
        let mut rtt = RttHistogram::default();
        for stats in self.clients.iter().map(|client| client.endpoint().stats()) {
            stats.packet_rtt.iter().for_each(|packets| rtt.add(packets));
        }
        rtt
    }
}

/// Counters at one time.
struct Snapshot {
    bytes: u64,
    rtt: RttHistogram,
}
