//! What handlers receive and return.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::Shared;
use super::dispatch::{keep, may_defer, push_back};
use super::executor::Task;
use super::session::Session;
use super::worker::WorkerQueue;
use crate::context::RequestContext;
use crate::core::call::NO_DEADLINE;
use crate::core::serve::ServeRef;
use crate::core::share::PeerRef;
use crate::error::{CannotDefer, RespondError};
use crate::msgbuf::MsgBuf;
use crate::payload::{HandlerError, Payload};
use crate::wire::Status;

/// A handler on a worker thread.
pub(crate) type WorkerHandler = Arc<dyn Fn(WorkerRequest) -> Result<Payload, HandlerError> + Send + Sync>;

/// A registered handler.
pub(crate) enum Handler {
    Dispatch(Box<dyn FnMut(Request<'_>)>),
    Burst(Box<dyn FnMut(&mut RequestBurst<'_>)>),
    Async(Box<dyn FnMut(OwnedRequest, ReplyRight) -> Task>),
    Worker { pool: WorkerQueue, handler: WorkerHandler },
}

/// A request for a dispatch-mode handler, in place.
///
/// Answer it with one of the `respond` methods, or keep it for later with [`Request::defer`].
pub struct Request<'a> {
    pub(crate) shared: &'a Rc<Shared>,
    pub(crate) serve: ServeRef,
    pub(crate) payload: &'a [u8],
    pub(crate) req_type: u8,
    /// The status that its caller gets if the handler drops it.
    pub(crate) if_dropped: Status,
}

impl std::fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Request(type {}, {} bytes)", self.req_type, self.payload.len())
    }
}

impl<'a> Request<'a> {
    #[inline]
    pub(crate) fn new(shared: &'a Rc<Shared>, serve: ServeRef, payload: &'a [u8], req_type: u8) -> Request<'a> {
        Request { shared, serve, payload, req_type, if_dropped: Status::HandlerFailed }
    }

