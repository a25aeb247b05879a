//! One attempt at a time to reach the server, shared by all operations that wait for it. Sessions that were not used of
//! late are tried with a question first: an operation that is sent on one that is over may have been executed, for all
//! that anybody knows.

use std::rc::Rc;

use dunlin_net::{Addr, Transport};
use dunlin_rpc::Endpoint;
use dunlin_serve::channel::UNUSED_NANOS_MAX;
use dunlin_serve::channel::connection::{Connected, Connection as Shared};

use super::config::ClientConfig;
use super::error::KvError;
use super::links::Links;

/// The sessions with a server, or the attempt to get them.
pub(super) struct Connection<T: Transport> {
    pub endpoint: Rc<Endpoint<T>>,
    pub server: Addr,
    config: ClientConfig,
    links: Shared<Links, KvError>,
}

impl Connected for Links {
    fn close(&self) {
        Links::close(self);
    }
}

impl<T: Transport> Connection<T> {
    pub fn new(endpoint: Rc<Endpoint<T>>, server: Addr, config: ClientConfig) -> Connection<T> {
        Connection { endpoint, server, config, links: Shared::new(UNUSED_NANOS_MAX) }
    }

    /// The sessions, if they are there and were in use until `now`, and are from now on.
    #[inline]
    pub fn current(&self, now: u64) -> Option<Rc<Links>> {
        self.links.current(now)
    }

    /// The sessions; tries or opens them, or waits for whoever does.
    pub async fn links(&self) -> Result<Rc<Links>, KvError> {
        let open = async |unused: Option<Rc<Links>>| {
            if let Some(links) = unused {
                if !links.is_over(&self.config).await {
                    return Ok(links);
                }
                self.lost(&links);
            }
            Links::open(&self.endpoint, &self.server, &self.config).await.map(Rc::new)
        };
        self.links.get(|| self.endpoint.now(), open).await
    }

    /// Notes that the sessions are over: the next operation opens new ones. Does nothing if somebody else noticed
    /// before.
    pub fn lost(&self, links: &Rc<Links>) {
        self.links.lost(links);
    }

    /// Closes the sessions and forgets them.
    pub fn forget(&self) {
        self.links.forget();
    }
}
