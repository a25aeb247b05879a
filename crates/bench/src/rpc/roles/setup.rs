//! Transport and endpoint of one side of an experiment.

use std::net::{Ipv4Addr, SocketAddr};

use dunlin_net::fault::{FaultInjector, Faults};
use dunlin_net::shm::{ShmConfig, ShmTransport};
use dunlin_net::udp::{Coalesce, Connect, Offload, UdpConfig, UdpTransport};
use dunlin_net::{Addr, ShmName, Transport};
use dunlin_rpc::congestion::{CongestionControl, DcqcnConfig, SwiftConfig, TimelyConfig};
use dunlin_rpc::{EndpointConfig, Optimizations, Recovery, Switch};
use serde::{Deserialize, Serialize};

use crate::BenchError;

/// Linux's default `net.core.rmem_max`: the maximum receive buffer of an unprivileged process.
const RMEM_MAX_DEFAULT: usize = 212_992;
/// Every transport holds at least this many packets by default.
const DEFAULT_QUEUE_LEN: u32 = 4096;

/// The transport of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Carrier {
    /// Shared memory.
    Shm,
    /// Kernel UDP over the loopback interface.
    Udp,
}

impl Carrier {
    /// Both.
    pub const ALL: [Carrier; 2] = [Carrier::Shm, Carrier::Udp];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Carrier::Shm => "shm",
            Carrier::Udp => "udp",
        }
    }

    /// The address of a server in this process, which no other process uses.
    ///
    /// # Errors
    /// None happens: the name of the process is valid.
    pub(crate) fn own_address(self) -> Result<Addr, BenchError> {
        Ok(match self {
            Carrier::Shm => format!("shm:dunlin-bench-{}", std::process::id()).parse()?,
            Carrier::Udp => Addr::Udp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        })
    }
}

/// An optimization that can be switched off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Factor {
    /// The clock is read once per burst.
    BatchedTimestamps,
    /// Response buffers stay with the slots of the server.
    PreallocatedResponses,
    /// Single-packet requests are handled in place, where they were received.
    ZeroCopyRequests,
    /// Packets of an iteration are sent together.
    TransmitBatching,
    /// Sessions of a burst are prefetched.
    Prefetch,
    /// The first header is stored directly before the data.
    AdjacentHeader,
    /// One credit return answers the request packets of an iteration.
    CumulativeCreditReturns,
    /// One packet requests several response packets.
    CumulativeRequests,
    /// Congestion control gets no short round trips while it limits nothing.
    RateUpdateBypass,
    /// Congestion control is not consulted while it limits nothing.
    RateLimiterBypass,
    /// Cells of the receive queue are prefetched (shared memory only).
    CellPrefetch,
    /// Small packets to one destination share a datagram (UDP only).
    Coalescing,
    /// One system call carries many datagrams, both ways (UDP only).
    Offload,
    /// A peer that gets all packets gets a connected socket (UDP only).
    Connect,
}

/// The limit of client sessions besides their credits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Congestion {
    /// The default of an endpoint.
    AsShipped,
    /// None.
    Off,
    /// Timely as eRPC runs it.
    Timely,
    /// DCQCN. Neither transport of the experiments sees marks, so it gets no input.
    Dcqcn,
    /// A window after Swift.
    Swift,
}

impl Congestion {
    /// The endpoint's setting.
    fn control(self) -> CongestionControl {
        match self {
            Congestion::AsShipped => CongestionControl::default(),
            Congestion::Off => CongestionControl::None,
            Congestion::Timely => CongestionControl::Timely(TimelyConfig::default()),
            Congestion::Dcqcn => CongestionControl::Dcqcn(DcqcnConfig::default()),
            Congestion::Swift => CongestionControl::Swift(SwiftConfig::default()),
        }
    }
}

/// The loss recovery of both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LossRecovery {
    /// Holes are reported and filled.
    Selective,
    /// After a timeout, everything is retransmitted from the first lost packet on.
    GoBackN,
}

impl LossRecovery {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            LossRecovery::Selective => "selective",
            LossRecovery::GoBackN => "go-back-N",
        }
    }

    /// The endpoint's setting.
    fn recovery(self) -> Recovery {
        match self {
            LossRecovery::Selective => Recovery::Selective,
            LossRecovery::GoBackN => Recovery::GoBackN,
        }
    }
}

/// How both sides of an experiment are set up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// The transport.
    pub carrier: Carrier,
    /// Credits of a session.
    pub credits: u16,
    /// Credits for calls in the other direction.
    pub reverse_credits: u16,
    /// Sessions that must fit the receive queue.
    pub sessions: u32,
    /// Congestion control.
    pub congestion: Congestion,
    /// Loss recovery.
    pub recovery: LossRecovery,
    /// Optimizations that are switched off.
    pub without: Vec<Factor>,
    /// Share of packets that either side drops when sending.
    pub loss: f64,
    /// Whether the receive queue is that of an unprivileged process on a default system, whatever the number of
    /// sessions.
    pub unprivileged: bool,
}

/// Which side of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Server,
    Client,
}

/// An operation on a transport. It is compiled separately for each transport, as in a program with only one.
pub(crate) trait OnTransport {
    type Output;
    fn run<T: Transport + 'static>(self, transport: T) -> Result<Self::Output, BenchError>;
}

/// An operation on several transports of one kind.
pub(crate) trait OnTransports {
    type Output;
    fn run<T: Transport + 'static>(self, transports: Vec<T>) -> Result<Self::Output, BenchError>;
}