    /// The request's bytes.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The number of bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.payload.len()
    }

    /// The request type.
    pub fn req_type(&self) -> u8 {
        self.req_type
    }

    /// The session it came on: the handler may call its caller back.
    pub fn session(&self) -> Session {
        session_of(self.shared, self.serve)
    }

    /// How long the caller still waits, if it set a deadline.
    pub fn time_left(&self) -> Option<Duration> {
        time_left(self.shared, self.serve)
    }

    /// The context of the request, which the handler may keep for as long as it likes and send to other threads. Costs
    /// an allocation, unlike the rest.
    pub fn context(&self) -> RequestContext {
        context_of(self.shared, self.serve)
    }

    /// Responds with a copy of `response`. It may contain bytes of the request: take [`Request::payload`] first, which
    /// outlives this.
    #[inline]
    pub fn respond(self, response: &[u8]) {
        respond_in_place(self.shared, self.serve, response.len(), |buffer| buffer.copy_from_slice(response));
        std::mem::forget(self);
    }

    /// Responds with `len` bytes that `fill` writes in place; bytes that it does not write are zero.
    ///
    /// If no buffer is available, the caller gets [`crate::CallError::ResponseTooLarge`].
    #[inline]
    pub fn respond_with(self, len: usize, fill: impl FnOnce(&mut [u8])) {
        respond_in_place(self.shared, self.serve, len, |buffer| fill_zeroed(buffer, fill));
        std::mem::forget(self);
    }

    /// Responds with what `write` writes in place: it gets room for `len_max` bytes and returns how many it has
    /// written, as in [`MsgBuf::written`]. The room is not cleared, so this costs less than [`Request::respond_with`].
    ///
    /// If no buffer is available, the caller gets [`crate::CallError::ResponseTooLarge`].
    ///
    /// # Panics
    /// If `write` returns more than `len_max`.
    #[inline]
    pub fn respond_written(self, len_max: usize, write: impl FnOnce(&mut [u8]) -> usize) {
        respond_in_place(self.shared, self.serve, len_max, |buffer| write_start(buffer, write));
        std::mem::forget(self);
    }

    /// Responds from the application's own memory, without a copy before the transport.
    ///
    /// # Errors
    /// [`RespondError`] if the caller no longer waits, or the response is too large.
    pub fn respond_from(self, response: impl Into<Payload>) -> Result<(), RespondError> {
        let response = response.into();
        let result = self.shared.core.borrow_mut().respond(self.serve, response);
        self.shared.drop_discarded();
        std::mem::forget(self);
        result
    }

    /// Keeps the request, to be answered later: the paper's nested RPCs. Its bytes are copied.
    ///
    /// # Errors
    /// Returns the request as the error if the handlers hold too many already
    /// ([`crate::EndpointConfig::deferred_requests_max`]), or no buffer is available: respond at once, or push it back.
    /// If it is dropped, its caller gets [`crate::CallError::Overloaded`], which does not say that nothing ran: only
    /// the handler knows.
    ///
    /// ```
    /// # use dunlin_net::{Addr, loopback::{LoopbackConfig, LoopbackNetwork}};
    /// # use dunlin_rpc::{Endpoint, EndpointConfig, CallError, DeferredRequest};
    /// # let network = LoopbackNetwork::new(LoopbackConfig { delay: std::time::Duration::ZERO, ..Default::default() });
    /// let config = EndpointConfig { deferred_requests_max: 1, ..EndpointConfig::default() };
    /// let server = Endpoint::new(network.endpoint(1)?, config)?;
    /// # let client = Endpoint::new(network.endpoint(2)?, EndpointConfig::default())?;
    /// let mut kept: Vec<DeferredRequest> = Vec::new();
    /// server.register(7, move |request| match request.defer() {
    ///     Ok(deferred) => kept.push(deferred),
    ///     // This handler has done nothing yet, so it can say so.
    ///     Err(request) => request.push_back(),
    /// })?;
    /// let work = async {
    ///     let session = client.connect(&Addr::Node(1)).await?;
    ///     let (_first, second) = (session.call(7, vec![1]), session.call(7, vec![2]));
    ///     assert_eq!(second.await.unwrap_err().error, CallError::Busy);
    /// #     Ok::<(), Box<dyn std::error::Error>>(())
    /// };
    /// # // One thread drives both endpoints.
    /// # let mut work = Box::pin(work);
    /// # loop {
    /// #     server.run_once();
    /// #     if let Some(done) = client.poll_once(work.as_mut()) {
    /// #         break done?;
    /// #     }
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn defer(mut self) -> Result<DeferredRequest, Request<'a>> {
        let Some(payload) = keep(self.shared, self.serve, self.payload) else {
            self.if_dropped = Status::Overloaded;
            return Err(self);
        };
        let deferred = DeferredRequest::new(self.shared, self.serve, payload);
        std::mem::forget(self);
        Ok(deferred)
    }

    /// Answers with [`crate::CallError::Busy`], or [`crate::CallError::ShuttingDown`] if the endpoint is shutting down.
    /// Both tell the caller that nothing ran and that it may retry. Use this only in a handler that has done nothing
    /// for the request yet.
    pub fn push_back(self) {
        push_back(self.shared, self.serve);
        std::mem::forget(self);
    }

    /// Answers with an error of the application: its caller gets [`crate::CallError::Application`] with the code, and
    /// as much of the message as [`crate::ApplicationError`] says.
    ///
    /// ```
    /// # use dunlin_net::{Addr, loopback::{LoopbackConfig, LoopbackNetwork}};
    /// # use dunlin_rpc::{ApplicationError, CallError, Endpoint, EndpointConfig};
    /// # let network = LoopbackNetwork::new(LoopbackConfig { delay: std::time::Duration::ZERO, ..Default::default() });
    /// # let server = Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?;
    /// # let client = Endpoint::new(network.endpoint(2)?, EndpointConfig::default())?;
    /// server.register(7, |request| match request.payload() {
    ///     [] => request.fail(22, "an empty request says nothing"),
    ///     payload => request.respond(payload),
    /// })?;
    /// let work = async {
    ///     let session = client.connect(&Addr::Node(1)).await?;
    ///     let failure = session.call(7, vec![]).await.unwrap_err();
    ///     assert_eq!(failure.error, CallError::Application(ApplicationError::new(22, "an empty request says nothing")));
    /// #     Ok::<(), Box<dyn std::error::Error>>(())
    /// };
    /// # // One thread drives both endpoints.
    /// # let mut work = Box::pin(work);
    /// # loop {
    /// #     server.run_once();
    /// #     if let Some(done) = client.poll_once(work.as_mut()) {
    /// #         break done?;
    /// #     }
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fail(self, code: u32, message: &str) {
        fail(self.shared, self.serve, code, message);
        std::mem::forget(self);
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        drop_unanswered(self.shared, self.serve, self.if_dropped);
    }
}

