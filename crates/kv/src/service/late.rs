//! Requests that wait for the tier: taken out of their burst, and answered when their items have been read.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::Transport;
use dunlin_rpc::{DeferredRequest, RequestContext};
use dunlin_store::tier::Ticket;
use dunlin_store::{KeyHash, Store, Visit};

use super::postponed::Postponed;
use super::single;
use crate::memcached::HostName;
use crate::shard::Shard;
use crate::tier::{Desk, Hold, Parcel, Refusal, Reserved, Waiter};
use crate::wire::{RANKED_MULTI_GET, RANKED_OPERATE, Ranked, Waited};

/// Splits a request into its header, if its type has one, and the ordinary request. `None` if the header is malformed.
#[inline]
pub(super) fn split<const RANKED: bool>(request: &[u8]) -> Option<(Option<Ranked>, &[u8])> {
    if RANKED { Ranked::parse(request).map(|(ranked, rest)| (Some(ranked), rest)) } else { Some((None, request)) }
}

/// The same by the type of a request that was deferred.
pub(super) fn split_deferred(request: &DeferredRequest) -> Option<(Option<Ranked>, &[u8])> {
    let (request, payload) = (request.request(), request.request().payload());
    match request.req_type() {
        RANKED_OPERATE | RANKED_MULTI_GET => split::<true>(payload),
        _ => split::<false>(payload),
    }
}

/// Returns the place of a request for `keys` keys, one of which must be read.
pub(super) fn parcel(
    desk: &Desk,
    client: u64,
    ranked: Option<Ranked>,
    keys: usize,
    ticket: Ticket,
    waiter: Box<dyn Waiter>,
) -> Parcel {
    let rank = desk.rank(ranked, keys);
    Parcel { ticket, rank, client, waiter }
}

/// Returns the number of who sent a request.
pub(super) fn client(desk: &Desk, context: &RequestContext) -> u64 {
    desk.client(context.peer().map(HostName::from))
}

/// Whether nobody waits for the answer.
pub(super) fn is_over(request: &DeferredRequest) -> bool {
    let request = request.request();
    !request.is_waited_for() || request.time_left().is_some_and(|left| left == Duration::ZERO)
}

/// An operation on one key.
pub(super) struct Late<S, T: Transport> {
    pub postponed: Postponed<S, T>,
    pub request: DeferredRequest,
    pub reserved: Reserved,
}

impl<S: Store + Visit + 'static, T: Transport + 'static> Waiter for Late<S, T> {
    fn is_over(&self) -> bool {
        is_over(&self.request)
    }

    fn serve(self: Box<Self>, hold: Option<Hold>, waited: Waited) {
        let Late { postponed, request, reserved } = *self;
        let shard = &postponed.shard;
        let is_due = postponed.is_due(&shard.store.borrow());
        if is_due && single::changes(shard, &request) {
            return postponed.push_read(request, (hold, reserved));
        }
        if let Some(kind) = single::answer(shard, request, waited) {
            let micros = u64::from(waited.queued_micros) + u64::from(waited.read_micros);
            shard.metrics.borrow_mut().latency(kind, micros * 1000, 1);
        }
        drop(hold);
    }

    fn refuse(self: Box<Self>, _: Refusal) {
        self.request.push_back();
    }
}

/// What a request makes of the records that it waits for.
pub(super) trait Gather<S> {
    /// A record was read: as long as `hold` lives, its item is found, unless it was lost or replaced meanwhile.
    fn arrived(&mut self, shard: &Shard<S>, request: &DeferredRequest, hash: KeyHash, hold: Option<Hold>);

    /// All were read. `reserved` counts their bytes.
    fn answer(self, shard: &Shard<S>, request: DeferredRequest, waited: Waited, reserved: Reserved);
}

/// A request whose records are read one by one, and answered together.
pub(super) struct Together<S, G> {
    shard: Rc<Shard<S>>,
    /// Until it is answered or refused.
    waiting: RefCell<Option<(DeferredRequest, G, Reserved)>>,
    /// Records that are not read yet.
    left: Cell<usize>,
    /// How long the slowest has waited.
    waited: Cell<Waited>,
}

impl<S: Store + 'static, G: Gather<S> + 'static> Together<S, G> {
    /// Lets a request for so many keys wait for the records of `tickets`.
    pub fn push(
        shard: &Rc<Shard<S>>,
        desk: &Desk,
        request: DeferredRequest,
        keys: usize,
        tickets: &[Ticket],
        reserved: Reserved,
        gather: G,
    ) {
        let ranked = split_deferred(&request).and_then(|(ranked, _)| ranked);
        let client = reserved.client();
        let together = Rc::new(Together {
            shard: shard.clone(),
            waiting: RefCell::new(Some((request, gather, reserved))),
            left: Cell::new(tickets.len()),
            waited: Cell::default(),
        });
        for ticket in tickets {
            if together.waiting.borrow().is_none() {
                // One was refused, and the others with it.
                return;
            }
            let part = Box::new(Part { together: together.clone(), hash: ticket.hash() });
            desk.push(parcel(desk, client, ranked, keys, *ticket, part));
        }
    }

