//! A datacenter with endpoints on its hosts.

use std::rc::Rc;

use dunlin_lab::World;
use dunlin_net::random::Random;
use dunlin_rpc::EndpointConfig;
use dunlin_sim::trace::CapturePoint;
use dunlin_sim::{CostModel, Datacenter, Topology};

use super::member::{Failure, Member};
use crate::{BenchError, Trial};

/// A datacenter in virtual time whose threads run endpoints. See the [module](super).
///
/// ```
/// use dunlin_bench::datacenter::{Cluster, SINK};
/// use dunlin_rpc::EndpointConfig;
/// use dunlin_sim::{CostModel, Topology};
///
/// let mut cluster = Cluster::new(&Topology::cx5(), CostModel::default(), 1)?;
/// let server = cluster.join(0, 0, EndpointConfig::default())?;
/// server.serve(32, 0)?;
/// let client = cluster.join(1, 0, EndpointConfig::default())?;
/// let (connecting, clock) = (client.connect(server.addr()), client.clock());
/// client.spawn(async move {
///     let session = connecting.await?;
///     let start = clock.now();
///     session.call(SINK, vec![7; 32]).await.map_err(|failure| failure.error)?;
///     assert!((2_000..3_000).contains(&(clock.now() - start)));
///     Ok(())
/// });
/// cluster.run_until(1_000_000)?;
/// assert_eq!(server.endpoint().stats().counters.requests_handled, 1);
/// # Ok::<(), dunlin_bench::BenchError>(())
/// ```
pub struct Cluster {
    datacenter: Datacenter,
    seeds: Random,
    failure: Failure,
}

impl Cluster {
    /// A datacenter without members at time zero. All random events in it, and in its endpoints, follow from `seed`.
    ///
    /// # Errors
    /// [`BenchError::Simulation`] if the topology is invalid.
    pub fn new(topology: &Topology, cost: CostModel, seed: u64) -> Result<Cluster, BenchError> {
        let mut seeds = Random::new(seed);
        let datacenter = Datacenter::new(topology, cost, seeds.next())?;
        Ok(Cluster { datacenter, seeds, failure: Rc::default() })
    }

    /// Adds a member on a thread of a host. The cluster sets its poll policy and its seed.
    ///
    /// # Errors
    /// [`BenchError::Simulation`] if there is no such thread, or it already has a member; [`BenchError::Endpoint`] if
    /// the settings are invalid.
    pub fn join(&mut self, host: u32, thread: u16, config: EndpointConfig) -> Result<Member, BenchError> {
        let config = EndpointConfig { seed: Some(self.seeds.next()), ..config };
        Member::start(&mut self.datacenter, (host, thread), config, self.failure.clone())
    }

    /// The cluster of a run: with its seed, and the cost model given by the user, else `cost`. Its packets are captured
    /// if the user wants those of this run.
    ///
    /// # Errors
    /// As [`Cluster::new`]; [`dunlin_lab::LabError::Interrupted`]; if the file of the capture cannot be written.
    pub fn of_trial(trial: Trial<'_>, topology: &Topology, cost: CostModel) -> Result<Cluster, BenchError> {
        let mut cluster = Cluster::new(topology, trial.cost_or(cost), trial.seed()?)?;
        if let Some(file) = trial.capture()? {
            cluster.datacenter.capture(CapturePoint::Sent, file);
        }
        Ok(cluster)
    }

    /// A source of random numbers for the experiment, which follows from the seed.
    pub fn random(&mut self) -> Random {
        Random::new(self.seeds.next())
    }

    /// The datacenter, for its faults, traces and counters.
    pub fn datacenter(&mut self) -> &mut Datacenter {
        &mut self.datacenter
    }

    /// Virtual time, in nanoseconds.
    pub fn now(&self) -> u64 {
        self.datacenter.now()
    }

    /// Advances time to `time`, in nanoseconds.
    ///
    /// # Errors
    /// The first error of a member's task.
    pub fn run_until(&mut self, time: u64) -> Result<(), BenchError> {
        let failure = self.failure.clone();
        self.datacenter.run_while_until(time, || failure.borrow().is_none());
        self.failure.take().map_or(Ok(()), Err)
    }
}

impl World for Cluster {
    type Error = BenchError;

    fn now(&self) -> u64 {
        Cluster::now(self)
    }

    fn packets(&mut self) -> u64 {
        self.datacenter.counters().received
    }

    fn run_until(&mut self, time: u64) -> Result<(), BenchError> {
        Cluster::run_until(self, time)
    }
}