/// Answers a request with an error of the application, if its caller still waits.
#[cold]
fn fail(shared: &Rc<Shared>, serve: ServeRef, code: u32, message: &str) {
    // It is no error of the handler that a caller gave up; if there is no memory, the caller has been told.
    let _ = shared.core.borrow_mut().respond_failure(serve, code, message);
}

/// Answers a request that its handler left unanswered.
#[cold]
fn drop_unanswered(shared: &Rc<Shared>, serve: ServeRef, status: Status) {
    let mut core = shared.core.borrow_mut();
    core.counters.requests_overloaded += u64::from(status == Status::Overloaded);
    core.respond_status(serve, status);
}

#[inline]
fn fill_zeroed(buffer: &mut MsgBuf, fill: impl FnOnce(&mut [u8])) {
    buffer.fill(0);
    fill(buffer);
}

#[inline]
fn write_start(buffer: &mut MsgBuf, write: impl FnOnce(&mut [u8]) -> usize) {
    let len = write(buffer);
    buffer.truncate(len);
}

/// Responds with a buffer of `len` bytes, all of which `overwrite` must overwrite or cut off.
#[inline]
fn respond_in_place(shared: &Rc<Shared>, serve: ServeRef, len: usize, overwrite: impl FnOnce(&mut MsgBuf)) {
    let buffer = shared.core.borrow_mut().response_buffer(serve, len);
    match buffer {
        Ok(mut buffer) => {
            overwrite(&mut buffer);
            // This fails only if the response is too large for the session, and then the caller has been told.
            let _ = shared.core.borrow_mut().respond(serve, buffer.into());
        }
        Err(RespondError::Orphaned) => shared.core.borrow_mut().counters.responses_orphaned += 1,
        Err(_) => shared.core.borrow_mut().respond_status(serve, Status::ResponseTooLarge),
    }
}

fn session_of(shared: &Rc<Shared>, serve: ServeRef) -> Session {
    let core = shared.core.borrow();
    let session = core.serves[serve.place()].session;
    Session::new(shared, core.session_ref(session))
}

pub(crate) fn context_of(shared: &Rc<Shared>, serve: ServeRef) -> RequestContext {
    shared.core.borrow_mut().context_of(serve, &shared.time)
}

fn time_left(shared: &Rc<Shared>, serve: ServeRef) -> Option<Duration> {
    let core = shared.core.borrow();
    let deadline = core.serves[serve.place()].deadline;
    (deadline != NO_DEADLINE).then(|| Duration::from_nanos(deadline.saturating_sub(core.now)))
}

/// Requests of one type that arrived in one receive burst, in order.
pub struct RequestBurst<'a> {
    pub(crate) shared: &'a Rc<Shared>,
    pub(crate) requests: &'a [(ServeRef, &'a [u8])],
    pub(crate) req_type: u8,
    /// A bit for each request.
    answered: u64,
    /// The requests that could not be kept.
    overloaded: u64,
}