impl Setup {
    /// All defaults, for `sessions` sessions: with credits for calls in both directions.
    pub fn as_shipped(carrier: Carrier, sessions: u32) -> Self {
        Setup { reverse_credits: EndpointConfig::default().reverse_credits, sessions, ..Setup::new(carrier) }
    }

    /// For a few sessions, with calls from clients only.
    pub fn new(carrier: Carrier) -> Self {
        let defaults = EndpointConfig::default();
        Setup {
            carrier,
            credits: defaults.credits,
            reverse_credits: 0,
            sessions: 64,
            congestion: Congestion::AsShipped,
            recovery: LossRecovery::Selective,
            without: Vec::new(),
            loss: 0.0,
            unprivileged: false,
        }
    }

    /// The endpoint's settings.
    pub(crate) fn endpoint(&self) -> EndpointConfig {
        let switch = |factor| if self.has(factor) { Switch::On } else { Switch::Off };
        let optimizations = Optimizations {
            batched_timestamps: switch(Factor::BatchedTimestamps),
            preallocated_responses: switch(Factor::PreallocatedResponses),
            zero_copy_requests: switch(Factor::ZeroCopyRequests),
            transmit_batching: switch(Factor::TransmitBatching),
            prefetch: switch(Factor::Prefetch),
            adjacent_header: switch(Factor::AdjacentHeader),
            cumulative_credit_returns: switch(Factor::CumulativeCreditReturns),
            cumulative_requests: switch(Factor::CumulativeRequests),
            rate_update_bypass: switch(Factor::RateUpdateBypass),
            rate_limiter_bypass: switch(Factor::RateLimiterBypass),
        };
        let default = EndpointConfig::default();
        // In go-back-N only timeouts detect losses, and here packets are lost on one host as if they crossed a network.
        let rto_min_local =
            if self.recovery == LossRecovery::GoBackN { default.rto_min } else { default.rto_min_local };
        EndpointConfig {
            credits: self.credits,
            reverse_credits: self.reverse_credits,
            congestion: self.congestion.control(),
            recovery: self.recovery.recovery(),
            rto_min_local,
            optimizations,
            ..default
        }
    }

    /// Opens the transport, with losses if configured, and passes it on.
    pub(crate) fn on_lossy_transport<V: OnTransport>(&self, side: Side, visitor: V) -> Result<V::Output, BenchError> {
        if self.loss == 0.0 {
            return self.on_transport(side, visitor);
        }
        let faults = Faults { drop: self.loss, ..Faults::default() };
        // Each process loses different packets, in each run.
        let seed = u64::from(std::process::id());
        match self.carrier {
            Carrier::Shm => visitor.run(FaultInjector::new(self.shm(side, 0)?, seed, faults)?),
            Carrier::Udp => visitor.run(FaultInjector::new(self.udp()?, seed, faults)?),
        }
    }

    /// Opens the transport and passes it on.
    pub(crate) fn on_transport<V: OnTransport>(&self, side: Side, visitor: V) -> Result<V::Output, BenchError> {
        match self.carrier {
            Carrier::Shm => visitor.run(self.shm(side, 0)?),
            Carrier::Udp => visitor.run(self.udp()?),
        }
    }

    /// Opens `count` transports, each with an address of its own, and passes them on.
    pub(crate) fn on_transports<V: OnTransports>(
        &self,
        side: Side,
        count: usize,
        visitor: V,
    ) -> Result<V::Output, BenchError> {
        match self.carrier {
            Carrier::Shm => {
                visitor.run((0..count).map(|number| self.shm(side, number)).collect::<Result<Vec<_>, _>>()?)
            }
            Carrier::Udp => visitor.run((0..count).map(|_| self.udp()).collect::<Result<Vec<_>, _>>()?),
        }
    }

    /// The transport of this number of the process.
    fn shm(&self, side: Side, number: usize) -> Result<ShmTransport, BenchError> {
        let mut config = match side {
            // A name that no other process uses.
            Side::Server => ShmConfig::named(ShmName::new(&match number {
                0 => format!("dunlin-bench-{}", std::process::id()),
                _ => format!("dunlin-bench-{}-{number}", std::process::id()),
            })?),
            Side::Client => ShmConfig::anonymous(),
        };
        config.queue_len = config.queue_len.max(self.queue_len().next_power_of_two());
        if !self.has(Factor::CellPrefetch) {
            config.prefetch_cells = 0;
        }
        Ok(ShmTransport::new(&config)?)
    }

    fn udp(&self) -> Result<UdpTransport, BenchError> {
        let mut config = UdpConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        if !self.has(Factor::Coalescing) {
            config.coalesce = Coalesce::Off;
        }
        if !self.has(Factor::Offload) {
            (config.gso, config.gro) = (Offload::Off, Offload::Off);
        }
        if !self.has(Factor::Connect) {
            config.connect = Connect::Off;
        }
        if self.unprivileged {
            config.recv_buffer_bytes = RMEM_MAX_DEFAULT;
        } else if self.queue_len() > DEFAULT_QUEUE_LEN {
            // Claimed, not counted: loads with this many sessions have only a few dozen small packets in flight.
            config.rx_queue_len = Some(self.queue_len() as usize);
        }
        Ok(UdpTransport::bind(config)?)
    }

    /// Places of a receive queue for this many sessions: one for each direction in which a session has credits; more
    /// are lent.
    fn queue_len(&self) -> u32 {
        self.sessions * (u32::from(self.credits > 0) + u32::from(self.reverse_credits > 0))
    }

    fn has(&self, factor: Factor) -> bool {
        !self.without.contains(&factor)
    }
}
