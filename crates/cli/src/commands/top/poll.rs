//! Polls a server for its statistics.

use std::rc::Rc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use anyhow::Result;
use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_serve::{Interrupt, side};

use super::Watched;

/// Timeout of an answer.
pub const DEADLINE: Duration = Duration::from_secs(1);
/// Interval at which an interrupt is checked.
const LOOK_AROUND: Duration = Duration::from_millis(50);

/// A client that polls one server.
pub struct Poller<W: Watched> {
    endpoint: Rc<Endpoint<AnyTransport>>,
    client: W::Client,
}

impl<W: Watched> Poller<W> {
    /// Makes an endpoint. The server need not be running yet.
    pub fn new(server: &Addr) -> Result<Poller<W>> {
        let transport = AnyTransport::for_peer(server)?;
        let config = EndpointConfig { connect_timeout: DEADLINE, ..EndpointConfig::default() };
        let endpoint = Rc::new(Endpoint::new(transport, config)?);
        let client = W::client(&endpoint, server);
        Ok(Poller { endpoint, client })
    }

    /// Asks, and waits for the answer.
    pub fn ask(&self) -> Result<W, W::Error> {
        self.endpoint.block_on(W::ask(&self.client))
    }

    /// Waits, and keeps the sessions alive meanwhile. Returns false if it was interrupted.
    pub fn wait(&self, time: Duration, interrupt: &Interrupt) -> bool {
        let mut left = time;
        while !left.is_zero() && !interrupt.is_set() {
            let step = left.min(LOOK_AROUND);
            self.endpoint.run_for(step);
            left -= step;
        }
        !interrupt.is_set()
    }
}

/// Polls on a separate thread, at once and then in intervals, until the flag is set or the receiver is dropped.
pub fn in_background<W: Watched>(
    server: &Addr,
    interval: Duration,
    stop: Interrupt,
) -> Result<Receiver<Result<W, String>>> {
    // If the screen is not drawn, polling waits; memory does not grow.
    let (sender, answers) = sync_channel(1);
    let server = server.clone();
    let work = move || {
        let poller = match Poller::<W>::new(&server) {
            Ok(poller) => poller,
            Err(error) => {
                let _ = sender.send(Err(format!("{error:#}")));
                return;
            }
        };
        while sender.send(poller.ask().map_err(|error| error.to_string())).is_ok() && poller.wait(interval, &stop) {}
    };
    side::start("poll", work)?;
    Ok(answers)
}