impl<'a> RequestBurst<'a> {
    #[inline]
    pub(crate) fn new(shared: &'a Rc<Shared>, requests: &'a [(ServeRef, &'a [u8])], req_type: u8) -> RequestBurst<'a> {
        RequestBurst { shared, requests, req_type, answered: 0, overloaded: 0 }
    }

    /// How many requests there are: 1 to 64.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// The request type.
    pub fn req_type(&self) -> u8 {
        self.req_type
    }

    /// The bytes of request `i`.
    ///
    /// # Panics
    /// If there is no such request.
    #[inline]
    pub fn payload(&self, i: usize) -> &'a [u8] {
        self.requests[i].1
    }

    /// The session that request `i` came on.
    ///
    /// # Panics
    /// As [`RequestBurst::payload`].
    pub fn session(&self, i: usize) -> Session {
        session_of(self.shared, self.requests[i].0)
    }

    /// How long the caller of request `i` still waits, if it set a deadline.
    ///
    /// # Panics
    /// As [`RequestBurst::payload`].
    pub fn time_left(&self, i: usize) -> Option<Duration> {
        time_left(self.shared, self.requests[i].0)
    }

    /// The context of request `i`, as from [`Request::context`].
    ///
    /// # Panics
    /// As [`RequestBurst::payload`].
    pub fn context(&self, i: usize) -> RequestContext {
        context_of(self.shared, self.requests[i].0)
    }

    /// Responds to request `i` with a copy of `response`.
    ///
    /// # Panics
    /// As [`RequestBurst::payload`].
    #[inline]
    pub fn respond(&mut self, i: usize, response: &[u8]) {
        respond_in_place(self.shared, self.requests[i].0, response.len(), |buffer| buffer.copy_from_slice(response));
        self.answered |= 1 << i;
    }

    /// Responds to request `i` with `len` bytes that `fill` writes in place; bytes that it does not write are zero.
    ///
    /// # Panics
    /// As [`RequestBurst::payload`].
    #[inline]
    pub fn respond_with(&mut self, i: usize, len: usize, fill: impl FnOnce(&mut [u8])) {
        respond_in_place(self.shared, self.requests[i].0, len, |buffer| fill_zeroed(buffer, fill));
        self.answered |= 1 << i;
    }

    /// Responds to request `i` with what `write` writes in place, as [`Request::respond_written`] does.
    ///
    /// # Panics
    /// As [`RequestBurst::payload`], and if `write` returns more than `len_max`.
    #[inline]
    pub fn respond_written(&mut self, i: usize, len_max: usize, write: impl FnOnce(&mut [u8]) -> usize) {
        respond_in_place(self.shared, self.requests[i].0, len_max, |buffer| write_start(buffer, write));
        self.answered |= 1 << i;
    }

    /// Keeps request `i`, to be answered later.
    ///
    /// # Errors
    /// [`CannotDefer`] if the handlers hold too many already ([`crate::EndpointConfig::deferred_requests_max`]), or no
    /// buffer is available. The handler must then still answer the request; if it does not, its caller gets
    /// [`crate::CallError::Overloaded`].
    ///
    /// # Panics
    /// As [`RequestBurst::payload`].
    pub fn defer(&mut self, i: usize) -> Result<DeferredRequest, CannotDefer> {
        let (serve, payload) = self.requests[i];
        let Some(payload) = keep(self.shared, serve, payload) else { return self.cannot_defer(i) };
        self.answered |= 1 << i;
        Ok(DeferredRequest::new(self.shared, serve, payload))
    }

    /// Keeps the right to answer request `i`, without the request itself: for handlers that are done with its bytes, or
    /// keep them in another form.
    ///
    /// # Errors
    /// As [`RequestBurst::defer`].
    ///
    /// # Panics
    /// As [`RequestBurst::payload`].
    pub fn defer_reply(&mut self, i: usize) -> Result<DeferredReply, CannotDefer> {
        let serve = self.requests[i].0;
        if !may_defer(self.shared, serve) {
            return self.cannot_defer(i);
        }
        self.answered |= 1 << i;
        Ok(DeferredReply { right: ReplyRight::new(self.shared, serve) })
    }

    #[cold]
    fn cannot_defer<D>(&mut self, i: usize) -> Result<D, CannotDefer> {
        self.overloaded |= 1 << i;
        Err(CannotDefer)
    }

    /// Answers request `i` as [`Request::push_back`] does.
    ///
    /// # Panics
    /// As [`RequestBurst::payload`].
    pub fn push_back(&mut self, i: usize) {
        push_back(self.shared, self.requests[i].0);
        self.answered |= 1 << i;
    }

    /// Answers request `i` with an error of the application, as [`Request::fail`] does.
    ///
    /// # Panics
    /// As [`RequestBurst::payload`].
    pub fn fail(&mut self, i: usize, code: u32, message: &str) {
        fail(self.shared, self.requests[i].0, code, message);
        self.answered |= 1 << i;
    }
}

impl Drop for RequestBurst<'_> {
    #[inline]
    fn drop(&mut self) {
        // As nearly always: all are answered, and none is looked at.
        if self.answered.trailing_ones() as usize >= self.requests.len() {
            return;
        }
        for (i, (serve, _)) in self.requests.iter().enumerate() {
            if self.answered & 1 << i == 0 {
                let is_overloaded = self.overloaded & 1 << i != 0;
                drop_unanswered(
                    self.shared,
                    *serve,
                    if is_overloaded { Status::Overloaded } else { Status::HandlerFailed },
                );
            }
        }
    }
}

/// The right to answer one request, kept for later.
pub(crate) struct ReplyRight {
    shared: Rc<Shared>,
    serve: ServeRef,
    peer: PeerRef,
    /// When it was kept.
    began: u64,
    answered: bool,
}

impl ReplyRight {
    pub fn new(shared: &Rc<Shared>, serve: ServeRef) -> ReplyRight {
        let mut core = shared.core.borrow_mut();
        core.deferred += 1;
        let peer = core.count_deferred(serve);
        ReplyRight { shared: shared.clone(), serve, peer, began: core.now, answered: false }
    }

