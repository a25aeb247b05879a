//! One server of a cluster, as a client knows it: its sessions, and whether it is worth asking.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use dunlin_net::{Addr, Transport};
use dunlin_rpc::{CallError, Endpoint};
use dunlin_serve::Joint;
use dunlin_serve::channel::is_session_over;
use futures::FutureExt as _;
use futures::channel::oneshot;
use futures::future::{Either, LocalBoxFuture, select};

use super::error::ServerError;
use crate::client::{ClientConfig, KvClient, KvError};
use crate::wire::ReplicaInfo;

/// How long reads leave a server alone that was not reached; twice as long each time,
const LEAVE_MIN: Duration = Duration::from_millis(100);
/// up to this.
const LEAVE_MAX: Duration = Duration::from_secs(5);
/// How long a server that did not answer in time is asked last.
const SUSPECT_TIME: Duration = Duration::from_secs(1);

/// Where a server is, and what it must say of itself.
struct Place<T: Transport> {
    name: String,
    address: Addr,
    fingerprint: u64,
    endpoint: Rc<Endpoint<T>>,
    config: ClientConfig,
}

/// A server.
pub(super) struct Node<T: Transport> {
    pub name: String,
    place: Rc<Place<T>>,
    endpoint: Rc<Endpoint<T>>,
    client: RefCell<Option<KvClient<T>>>,
    opening: Joint<Result<KvClient<T>, ServerError>>,
    /// The attempt to reach it, or the last one. It ends with this.
    attempt: RefCell<Option<Rc<Attempt>>>,
    failures: Cell<u32>,
    left_until: Cell<u64>,
    suspect_until: Cell<u64>,
    answered_at: Cell<u64>,
    /// Why it was left alone.
    why_left: RefCell<String>,
}

/// An attempt to reach a server, with a task of its own that goes on with it.
struct Attempt {
    work: RefCell<LocalBoxFuture<'static, ()>>,
    /// Dropping it ends the task.
    _owned: oneshot::Sender<Infallible>,
}

impl Attempt {
    /// Begins an attempt, and a task that ends with it, or when the attempt is dropped. The endpoint, which runs the
    /// task, does not own the attempt, which owns the endpoint.
    fn begin<T: Transport>(endpoint: &Endpoint<T>, work: LocalBoxFuture<'static, ()>) -> Rc<Attempt> {
        let (owned, dropped) = oneshot::channel();
        let attempt = Rc::new(Attempt { work: RefCell::new(work), _owned: owned });
        let weak = Rc::downgrade(&attempt);
        let work = poll_fn(move |context| match weak.upgrade() {
            Some(attempt) => attempt.work.borrow_mut().poll_unpin(context),
            None => Poll::Ready(()),
        });
        endpoint.spawn(select(work, dropped).map(drop));
        attempt
    }
}

impl<T: Transport + 'static> Place<T> {
    async fn open(self: Rc<Self>) -> Result<KvClient<T>, ServerError> {
        let client = KvClient::connect(&self.endpoint, &self.address, self.config).await?;
        client.pin(client.map().await?.incarnation);
        self.infos_of(&client).await?;
        Ok(client)
    }

    async fn infos_of(&self, client: &KvClient<T>) -> Result<Vec<ReplicaInfo>, ServerError> {
        let infos = client.replica_infos().await.map_err(|error| match error {
            KvError::Unsupported => ServerError::NoReplica,
            error => error.into(),
        })?;
        for info in &infos {
            if info.fingerprint != self.fingerprint {
                return Err(ServerError::OtherMap);
            }
            if info.server != self.name {
                return Err(ServerError::OtherServer { found: info.server.clone() });
            }
        }
        Ok(infos)
    }
}

