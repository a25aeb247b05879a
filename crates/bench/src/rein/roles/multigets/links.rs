//! Connections with the servers of a cluster.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use dunlin_kv::client::{ClientConfig, KvClient, KvError};
use dunlin_net::Transport;
use dunlin_rpc::Endpoint;

use crate::BenchError;

/// Connections with each server.
const LINKS: usize = 32;
/// Requests that a connection has in flight; further ones wait at the client, in order of arrival.
const SLOTS: u32 = 8;
/// How long an operation may take: longer than any run waits, which ends by its own limit.
const DEADLINE: Duration = Duration::from_secs(600);

/// The connections with all servers.
pub(super) struct Links<T: Transport> {
    servers: Vec<Vec<Rc<Link<T>>>>,
    taken: Cell<u64>,
    waited: Cell<u64>,
}

/// Counters of all servers.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counters {
    /// Values that devices have read.
    pub reads: u64,
    /// Operations that found no place in a server's queues, and were pushed back.
    pub refused: u64,
}

async fn sum<T: Transport + 'static>(servers: &[Rc<Link<T>>]) -> Result<Counters, KvError> {
    let mut sum = Counters::default();
    for server in servers {
        let stats = server.client.stats().await?;
        if let Some(tier) = stats.tier() {
            sum.reads += tier.count("reads");
            sum.refused += tier.refused;
        }
        sum.refused +=
            stats.cores.iter().filter_map(|core| core.multi_gets.as_ref()).map(|line| line.refused).sum::<u64>();
    }
    Ok(sum)
}

struct Link<T: Transport> {
    client: KvClient<T>,
    busy: Cell<u32>,
}

/// A connection that is used for one request, until this is dropped.
pub(super) struct Taken<T: Transport>(Rc<Link<T>>);

impl<T: Transport> Taken<T> {
    pub fn client(&self) -> &KvClient<T> {
        &self.0.client
    }
}

impl<T: Transport> Drop for Taken<T> {
    fn drop(&mut self) {
        self.0.busy.set(self.0.busy.get() - 1);
    }
}

impl<T: Transport + 'static> Links<T> {
    /// Opens all connections.
    pub fn open(endpoint: &Rc<Endpoint<T>>, servers: &[String]) -> Result<Links<T>, BenchError> {
        let mut config = ClientConfig::default();
        config.sessions_per_core = 1;
        config.deadline = Some(DEADLINE);
        let addresses = servers.iter().map(|server| server.parse()).collect::<Result<Vec<_>, _>>()?;
        let link = |address| Rc::new(Link { client: KvClient::new(endpoint, address, config), busy: Cell::new(0) });
        let of_server = |address| (0..LINKS).map(|_| link(address)).collect();
        let servers: Vec<Vec<_>> = addresses.iter().map(of_server).collect();
        let left = Rc::new(Cell::new(servers.len() * LINKS));
        let failed: Rc<RefCell<Option<KvError>>> = Rc::default();
        for link in servers.iter().flatten() {
            let (link, left, failed) = (link.clone(), left.clone(), failed.clone());
            endpoint.spawn(async move {
                if let Err(error) = link.client.map().await {
                    failed.replace(Some(error));
                }
                left.set(left.get() - 1);
            });
        }
        endpoint.run_until(|| left.get() == 0);
        match failed.take() {
            Some(error) => Err(error.into()),
            None => Ok(Links { servers, taken: Cell::new(0), waited: Cell::new(0) }),
        }
    }

    /// Takes the connection with a server that has the fewest requests in flight.
    pub fn take(&self, server: u32) -> Taken<T> {
        let links = &self.servers[server as usize];
        // `LINKS` is not 0.
        let link = links.iter().min_by_key(|link| link.busy.get()).unwrap_or(&links[0]);
        self.taken.set(self.taken.get() + 1);
        self.waited.set(self.waited.get() + u64::from(link.busy.get() >= SLOTS));
        link.busy.set(link.busy.get() + 1);
        Taken(link.clone())
    }

    /// What the servers have counted since they were started.
    pub fn counters(&self, endpoint: &Rc<Endpoint<T>>) -> Result<Counters, BenchError> {
        let servers: Vec<Rc<Link<T>>> = self.servers.iter().map(|links| links[0].clone()).collect();
        let result: Rc<RefCell<Option<Result<Counters, KvError>>>> = Rc::default();
        let ended = result.clone();
        endpoint.spawn(async move { _ = ended.replace(Some(sum(&servers).await)) });
        endpoint.run_until(|| result.borrow().is_some());
        Ok(result.take().expect("the task has ended")?)
    }

    /// Share of the requests that found no connection free, since the last call.
    pub fn waited_share(&self) -> f64 {
        self.waited.take() as f64 / self.taken.take().max(1) as f64
    }
}
