//! The port that Prometheus reads, on a thread of its own: no core waits for HTTP.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::thread::{self, JoinHandle};

use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use super::StatsSource;
use super::error::ServerError;
use crate::metrics;

/// A port that is served until this is dropped.
pub(super) struct MetricsPort {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsPort {
    /// Listens at `address`.
    pub fn open(address: SocketAddr, source: StatsSource) -> Result<MetricsPort, ServerError> {
        let failed = |why: std::io::Error| ServerError::Metrics { address, why };
        let listener = std::net::TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (stop, stopped) = oneshot::channel();
        let work = move || {
            LocalSet::new().block_on(&runtime, async move {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                let source = async move || Ok::<_, Infallible>(source.stats_async().await);
                tokio::select! {
                    () = metrics::serve(listener, source) => {}
                    _ = stopped => {}
                }
            });
        };
        let thread = thread::Builder::new().name("metrics".into()).spawn(work).map_err(failed)?;
        Ok(MetricsPort { address, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsPort {
    fn drop(&mut self) {
        // Dropped, the sender ends the thread.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there concerns nobody here.
            let _ = thread.join();
        }
    }
}