    pub fn shared(&self) -> Rc<Shared> {
        self.shared.clone()
    }

    pub fn is_waited_for(&self) -> bool {
        self.shared.core.borrow_mut().waiting(self.serve).is_ok()
    }

    pub fn respond(mut self, response: Payload) -> Result<(), RespondError> {
        self.answered = true;
        let mut core = self.shared.core.borrow_mut();
        core.note_late_answer(self.serve, self.began);
        let result = core.respond(self.serve, response);
        drop(core);
        self.shared.drop_discarded();
        result
    }

    pub fn fail(mut self, code: u32, message: &str) -> Result<(), RespondError> {
        self.answered = true;
        let mut core = self.shared.core.borrow_mut();
        core.note_late_answer(self.serve, self.began);
        core.respond_failure(self.serve, code, message)
    }

    pub fn push_back(mut self) {
        self.answered = true;
        push_back(&self.shared, self.serve);
    }
}

impl Drop for ReplyRight {
    fn drop(&mut self) {
        let mut core = self.shared.core.borrow_mut();
        core.deferred -= 1;
        core.uncount_deferred(self.peer);
        if !self.answered {
            core.note_late_answer(self.serve, self.began);
            core.respond_status(self.serve, Status::HandlerFailed);
        }
        drop(core);
        self.shared.executor.notify_here();
    }
}

/// A request with a buffer of its own, for asynchronous handlers.
pub struct OwnedRequest {
    session: Session,
    payload: MsgBuf,
    context: RequestContext,
}

impl OwnedRequest {
    /// Must be called from inside the handler that got the request.
    pub(crate) fn new(shared: &Rc<Shared>, serve: ServeRef, payload: MsgBuf) -> OwnedRequest {
        OwnedRequest { session: session_of(shared, serve), payload, context: context_of(shared, serve) }
    }

    /// The request's bytes.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The request's buffer.
    pub fn into_payload(self) -> MsgBuf {
        self.payload
    }

    /// The request type.
    pub fn req_type(&self) -> u8 {
        self.context.req_type()
    }

    /// Its context.
    pub fn context(&self) -> &RequestContext {
        &self.context
    }

    /// The session it came on: the handler may call its caller back.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// How long the caller still waits, if it set a deadline. Pass it on to nested calls, so that no server works for a
    /// caller that has left.
    pub fn time_left(&self) -> Option<Duration> {
        self.context.time_left()
    }

    /// Whether the caller still waits: false once it cancelled, timed out or went away.
    pub fn is_waited_for(&self) -> bool {
        self.context.is_waited_for()
    }

