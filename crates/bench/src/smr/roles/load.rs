//! A client of replicas.

use std::rc::Rc;
use std::time::Duration;

use dunlin_lab::measure::Percentiles;
use dunlin_lab::peer::{Control, Role};
use dunlin_lab::report::Metric;
use dunlin_net::random::Random;
use dunlin_net::{Addr, AnyTransport, Clock, NetError, PollPolicy};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_smr::Probe;
use serde::{Deserialize, Serialize};

use super::group::Watch;
use crate::smr::replication::{Group, Puts, StageTimes, Stages};
use crate::{BenchError, WARM_UP_SHARE};

/// Event-loop iterations between two readings of the clock.
const ITERATIONS_PER_LOOK: u32 = 64;
/// How long it polls for answers before it sleeps: longer than a flush takes.
const LOOK: Duration = Duration::from_millis(2);
/// Interval of figures for the progress bar.
const LIVE_INTERVAL_NANOS: u64 = 200_000_000;

/// Concurrent writes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PutLoad {
    /// The replicas, by id.
    pub members: Vec<(u64, String)>,
    /// Number of groups.
    pub groups: u16,
    /// Number of keys.
    pub keys: u64,
    /// Concurrent writes.
    pub window: usize,
    /// Length of the measured run.
    pub run: Duration,
    /// Whether to measure the client's work, which makes it slower.
    pub watch: Watch,
    /// How it waits for answers.
    pub poll: Poll,
}

/// How a client waits for answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Poll {
    /// It occupies its core.
    Spin,
    /// It yields its core between two polls.
    Yield,
}

impl Poll {
    fn policy(self) -> PollPolicy {
        match self {
            Poll::Spin => PollPolicy::Spin,
            Poll::Yield => PollPolicy::Yielding { spin: LOOK },
        }
    }
}

/// The result.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PutFigures {
    /// Writes per second.
    pub rate: f64,
    /// From issuing a write until its answer arrives.
    pub latency: Percentiles,
    /// Work of the client besides that of its endpoint, as visits.
    pub client: StageTimes,
}

impl Role for PutLoad {
    const NAME: &'static str = "writes to replicas";
    type Ready = ();
    type Output = PutFigures;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<PutFigures, BenchError> {
        let members = self.members.iter().map(|(id, address)| Ok((*id, address.parse()?)));
        let members = members.collect::<Result<Vec<(u64, Addr)>, NetError>>()?;
        let Some((_, first)) = members.first() else {
            return Err(BenchError::no_samples("a group without members"));
        };
        let config = EndpointConfig { poll: self.poll.policy(), ..EndpointConfig::default() };
        let endpoint = Rc::new(Endpoint::new(AnyTransport::for_peer(first)?, config)?);
        let (random, clock) = (Random::new(u64::from(std::process::id())), Clock::new());
        let stages = (self.watch == Watch::Stages).then(Stages::new);
        let probe = stages.clone().map(|stages| stages as Rc<dyn Probe>);
        let group = Group::new(members, self.keys).times(self.groups);
        let puts = Puts::start(&endpoint, &group, self.window, random, move || clock.now(), probe);
        let mut figures = self.measure(&endpoint, &puts, control)?;
        puts.stop();
        endpoint.run_until(|| puts.has_ended());
        puts.check()?;
        figures.client = stages.map(|stages| stages.times()).unwrap_or_default();
        Ok(figures)
    }
}

impl PutLoad {
    fn measure(
        &self,
        endpoint: &Endpoint<AnyTransport>,
        puts: &Puts,
        control: &Control<Self>,
    ) -> Result<PutFigures, BenchError> {
        let clock = Clock::new();
        let (warm, length) = (self.run.mul_f64(WARM_UP_SHARE).as_nanos() as u64, self.run.as_nanos() as u64);
        let (mut from, mut seconds) = (None, 0.0);
        let (mut iterations, mut next_live) = (0u32, LIVE_INTERVAL_NANOS);
        endpoint.run_until(|| {
            iterations = iterations.wrapping_add(1);
            if !iterations.is_multiple_of(ITERATIONS_PER_LOOK) {
                return false;
            }
            let now = clock.now();
            match from {
                None if now >= warm && puts.writes() > 0 => {
                    from = Some(now);
                    puts.take();
                }
                None => {}
                Some(start) => seconds = (now - start) as f64 / 1e9,
            }
            if now >= next_live && seconds > 0.0 {
                next_live = now + LIVE_INTERVAL_NANOS;
                control.live(Metric::Operations, puts.writes() as f64 / seconds);
            }
            // On a busy machine one answer may take longer than the run: it counts then.
            let over = from.is_some_and(|start| now >= start + length) && puts.writes() > 0;
            over || puts.has_failed() || control.stopping()
        });
        puts.check()?;
        let tally = puts.take();
        let rate = tally.writes as f64 / seconds;
        Ok(PutFigures { rate, latency: tally.latencies.percentiles()?, client: StageTimes::default() })
    }
}
