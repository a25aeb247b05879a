//! Requests that wait for the tier: taken out of their burst, and answered when their items have been read.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::Transport;
use dunlin_rpc::{DeferredRequest, RequestContext};
use dunlin_store::tier::Ticket;
use dunlin_store::{Store, Visit};

use super::postponed::Postponed;
use super::{multiget, single};
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
    let rank = ranked.map_or_else(|| desk.rank(keys), |ranked| ranked.rank);
    Parcel { ticket, rank, client, waiter }
}

/// Returns the number of who sent a request.
pub(super) fn client(desk: &Desk, context: &RequestContext) -> u64 {
    desk.client(context.peer().map(HostName::from))
}

/// Whether nobody waits for the answer.
fn is_over(request: &DeferredRequest) -> bool {
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

/// A multi-get whose values are read one by one, and answered together.
pub(super) struct Together<S> {
    shard: Rc<Shard<S>>,
    request: RefCell<Option<DeferredRequest>>,
    holds: RefCell<Vec<Hold>>,
    reserved: RefCell<Option<Reserved>>,
    /// Values that are not read yet.
    left: Cell<usize>,
    /// How long the slowest has waited.
    waited: Cell<Waited>,
}

impl<S: Store + 'static> Together<S> {
    /// Lets a request wait for the records of `tickets`.
    pub fn push(
        shard: &Rc<Shard<S>>,
        desk: &Desk,
        request: DeferredRequest,
        keys: usize,
        tickets: &[Ticket],
        reserved: Reserved,
    ) {
        let ranked = split_deferred(&request).and_then(|(ranked, _)| ranked);
        let client = client(desk, request.request().context());
        let together = Rc::new(Together {
            shard: shard.clone(),
            request: RefCell::new(Some(request)),
            holds: RefCell::default(),
            reserved: RefCell::new(Some(reserved)),
            left: Cell::new(tickets.len()),
            waited: Cell::default(),
        });
        for ticket in tickets {
            let part = Box::new(Part(together.clone()));
            desk.push(parcel(desk, client, ranked, keys, *ticket, part));
        }
    }

    fn arrived(&self, hold: Option<Hold>, waited: Waited) {
        self.holds.borrow_mut().extend(hold);
        let total = |waited: Waited| u64::from(waited.queued_micros) + u64::from(waited.read_micros);
        if total(waited) >= total(self.waited.get()) {
            self.waited.set(waited);
        }
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0
            && let Some(request) = self.request.take()
        {
            multiget::answer(&self.shard, request, self.waited.get());
            drop((self.holds.take(), self.reserved.take()));
        }
    }
}

struct Part<S>(Rc<Together<S>>);

impl<S: Store + 'static> Waiter for Part<S> {
    fn is_over(&self) -> bool {
        self.0.request.borrow().as_ref().is_none_or(is_over)
    }

    fn serve(self: Box<Self>, hold: Option<Hold>, waited: Waited) {
        self.0.arrived(hold, waited);
    }

    /// One of its values cannot wait: the client asks again for all of them, and nothing is kept for the others.
    fn refuse(self: Box<Self>, _: Refusal) {
        if let Some(request) = self.0.request.take() {
            request.push_back();
            drop((self.0.holds.take(), self.0.reserved.take()));
        }
    }
}