    /// Completes when the caller no longer waits for the answer: it cancelled, timed out, went away, or has the answer.
    /// Await it beside the work, and then cancel the work.
    ///
    /// ```
    /// # use dunlin_net::{Addr, loopback::{LoopbackConfig, LoopbackNetwork}};
    /// # use dunlin_rpc::{CallOptions, Endpoint, EndpointConfig, OwnedRequest};
    /// # use futures::future::{Either, select};
    /// # use std::{pin::pin, time::Duration};
    /// # let network = LoopbackNetwork::new(LoopbackConfig { delay: Duration::ZERO, ..Default::default() });
    /// # let server = Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?;
    /// # let client = Endpoint::new(network.endpoint(2)?, EndpointConfig::default())?;
    /// # async fn long_work() { std::future::pending().await }
    /// server.register_async(7, |request: OwnedRequest| async move {
    ///     match select(pin!(long_work()), pin!(request.gone())).await {
    ///         Either::Left(_) => b"done".to_vec(),
    ///         // Whatever is returned now goes nowhere.
    ///         Either::Right(_) => vec![],
    ///     }
    /// })?;
    /// let work = async {
    ///     let session = client.connect(&Addr::Node(1)).await?;
    ///     let call = session.call_with(7, vec![1], CallOptions::timeout(Duration::from_millis(1)));
    ///     assert!(call.await.is_err());
    /// #     Ok::<(), Box<dyn std::error::Error>>(())
    /// };
    /// # // One thread drives both endpoints.
    /// # let mut work = Box::pin(work);
    /// # loop {
    /// #     network.advance(Duration::from_micros(10));
    /// #     server.run_once();
    /// #     if let Some(done) = client.poll_once(work.as_mut()) {
    /// #         break done?;
    /// #     }
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn gone(&self) -> impl Future<Output = ()> + use<> {
        let mut gone = self.context.gone();
        let mut deadline = self.context.deadline().map(|at| self.session.timers().sleep_until(at));
        poll_fn(move |context| {
            let is_late = deadline.as_mut().is_some_and(|sleep| Pin::new(sleep).poll(context).is_ready());
            if is_late { Poll::Ready(()) } else { Pin::new(&mut gone).poll(context) }
        })
    }
}

/// A request on a worker thread.
#[derive(Debug)]
pub struct WorkerRequest {
    payload: MsgBuf,
    context: RequestContext,
}

impl WorkerRequest {
    pub(crate) fn new(payload: MsgBuf, context: RequestContext) -> WorkerRequest {
        WorkerRequest { payload, context }
    }

    /// The request's bytes.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The request's buffer.
    pub fn into_payload(self) -> MsgBuf {
        self.payload
    }

    /// Its context. Long work should check it from time to time, and end early if the caller no longer waits.
    pub fn context(&self) -> &RequestContext {
        &self.context
    }
}

/// A request kept by a dispatch-mode handler, to be answered at any time while the endpoint lives. If it is dropped
/// without an answer, its caller gets [`crate::CallError::HandlerFailed`].
pub struct DeferredRequest {
    right: ReplyRight,
    request: OwnedRequest,
}

impl DeferredRequest {
    pub(crate) fn new(shared: &Rc<Shared>, serve: ServeRef, payload: MsgBuf) -> DeferredRequest {
        DeferredRequest { right: ReplyRight::new(shared, serve), request: OwnedRequest::new(shared, serve, payload) }
    }

    /// The request.
    pub fn request(&self) -> &OwnedRequest {
        &self.request
    }

    /// Responds; the packets leave in the next iteration of the event loop.
    ///
    /// # Errors
    /// [`RespondError`] if the caller no longer waits, or the response is too large.
    pub fn enqueue_response(self, response: impl Into<Payload>) -> Result<(), RespondError> {
        self.right.respond(response.into())
    }

    /// Answers as [`Request::push_back`] does. Only for a handler that has done nothing for the request yet.
    pub fn push_back(self) {
        self.right.push_back();
    }

    /// Answers with an error of the application's, as [`Request::fail`] does.
    ///
    /// # Errors
    /// [`RespondError::Orphaned`] if the caller no longer waits. If there is no memory for the message, the caller gets
    /// [`crate::CallError::HandlerFailed`].
    pub fn fail(self, code: u32, message: &str) -> Result<(), RespondError> {
        self.right.fail(code, message)
    }
}

/// The right to answer a request later, without the request. If it is dropped unused, the caller gets the error that
/// the handler failed.
pub struct DeferredReply {
    right: ReplyRight,
}

impl std::fmt::Debug for DeferredReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeferredReply").finish_non_exhaustive()
    }
}

impl DeferredReply {
    /// Whether the caller still waits: false once it cancelled, timed out and said so, or went away.
    pub fn is_waited_for(&self) -> bool {
        self.right.is_waited_for()
    }

    /// Sends the response with the next iteration of the event loop.
    ///
    /// # Errors
    /// [`RespondError::Orphaned`] if the caller no longer waits; [`RespondError::TooLarge`].
    pub fn enqueue_response(self, response: impl Into<Payload>) -> Result<(), RespondError> {
        self.right.respond(response.into())
    }

    /// Answers with an error of the application, as [`DeferredRequest::fail`] does.
    ///
    /// # Errors
    /// As [`DeferredRequest::fail`].
    pub fn fail(self, code: u32, message: &str) -> Result<(), RespondError> {
        self.right.fail(code, message)
    }
}