impl<T: Transport + 'static> Node<T> {
    pub fn new(
        name: &str,
        address: &Addr,
        fingerprint: u64,
        endpoint: &Rc<Endpoint<T>>,
        config: ClientConfig,
    ) -> Rc<Node<T>> {
        let (name, address) = (name.to_owned(), address.clone());
        let place = Place { name: name.clone(), address, fingerprint, endpoint: endpoint.clone(), config };
        Rc::new(Node {
            name,
            place: Rc::new(place),
            endpoint: endpoint.clone(),
            client: RefCell::new(None),
            opening: Joint::new(),
            attempt: RefCell::default(),
            failures: Cell::new(0),
            left_until: Cell::new(0),
            suspect_until: Cell::new(0),
            answered_at: Cell::new(0),
            why_left: RefCell::default(),
        })
    }

    /// Whether other replicas are to be asked before this one.
    pub fn is_doubtful(&self) -> bool {
        let now = self.endpoint.now();
        now < self.left_until.get() || now < self.suspect_until.get()
    }

    /// Records that it did not answer in time.
    pub fn suspect(&self) {
        self.suspect_until.set(self.endpoint.now().saturating_add(SUSPECT_TIME.as_nanos() as u64));
    }

    /// Records that it was read.
    pub fn was_read(&self) {
        self.answered();
        self.suspect_until.set(0);
    }

    /// Records that it answered, which does not say that it may be read.
    pub fn answered(&self) {
        self.failures.set(0);
        self.answered_at.set(self.endpoint.now());
    }

    /// Whether it has not answered any request since then.
    pub fn is_silent_since(&self, time: u64) -> bool {
        self.answered_at.get() < time
    }

    /// Returns a client of the server that is known to be the one of the description; it fails once the server is
    /// restarted. Fails at once while the server is left alone.
    pub async fn client(self: &Rc<Self>) -> Result<KvClient<T>, ServerError> {
        if let Some(client) = &*self.client.borrow() {
            return Ok(client.clone());
        }
        if self.endpoint.now() < self.left_until.get() {
            return Err(ServerError::Down { why: self.why_left.borrow().clone() });
        }
        self.opened().await
    }

    /// The same for a write, which is missed if it is not sent: it takes part in an attempt to reach the server also
    /// while that is left alone. After an attempt that failed, it waits for `patience` only.
    pub async fn client_for_write(self: &Rc<Self>, patience: Duration) -> Result<KvClient<T>, ServerError> {
        let client = self.client.borrow().clone();
        if let Some(client) = client {
            return Ok(client);
        }
        if self.failures.get() == 0 {
            return self.opened().await;
        }
        let timers = self.endpoint.timers();
        let patience = std::pin::pin!(timers.sleep(patience));
        match select(std::pin::pin!(self.opened()), patience).await {
            Either::Left((opened, _)) => opened,
            Either::Right(_) => Err(ServerError::Down { why: self.why_left.borrow().clone() }),
        }
    }

    /// Takes part in an attempt to reach it. That goes on when nobody waits for it any more, so that the next operation
    /// learns what became of it.
    async fn opened(self: &Rc<Self>) -> Result<KvClient<T>, ServerError> {
        let begin = || {
            let (opening, node) = (self.place.clone().open(), Rc::downgrade(self));
            async move {
                let opened = opening.await;
                node.upgrade().inspect(|node| node.note(&opened));
                opened
            }
        };
        let begun = |work| _ = self.attempt.replace(Some(Attempt::begin(&self.endpoint, work)));
        Box::pin(self.opening.get(begin, begun)).await
    }

    fn note(&self, opened: &Result<KvClient<T>, ServerError>) {
        match opened {
            Ok(client) => {
                self.failures.set(0);
                self.left_until.set(0);
                self.client.replace(Some(client.clone()));
            }
            Err(error) => self.leave(error),
        }
    }

    /// Asks all cores what they are, with the sessions that there are, or with new ones if these have ended.
    pub async fn infos(self: &Rc<Self>) -> Result<Vec<ReplicaInfo>, ServerError> {
        let client = self.client.borrow().clone();
        if let Some(client) = client
            && let Ok(infos) = self.infos_of(&client).await
        {
            return Ok(infos);
        }
        let client = self.fresh_client().await?;
        self.infos_of(&client).await
    }

    /// Asks all cores what they are, and checks that they are of this server.
    pub async fn infos_of(&self, client: &KvClient<T>) -> Result<Vec<ReplicaInfo>, ServerError> {
        self.place.infos_of(client).await
    }

    /// Leaves it alone for a while.
    fn leave(&self, why: &dyn std::fmt::Display) {
        self.why_left.replace(why.to_string());
        let failures = self.failures.get();
        self.failures.set(failures.saturating_add(1));
        let pause = LEAVE_MIN.saturating_mul(1 << failures.min(16)).min(LEAVE_MAX);
        self.left_until.set(self.endpoint.now().saturating_add(pause.as_nanos() as u64));
    }

    /// Draws conclusions from an error of an operation on `client`. Only the first one that finds its sessions at an end
    /// does: the others failed with them.
    pub fn failed(&self, client: &KvClient<T>, error: &KvError) {
        if !self.client.borrow().as_ref().is_some_and(|current| current.is_same(client)) {
            return;
        }
        match error {
            // The next operation connects to what is there now.
            KvError::Restarted { .. } => self.forget(),
            KvError::Connect(_) | KvError::NoMap { .. } | KvError::NoService { .. } | KvError::NoAddress { .. } => {
                self.forget();
                self.leave(error);
            }
            KvError::Call { error: CallError::DeadlineExceeded } | KvError::Late => self.suspect(),
            KvError::Call { error } if is_session_over(error) => {
                self.forget();
                if !matches!(error, CallError::PeerReset) {
                    self.leave(error);
                }
            }
            // Not for a while: a replica that refuses at once looks as if it had nothing to do.
            KvError::Closed { .. } => self.suspect(),
            _ => {}
        }
    }

    /// Forgets the sessions.
    fn forget(&self) {
        self.client.replace(None);
    }

    /// As [`Node::client`], with new sessions, and however it was before: for an operator, who may have restarted it.
    pub async fn fresh_client(self: &Rc<Self>) -> Result<KvClient<T>, ServerError> {
        self.forget();
        self.left_until.set(0);
        self.suspect_until.set(0);
        self.client().await
    }

    /// Closes the sessions.
    pub fn close(&self) {
        if let Some(client) = self.client.replace(None) {
            client.close();
        }
    }
}
