//! A node of the cluster manager, and its members and watchers.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_coord::embedded::{Embedded, Watchman};
use dunlin_coord::model::{Hearing, Machine};
use dunlin_coord::{Condition, Coordinator, HEARTBEAT_EVERY, Limits, Scope, Watch, WatchmanConfig, attend};
use dunlin_lab::measure::{Latencies, Percentiles, cpu_nanos, shared_nanos};
use dunlin_lab::peer::{Control, Role};
use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::config::PeerLimits;
use dunlin_rpc::{Endpoint, EndpointConfig, MsgBuf, Session};
use dunlin_smr::{Beginning, Client, ClientConfig, MemoryLog, Node, NodeConfig};
use serde::{Deserialize, Serialize};

use crate::BenchError;
use crate::rpc::roles::IDLE_TIMES;

/// Watchers of one client: fewer than a client can have at one node.
const WATCHERS_OF_CLIENT: usize = 5_000;
/// Commands and reads that a node handles at a time, besides watchers.
const OTHERS: u32 = 16_384;
/// Pause after members have joined, or watchers were told, until all are waiting again.
const SETTLED: Duration = Duration::from_millis(1_500);
/// Interval of checks whether all watchers were told.
const LOOK: Duration = Duration::from_micros(200);
/// Time limit for telling a watcher.
const TOLD_WITHIN: Duration = Duration::from_secs(10);
/// The watched path.
const WATCHED: &str = "/watched";

fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Replica(error.to_string())
}

fn endpoint(deferred_requests_max: u32) -> Result<Rc<Endpoint<AnyTransport>>, BenchError> {
    let config = EndpointConfig {
        deferred_requests_max,
        peer_limits: PeerLimits { deferred_requests_max, ..PeerLimits::default() },
        ..EndpointConfig::default()
    };
    Ok(Rc::new(Endpoint::new(AnyTransport::bind(&"udp://127.0.0.1:0".parse()?)?, config)?))
}

fn client(endpoint: &Rc<Endpoint<AnyTransport>>, node: &str) -> Result<Embedded<AnyTransport>, BenchError> {
    let node: Addr = node.parse()?;
    Ok(Embedded::new(Client::new(endpoint, [(1, node)], ClientConfig::default())))
}

/// The only node of a cluster manager, with its log in memory, until it is stopped. It sleeps when idle, and also
/// serves [`IDLE_TIMES`].
#[derive(Debug, Serialize, Deserialize)]
pub struct CoordNode {
    /// Maximum number of watchers.
    pub watchers_max: usize,
}

impl Role for CoordNode {
    const NAME: &'static str = "node of the cluster manager";
    /// Its address.
    type Ready = String;
    type Output = ();
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<(), BenchError> {
        let endpoint = endpoint(self.watchers_max as u32 + OTHERS)?;
        endpoint.register(IDLE_TIMES, |request| {
            let [cpu, now] = [cpu_nanos(), shared_nanos()].map(u64::to_le_bytes);
            request.respond(&[cpu, now].concat());
        })?;
        let members = vec![(1, endpoint.local_addr())];
        let (hearing, config) =
            (Hearing::default(), NodeConfig { kept_questions_max: self.watchers_max, ..NodeConfig::new(1) });
        let machine = Machine::new(Limits::default(), hearing.clone());
        let node = Node::start(&endpoint, config, MemoryLog::new(), machine, Beginning::First(members.clone()))?;
        let client = Client::new(&endpoint, members, ClientConfig::default());
        let watchman = Watchman::start(&endpoint, &node, client, hearing, WatchmanConfig::default()).map_err(failed)?;
        control.ready(endpoint.local_addr().to_string());
        endpoint.run_until(|| control.stopping());
        drop(watchman);
        Ok(())
    }
}

/// Members that send a heartbeat each second.
#[derive(Debug, Serialize, Deserialize)]
pub struct CoordMembers {
    /// The node.
    pub node: String,
    /// Number of members.
    pub members: u64,
    /// Length of the measured run.
    pub run: Duration,
}

/// Measured by members.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct MembersFigures {
    /// Share of a core that the node used, in percent.
    pub core_share: f64,
    /// Heartbeats that it answered per second.
    pub heartbeats: f64,
}

impl Role for CoordMembers {
    const NAME: &'static str = "members of a cluster";
    type Ready = ();
    type Output = MembersFigures;
    type Error = BenchError;

