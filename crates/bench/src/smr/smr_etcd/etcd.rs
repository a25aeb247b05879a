//! An etcd, and the load on it.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use dunlin_coord::etcd::local::{LocalEtcd, PROGRAM};
use dunlin_lab::peer::{Control, Role};
use etcd_client::{Client, KvClient};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};

use super::load::{FILL_WINDOW, Figures, KEYS, Load, Operation, Request, Tally, VALUE_BYTES};
use crate::BenchError;

/// Members.
const MEMBERS: usize = 3;
/// Interval of checks whether to stop.
const LOOK_AROUND: Duration = Duration::from_millis(5);
/// Time limit for electing a leader.
const ELECTION_MAX: Duration = Duration::from_secs(20);

fn failed(why: impl ToString) -> BenchError {
    BenchError::OtherSystem { system: PROGRAM, why: why.to_string() }
}

/// Three members of an etcd, as processes on the core of this one. Runs until it is stopped.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct EtcdServers {
    pub(super) directory: PathBuf,
}

impl Role for EtcdServers {
    const NAME: &'static str = "etcd";
    type Ready = Vec<String>;
    type Output = ();
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<(), BenchError> {
        let etcd =
            LocalEtcd::start(Path::new(PROGRAM), MEMBERS, &self.directory).map_err(BenchError::io("start an etcd"))?;
        control.ready(etcd.endpoints());
        while !control.stopping() {
            thread::sleep(LOOK_AROUND);
        }
        Ok(())
    }
}

/// The load on an etcd.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct EtcdLoad {
    pub(super) endpoints: Vec<String>,
    pub(super) load: Load,
}

impl Role for EtcdLoad {
    const NAME: &'static str = "load of an etcd";
    type Ready = ();
    type Output = Figures;
    type Error = BenchError;

    fn run(self, _: &Control<Self>) -> Result<Figures, BenchError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(BenchError::io("make an event loop"))?.block_on(self.measure())
    }
}

impl EtcdLoad {
    async fn measure(&self) -> Result<Figures, BenchError> {
        let client = self.leader().await?.kv_client();
        for from in (0..KEYS).step_by(FILL_WINDOW as usize) {
            let puts = (from..KEYS.min(from + FILL_WINDOW)).map(|key| Request::new(Operation::Put, key));
            try_join_all(puts.map(|put| ask(client.clone(), put))).await?;
        }
        let tally = Tally::start(self.load);
        let clients = (0..self.load.clients).map(|number| {
            let client = client.clone();
            tally.clone().client(number, move |request| ask(client.clone(), request))
        });
        try_join_all(clients).await?;
        tally.figures()
    }

    /// A client that is connected only to the leader.
    async fn leader(&self) -> Result<Client, BenchError> {
        let end = Instant::now() + ELECTION_MAX;
        while Instant::now() < end {
            for endpoint in &self.endpoints {
                let mut client = Client::connect([endpoint], None).await.map_err(failed)?;
                match client.status().await {
                    Ok(status) if is_leader(&status) => return Ok(client),
                    // It may have just started to listen.
                    _ => {}
                }
            }
            tokio::time::sleep(LOOK_AROUND).await;
        }
        Err(failed(format!("its members elected nobody within {ELECTION_MAX:?}")))
    }
}

fn is_leader(status: &etcd_client::StatusResponse) -> bool {
    status.leader() != 0 && status.header().is_some_and(|header| header.member_id() == status.leader())
}

async fn ask(mut client: KvClient, Request { operation, key, value }: Request) -> Result<(), BenchError> {
    match operation {
        Operation::Put => client.put(key, value, None).await.map(drop).map_err(failed),
        Operation::Get => {
            let found = client.get(key, None).await.map_err(failed)?;
            match found.kvs().first() {
                Some(found) if found.value().len() == VALUE_BYTES => Ok(()),
                _ => Err(failed("a value that was stored is not there")),
            }
        }
    }
}
