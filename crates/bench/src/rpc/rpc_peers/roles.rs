//! The processes of the other systems.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use dunlin_lab::measure::Percentiles;
use dunlin_lab::peer::{Control, Role};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::runtime;
use tokio::task::LocalSet;

use super::load::{self, Caller};
use super::{grpc, tarpc_echo};
use crate::BenchError;

/// Interval at which a server checks whether to stop.
const LOOK_AROUND: Duration = Duration::from_millis(20);

/// Another RPC system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum System {
    Tonic,
    Tarpc,
}

impl System {
    /// All of them.
    pub(super) const ALL: [System; 2] = [System::Tonic, System::Tarpc];

    /// Its name in the table.
    pub(super) fn name(self) -> &'static str {
        match self {
            System::Tonic => "tonic (gRPC)",
            System::Tarpc => "tarpc",
        }
    }
}

/// Serves echoes on a free port of the loopback interface.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OtherServer {
    pub(super) system: System,
}

impl Role for OtherServer {
    const NAME: &'static str = "server of another RPC system";
    type Ready = SocketAddr;
    type Output = ();
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<(), BenchError> {
        block_on(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
            let listener = listener.map_err(BenchError::io("listen on a port of 127.0.0.1"))?;
            control.ready(listener.local_addr().map_err(BenchError::io("ask for the port"))?);
            let served = async {
                match self.system {
                    System::Tonic => grpc::serve(listener).await,
                    System::Tarpc => tarpc_echo::serve(listener).await,
                }
            };
            tokio::select! {
                served = served => served,
                () = stopped(control) => Ok(()),
            }
        })
    }
}

async fn stopped(control: &Control<OtherServer>) {
    while !control.stopping() {
        tokio::time::sleep(LOOK_AROUND).await;
    }
}

/// Calls the server: first one call at a time, then many.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OtherClient {
    pub(super) system: System,
    pub(super) server: SocketAddr,
    pub(super) size: usize,
    pub(super) outstanding: usize,
    pub(super) run: Duration,
}

/// The result.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OtherFigures {
    pub(super) latency: Percentiles,
    pub(super) rate: f64,
}

impl Role for OtherClient {
    const NAME: &'static str = "client of another RPC system";
    type Ready = ();
    type Output = OtherFigures;
    type Error = BenchError;

    fn run(self, _: &Control<Self>) -> Result<OtherFigures, BenchError> {
        block_on(async {
            match self.system {
                System::Tonic => self.measure(grpc::Client::connect(self.server).await?).await,
                System::Tarpc => self.measure(tarpc_echo::Client::connect(self.server).await?).await,
            }
        })
    }
}

impl OtherClient {
    async fn measure(&self, caller: impl Caller) -> Result<OtherFigures, BenchError> {
        let latency = load::latency(caller.clone(), self.size, self.run).await?;
        let rate = load::rate(caller, self.size, self.outstanding, self.run).await?;
        Ok(OtherFigures { latency, rate })
    }
}

/// Runs a future on a runtime of this thread, which is pinned.
fn block_on<T>(future: impl Future<Output = Result<T, BenchError>>) -> Result<T, BenchError> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    LocalSet::new().block_on(&runtime.map_err(BenchError::io("start a runtime"))?, future)
}