    fn run(self, _: &Control<Self>) -> Result<MembersFigures, BenchError> {
        let endpoint = endpoint(OTHERS)?;
        let coordinator = Rc::new(client(&endpoint, &self.node)?);
        let heard = Rc::<Cell<u64>>::default();
        endpoint.block_on(async {
            for id in 1..=self.members {
                let membership = coordinator.join(id, b"").await.map_err(failed)?;
                let (coordinator, heard) = (coordinator.clone(), heard.clone());
                // Heartbeats are spread over the second, as members join.
                let phase = HEARTBEAT_EVERY.mul_f64(id as f64 / self.members as f64);
                endpoint.spawn(async move {
                    coordinator.sleep_until(coordinator.now() + phase.as_nanos() as u64).await;
                    attend(&*coordinator, &membership, HEARTBEAT_EVERY, |_| heard.set(heard.get() + 1)).await;
                });
            }
            let session = endpoint.connect(&self.node.parse()?).await?;
            endpoint.timers().sleep(SETTLED).await;
            let (before, count) = (times(&session).await?, heard.get());
            endpoint.timers().sleep(self.run).await;
            let after = times(&session).await?;
            let elapsed = (after.1 - before.1).max(1) as f64;
            let heartbeats = (heard.get() - count) as f64 * 1e9 / elapsed;
            Ok(MembersFigures { core_share: 100.0 * (after.0 - before.0) as f64 / elapsed, heartbeats })
        })
    }
}

/// The CPU time of a node, and the time of the machine.
async fn times(session: &Session) -> Result<(u64, u64), BenchError> {
    let response = session.call(IDLE_TIMES, MsgBuf::with_len(0)?).await.map_err(|failure| failure.error)?.response;
    let (cpu, now) = response.split_first_chunk().ok_or(BenchError::WrongEcho)?;
    let now = now.try_into().map_err(|_| BenchError::WrongEcho)?;
    Ok((u64::from_le_bytes(*cpu), u64::from_le_bytes(now)))
}

/// Watchers of one entry, and a writer that changes it repeatedly.
#[derive(Debug, Serialize, Deserialize)]
pub struct CoordWatchers {
    /// The node.
    pub node: String,
    /// Number of watchers.
    pub watchers: usize,
    /// Length of the measured run.
    pub run: Duration,
}

/// Counts the watchers that were told of the last write.
#[derive(Default)]
struct Told {
    count: Cell<usize>,
    at: Cell<u64>,
}

impl Role for CoordWatchers {
    const NAME: &'static str = "watchers of the cluster manager";
    type Ready = ();
    /// From before the write until the last watcher was told.
    type Output = Percentiles;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<Percentiles, BenchError> {
        let endpoint = endpoint(OTHERS)?;
        let writer = client(&endpoint, &self.node)?;
        let told = Rc::<Told>::default();
        endpoint.block_on(async {
            let after = writer.set(WATCHED, b"", Condition::Always).await.map_err(failed)?;
            let mut left = self.watchers;
            while left > 0 {
                let coordinator = Rc::new(client(&endpoint, &self.node)?);
                let own = left.min(WATCHERS_OF_CLIENT);
                left -= own;
                for _ in 0..own {
                    let (coordinator, told) = (coordinator.clone(), told.clone());
                    endpoint.spawn(async move {
                        let mut watch = Watch::new(&*coordinator, Scope::Tree { root: WATCHED.into() }, after);
                        while watch.next().await.is_ok() {
                            told.count.set(told.count.get() + 1);
                            told.at.set(shared_nanos());
                        }
                    });
                }
            }
            let mut latencies = Latencies::new();
            let end = shared_nanos() + (SETTLED + self.run).as_nanos() as u64;
            while latencies.count() == 0 || (shared_nanos() < end && !control.stopping()) {
                // By then all of them wait again.
                endpoint.timers().sleep(SETTLED / 2).await;
                told.count.set(0);
                let begun = shared_nanos();
                writer.set(WATCHED, b"", Condition::Always).await.map_err(failed)?;
                while told.count.get() < self.watchers {
                    if shared_nanos() - begun > TOLD_WITHIN.as_nanos() as u64 {
                        return Err(failed(format!("{} of {} watchers were told", told.count.get(), self.watchers)));
                    }
                    endpoint.timers().sleep(LOOK).await;
                }
                latencies.record(told.at.get() - begun);
            }
            Ok(latencies.percentiles()?)
        })
    }
}