    fn arrived(&self, hash: KeyHash, hold: Option<Hold>, waited: Waited) {
        if let Some((request, gather, _)) = &mut *self.waiting.borrow_mut() {
            gather.arrived(&self.shard, request, hash, hold);
        }
        let total = |waited: Waited| u64::from(waited.queued_micros) + u64::from(waited.read_micros);
        if total(waited) >= total(self.waited.get()) {
            self.waited.set(waited);
        }
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0
            && let Some((request, gather, reserved)) = self.waiting.take()
        {
            gather.answer(&self.shard, request, self.waited.get(), reserved);
        }
    }
}

struct Part<S, G> {
    together: Rc<Together<S, G>>,
    hash: KeyHash,
}

impl<S: Store + 'static, G: Gather<S> + 'static> Waiter for Part<S, G> {
    fn is_over(&self) -> bool {
        self.together.waiting.borrow().as_ref().is_none_or(|(request, ..)| is_over(request))
    }

    fn serve(self: Box<Self>, hold: Option<Hold>, waited: Waited) {
        self.together.arrived(self.hash, hold, waited);
    }

    /// One of its records cannot wait: the client asks again for all of them, and nothing is kept for the others.
    fn refuse(self: Box<Self>, _: Refusal) {
        if let Some((request, ..)) = self.together.waiting.take() {
            request.push_back();
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Mutex};

    use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
    use dunlin_rpc::{CallError, Endpoint, EndpointConfig, Session, Timers};
    use dunlin_store::{Item, Side, Sweep as _, Watch};
    use tokio::task::{JoinHandle, spawn_local, yield_now};

    use super::*;
    use crate::client::ClientConfig;
    use crate::memcached::STALL_WAIT;
    use crate::tier::tests::{Memory, TestShard, fill, run, shard_within, until};
    use crate::tier::{Schedule, desk};
    use crate::wire::{Limits, MULTI_GET, MultiGet, OPERATE, Operation, ServerMap, Status};
    use crate::{KvClient, KvService};

    /// What each change waits for a snapshot's disk.
    const STALL: Duration = Duration::from_millis(10);
    /// More than the test takes.
    const READ_TIME_MAX: Duration = Duration::from_secs(60);

    /// A snapshot that holds up every change.
    #[derive(Debug, Clone, Default)]
    struct Disk(Arc<Mutex<Duration>>);

    impl Watch for Disk {
        fn before_change(&mut self, _: &dyn Visit, _: KeyHash) {
            *self.0.lock().unwrap() += STALL;
        }

        fn before_eviction(&mut self, _: &dyn Visit, _: KeyHash, _: &[u8], _: &Item<'_>) {}

        fn before_flush(&mut self, _: &dyn Visit) {}

        fn stalled(&self) -> Duration {
            *self.0.lock().unwrap()
        }
    }

    type Loopback = Rc<Endpoint<LoopbackTransport>>;

    /// Serves a shard. Returns the server's endpoint, a client's, and the task that drives both.
    fn serve_loopback(shard: &TestShard) -> (Loopback, Loopback, JoinHandle<()>) {
        let network = LoopbackNetwork::new(LoopbackConfig::default());
        let [server, client] = [1, 2].map(|node| {
            let transport = network.endpoint(node).unwrap();
            Rc::new(Endpoint::new(transport, EndpointConfig::default()).unwrap())
        });
        let addresses = vec![vec![server.local_addr().to_string()]];
        let (routing, limits) = (*shard.routing(), Limits { value_bytes_max: 1 << 20 });
        let map = ServerMap { incarnation: 1, routing, limits, addresses };
        KvService::new(shard.clone(), map).register(&server).unwrap();
        let driven = [server.clone(), client.clone()];
        let driving = spawn_local(async move {
            loop {
                network.advance(Duration::from_micros(10));
                driven.iter().for_each(|endpoint| _ = endpoint.run_once());
                yield_now().await;
            }
        });
        (server, client, driving)
    }

    /// Serves a shard. Returns so many sessions, the task that drives both ends, and the timers of their network.
    pub async fn serve(shard: &TestShard, sessions: usize) -> (Vec<Session>, JoinHandle<()>, Timers) {
        let (server, client, driving) = serve_loopback(shard);
        let mut opened = Vec::new();
        for _ in 0..sessions {
            opened.push(client.connect(&server.local_addr()).await.unwrap());
        }
        (opened, driving, server.timers())
    }

    #[test]
    fn changes_of_items_that_were_read_do_not_hold_the_core_up_for_a_snapshot_all_at_once() {
        const CHANGES: usize = 20;
        run(async {
            let (open, gate) = channel();
            let device = Arc::new(Memory::new(Some(gate)));
            let shard = shard_within(device, CHANGES, Schedule::default(), READ_TIME_MAX);
            spawn_local(desk::attend(shard.clone()));
            let cold = fill(&shard).await;
            // A session has fewer requests in flight.
            let (sessions, driving, timers) = serve(&shard, CHANGES).await;
            let calls: Vec<_> = (cold.iter().zip(&sessions))
                .map(|((name, _), session)| {
                    let operation =
                        Operation::Extend { key: name.as_bytes(), bytes: b"more", side: Side::End, unchanged: None };
                    let mut request = vec![0; operation.encoded_len()];
                    operation.encode(&mut request);
                    let call = session.call(OPERATE, request);
                    spawn_local(async move { call.await.unwrap().response[0] })
                })
                .collect();
            until("all reads", || shard.desk().unwrap().stats().reading == CHANGES).await;
            let disk = Disk::default();
            shard.store.borrow_mut().watch(Box::new(disk.clone()));
            (0..CHANGES).for_each(|_| open.send(()).unwrap());
            // Turns of the snapshot.
            let longest = Rc::new(Cell::new(Duration::ZERO));
            let (seen, turns) = (longest.clone(), disk.clone());
            let turning = spawn_local(async move {
                loop {
                    timers.sleep(STALL_WAIT).await;
                    seen.set(seen.get().max(std::mem::take(&mut *turns.0.lock().unwrap())));
                }
            });
            for call in calls {
                assert_eq!(call.await.unwrap(), Status::Done as u8);
            }
            let longest = longest.get();
            assert!((STALL..CHANGES as u32 / 2 * STALL).contains(&longest), "{longest:?} in one turn");
            assert_eq!(shard.desk().unwrap().stats().bytes, 0, "what was kept for them is released");
            driving.abort();
            turning.abort();
            drop(open);
        });
    }

    #[test]
    fn a_multi_get_that_finds_no_place_takes_no_further_ones() {
        run(async {
            let (open, gate) = channel();
            let mut schedule = Schedule::default();
            schedule.queue.limit = 1;
            let shard = shard_within(Arc::new(Memory::new(Some(gate))), 1, schedule, READ_TIME_MAX);
            spawn_local(desk::attend(shard.clone()));
            let cold = fill(&shard).await;
            let (sessions, driving, _) = serve(&shard, 1).await;
            let keys = || cold[..5].iter().map(|(name, _)| name.as_bytes());
            let mut request = vec![0; MultiGet::encoded_len(keys())];
            MultiGet::encode(keys(), &mut request);
            let error = sessions[0].call(MULTI_GET, request).await.unwrap_err();
            assert!(matches!(error.error, CallError::Busy), "{error}");
            let stats = shard.desk().unwrap().stats();
            assert_eq!((stats.refused, stats.bytes), (1, 0));
            driving.abort();
            drop(open);
        });
    }

    /// A session has eight requests in flight, and a client several sessions.
    #[test]
    fn multi_gets_of_one_client_use_all_of_its_sessions() {
        const CALLS: usize = 20;
        run(async {
            let (open, gate) = channel();
            let device = Arc::new(Memory::new(Some(gate)));
            let shard = shard_within(device, 1, Schedule::default(), READ_TIME_MAX);
            spawn_local(desk::attend(shard.clone()));
            let cold = fill(&shard).await;
            let (server, endpoint, driving) = serve_loopback(&shard);
            let config = ClientConfig { sessions_per_core: 3, deadline: None };
            let client = KvClient::connect(&endpoint, &server.local_addr(), config).await.unwrap();
            let calls: Vec<_> = (cold[..CALLS].iter().cloned())
                .map(|(name, _)| {
                    let client = client.clone();
                    spawn_local(async move { client.multi_get(&[name]).await.unwrap()[0].is_some() })
                })
                .collect();
            let waiting = || {
                let stats = shard.desk().unwrap().stats();
                stats.reading + stats.lengths.iter().sum::<usize>()
            };
            until("all of them at the desk", || waiting() == CALLS).await;
            drop(open);
            for call in calls {
                assert!(call.await.unwrap());
            }
            driving.abort();
        });
    }
}
