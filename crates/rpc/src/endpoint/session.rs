//! Handles of sessions, and the futures of calls.

use std::cell::RefCell;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use dunlin_net::Addr;

use super::Shared;
use super::alarm::Timers;
use crate::context::SessionId;
use crate::core::call::{CallRef, NO_DEADLINE, NewCall, Waiter};
use crate::core::handshake::{OpenProgress, Opening};
use crate::core::session::{SessionRef, State};
use crate::error::{CallError, CallFailure, ConnectError};
use crate::msgbuf::MsgBuf;
use crate::payload::{Payload, RequestBuffer};
use crate::stats::SessionStats;
use dunlin_net::clock::nanos;

/// A session with another endpoint. Clones refer to the same session; dropping them does not close it. Either end may
/// call the other.
#[derive(Clone)]
pub struct Session {
    shared: Rc<Shared>,
    reference: SessionRef,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({}.{})", self.reference.index, self.reference.generation)
    }
}

impl PartialEq for Session {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.shared, &other.shared) && self.reference == other.reference
    }
}

impl Eq for Session {}

/// Options of one call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallOptions {
    /// Give up after this time. The handler is told how long it has. 584 years or more means never.
    pub timeout: Option<Duration>,
}

impl CallOptions {
    /// Gives up after `timeout`.
    pub fn timeout(timeout: Duration) -> CallOptions {
        CallOptions { timeout: Some(timeout) }
    }

    fn timeout_nanos(self) -> u64 {
        self.timeout.map_or(NO_DEADLINE, nanos)
    }
}

/// Options for opening one session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectOptions {
    /// Give up after this time, instead of [`crate::EndpointConfig::connect_timeout`].
    pub timeout: Option<Duration>,
}

impl ConnectOptions {
    /// Gives up after `timeout`.
    pub fn timeout(timeout: Duration) -> ConnectOptions {
        ConnectOptions { timeout: Some(timeout) }
    }
}

/// A call's response, with the request's buffer.
#[derive(Debug)]
pub struct Reply<B = MsgBuf> {
    /// The response.
    pub response: MsgBuf,
    /// The request's buffer.
    pub request: B,
}

/// How a call of the callback layer ended.
#[derive(Debug)]
pub struct Completion {
    /// Its session.
    pub session: Session,
    /// The tag it was issued with.
    pub tag: u64,
    /// The response, or the error.
    pub result: Result<MsgBuf, CallError>,
    /// The request's buffer.
    pub request: Payload,
}

/// A continuation registered with [`crate::Endpoint::register_continuation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContinuationId(pub(crate) u32);

impl Session {
    pub(crate) fn new(shared: &Rc<Shared>, reference: SessionRef) -> Session {
        Session { shared: shared.clone(), reference }
    }

    pub(crate) fn timers(&self) -> Timers {
        Timers::new(&self.shared)
    }

    /// Its identifier, for other threads and for tables.
    pub fn id(&self) -> SessionId {
        SessionId(self.reference)
    }

    /// Calls the peer. The request is enqueued at once, whether or not the future is polled; dropping the future
    /// cancels the call.
    ///
    /// A session has at most eight calls in progress ([`crate::EndpointConfig::slots`]). Further ones queue, in order,
    /// up to [`crate::EndpointConfig::queued_calls_max`]; beyond that they fail with [`CallError::QueueFull`]. For more
    /// calls at the same time, open more sessions to the same address and spread the calls over them: [`Session::room`]
    /// says which has room.
    ///
    /// ```
    /// # use dunlin_net::{Addr, loopback::{LoopbackConfig, LoopbackNetwork}};
    /// # use dunlin_rpc::{Endpoint, EndpointConfig, MsgBuf};
    /// # let network = LoopbackNetwork::new(LoopbackConfig { delay: std::time::Duration::ZERO, ..Default::default() });
    /// # let server = Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?;
    /// # let client = Endpoint::new(network.endpoint(2)?, EndpointConfig::default())?;
    /// server.register(7, |request| {
    ///     let doubled: Vec<u8> = request.payload().iter().map(|byte| byte * 2).collect();
    ///     request.respond(&doubled);
    /// })?;
    /// let work = async {
    ///     let session = client.connect(&Addr::Node(1)).await?;
    ///     // Both are on their way before either is awaited.
    ///     let (first, second) = (session.call(7, vec![1, 2]), session.call(7, MsgBuf::copy_from(&[3])?));
    ///     assert_eq!(first.await?.response[..], [2, 4]);
    ///     assert_eq!(second.await?.response[..], [6]);
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
    pub fn call<B: RequestBuffer>(&self, req_type: u8, request: B) -> Call<B> {
        self.call_with(req_type, request, CallOptions::default())
    }

    /// [`Session::call`] with options.
    ///
    /// ```
    /// # use dunlin_net::{Addr, loopback::{LoopbackConfig, LoopbackNetwork}};
    /// # use dunlin_rpc::{Endpoint, EndpointConfig, CallError, CallOptions, DeferredRequest};
    /// # let network = LoopbackNetwork::new(LoopbackConfig { delay: std::time::Duration::ZERO, ..Default::default() });
    /// # let server = Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?;
    /// # let client = Endpoint::new(network.endpoint(2)?, EndpointConfig::default())?;
    /// use std::time::Duration;
    ///
    /// // A server that never answers.
    /// let mut kept: Vec<DeferredRequest> = Vec::new();
    /// server.register(7, move |request| kept.extend(request.defer()))?;
    /// let work = async {
    ///     let session = client.connect(&Addr::Node(1)).await?;
    ///     let failure = session.call_with(7, vec![1], CallOptions::timeout(Duration::from_millis(1))).await.unwrap_err();
    ///     assert_eq!(failure.error, CallError::DeadlineExceeded);
    ///     assert_eq!(failure.request, [1]); // The buffer comes back whatever happens.
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
    pub fn call_with<B: RequestBuffer>(&self, req_type: u8, request: B, options: CallOptions) -> Call<B> {
        let timeout = options.timeout_nanos();
        let new = NewCall { req_type, request: request.into(), timeout, waiter: Waiter::FUTURE, tag: 0 };
        let state = match self.shared.core.borrow_mut().start_call(self.reference, new) {
            Ok(call) => CallState::Started(call),
            Err((error, request)) => CallState::Failed(error, request),
        };
        self.shared.executor.notify_here();
        Call { shared: self.shared.clone(), state, buffer: PhantomData }
    }

    /// The callback layer: enqueues a request; `continuation` runs once when it ends, in the event loop. If the
    /// endpoint is dropped first, the continuation runs then, with [`CallError::Closed`].
    ///
    /// # Errors
    /// If nothing was enqueued; it holds the request's buffer, and the continuation does not run.
    ///
    /// ```
    /// # use dunlin_net::{Addr, loopback::{LoopbackConfig, LoopbackNetwork}};
    /// # use dunlin_rpc::{Endpoint, EndpointConfig, MsgBuf};
    /// # let network = LoopbackNetwork::new(LoopbackConfig { delay: std::time::Duration::ZERO, ..Default::default() });
    /// # let server = Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?;
    /// # let client = Endpoint::new(network.endpoint(2)?, EndpointConfig::default())?;
    /// use std::{cell::Cell, rc::Rc};
    ///
    /// server.register(7, |request| request.respond(b"pong"))?;
    /// let sum = Rc::new(Cell::new(0));
    /// let seen = sum.clone();
    /// let continuation = client.register_continuation(move |completion| {
    ///     assert_eq!(completion.result.as_deref(), Ok(&b"pong"[..]));
    ///     seen.set(seen.get() + completion.tag);
    /// });
    /// let work = async {
    ///     let session = client.connect(&Addr::Node(1)).await?;
    ///     for tag in [1, 10, 100] {
    ///         session.enqueue_request(7, MsgBuf::copy_from(b"ping")?, continuation, tag)?;
    ///     }
    ///     session.call(7, vec![]).await?;
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
    #[inline]
    pub fn enqueue_request(
        &self,
        req_type: u8,
        request: impl Into<Payload>,
        continuation: ContinuationId,
        tag: u64,
    ) -> Result<(), CallFailure> {
        self.enqueue_request_with(req_type, request, continuation, tag, CallOptions::default())
    }

    /// [`Session::enqueue_request`] with options. A call whose deadline passes ends like any other: its continuation
    /// runs once, with the error and the request's buffer.
    ///
    /// # Errors
    /// As [`Session::enqueue_request`].
    #[inline]
    pub fn enqueue_request_with(
        &self,
        req_type: u8,
        request: impl Into<Payload>,
        continuation: ContinuationId,
        tag: u64,
        options: CallOptions,
    ) -> Result<(), CallFailure> {
        let waiter = Waiter::continuation(continuation.0);
        let timeout = options.timeout_nanos();
        let new = NewCall { req_type, request: request.into(), timeout, waiter, tag };
        let started = self.shared.core.borrow_mut().start_call(self.reference, new);
        self.shared.executor.notify_here();
        match started {
            Ok(_) => Ok(()),
            Err((error, request)) => Err(CallFailure { error, request }),
        }
    }

    /// Prefetches what a call on this session will touch. A caller that uses very many sessions and knows early which
    /// one comes next saves the call a wait for memory; otherwise it is useless.
    #[inline]
    pub fn prefetch(&self) {
        if let Some(session) = self.shared.core.borrow().sessions.get(self.reference.index as usize) {
            crate::prefetch::read_lines(session);
        }
    }

    /// Whether calls can be issued.
    pub fn is_open(&self) -> bool {
        self.shared.core.borrow().session(self.reference).is_some_and(|session| session.state == State::Connected)
    }

    /// Calls that can be issued now before [`CallError::QueueFull`].
    pub fn room(&self) -> usize {
        let core = self.shared.core.borrow();
        core.session(self.reference).map_or(0, |session| {
            session.free_slots.count_ones() as usize + (core.config.queued_calls_max - session.queued) as usize
        })
    }

    /// Closes the session. It starts at once: pending calls of both ends fail with [`CallError::Closed`]; the future
    /// completes when the peer has agreed, or does not answer.
    pub fn close(&self) -> Closing {
        self.shared.core.borrow_mut().close_session(self.reference);
        self.shared.drop_discarded();
        self.shared.executor.notify_here();
        Closing { session: self.clone() }
    }

    /// Counts round-trip times and dropped packets of this session from now on, for [`SessionStats::observed`]. It
    /// takes some 600 bytes, and no time of its calls.
    pub fn observe(&self) {
        self.shared.core.borrow_mut().observe(self.reference);
    }

    /// Counts and estimates for this session; `None` once it has ended.
    pub fn stats(&self) -> Option<SessionStats> {
        let core = self.shared.core.borrow();
        let session = core.session(self.reference)?;
        let cold = &core.cold[self.reference.index as usize];
        Some(SessionStats {
            calls_in_progress: session.slots as u32 - session.free_slots.count_ones(),
            calls_queued: session.queued as u32,
            credits: session.credits.max(0) as u16,
            credits_max: session.credits_max,
            credits_agreed: cold.places.outbound_agreed,
            credits_granted: cold.loan.granted(cold.places.inbound_agreed),
            packet_data_bytes: session.packet_data as usize,
            message_bytes_max: session.message_bytes_max as usize,
            rtt_smoothed: Duration::from_nanos(session.srtt as u64),
            rto: Duration::from_nanos(core.rto(self.reference.index, 0)),
            allowance: core.congestion.allowance(self.reference.index),
            sends_paced: core.congestion.sends_paced(self.reference.index),
            retransmissions: cold.retransmissions,
            tx_packets: session.traffic.tx_packets,
            tx_bytes: session.traffic.tx_bytes,
            rx_packets: session.traffic.rx_packets,
            rx_bytes: session.traffic.rx_bytes,
            observed: cold.observed.as_deref().copied(),
        })
    }
}

enum CallState {
    Started(CallRef),
    Failed(CallError, Payload),
    Taken,
}

/// A call in progress: the future of its [`Reply`]. Dropping it cancels the call, and frees its slot and buffers at
/// once.
#[must_use = "dropping a call cancels it"]
pub struct Call<B: RequestBuffer> {
    shared: Rc<Shared>,
    state: CallState,
    buffer: PhantomData<fn() -> B>,
}

impl<B: RequestBuffer> Call<B> {
    fn request(payload: Payload) -> B {
        B::from_payload(payload).expect("a call gives back the buffer it was given")
    }
}

impl<B: RequestBuffer> Future for Call<B> {
    type Output = Result<Reply<B>, CallFailure<B>>;

    /// # Panics
    /// If polled after it completed.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let CallState::Started(call) = this.state else {
            return match std::mem::replace(&mut this.state, CallState::Taken) {
                CallState::Failed(error, request) => {
                    Poll::Ready(Err(CallFailure { error, request: Self::request(request) }))
                }
                _ => panic!("a call was polled after it was ready"),
            };
        };
        let mut core = this.shared.core.borrow_mut();
        let entry = &mut core.calls[call.place()];
        let Some(result) = entry.take_result() else {
            let before = if this.shared.executor.is_root(context.waker()) {
                entry.waiter = Waiter::ROOT;
                entry.waker.take()
            } else {
                entry.waiter = Waiter::FUTURE;
                match &mut entry.waker {
                    Some(waker) if waker.will_wake(context.waker()) => None,
                    waker => waker.replace(context.waker().clone()),
                }
            };
            // Dropping a waker may drop what it owns, which may call back into the core.
            drop(core);
            drop(before);
            return Poll::Pending;
        };
        this.state = CallState::Taken;
        let request = entry.request.take().expect("a finished call has its request");
        core.free_call(call.index());
        drop(core);
        let request = Self::request(request);
        Poll::Ready(match result {
            Ok(response) => Ok(Reply { response, request }),
            Err(error) => Err(CallFailure { error, request }),
        })
    }
}

impl<B: RequestBuffer> Drop for Call<B> {
    fn drop(&mut self) {
        if let CallState::Started(call) = self.state {
            let waker = self.shared.core.borrow_mut().cancel_call(call);
            drop(waker);
            self.shared.drop_discarded();
            self.shared.executor.notify_here();
        }
    }
}

/// A session being opened: the future of its handle. Dropping it cancels the opening.
#[must_use = "dropping it gives the session up"]
pub struct Connecting {
    shared: Rc<Shared>,
    progress: Rc<RefCell<OpenProgress>>,
}

impl Connecting {
    pub(crate) fn new(shared: &Rc<Shared>, addr: &Addr, options: ConnectOptions) -> Connecting {
        let progress = Rc::new(RefCell::new(OpenProgress::default()));
        if shared.core.borrow().shutting_down {
            progress.borrow_mut().result = Some(Err(ConnectError::ShutDown));
            return Connecting { shared: shared.clone(), progress };
        }
        shared.core.borrow_mut().openings.push_back(Opening {
            addr: addr.clone(),
            timeout: options.timeout.map(nanos),
            progress: progress.clone(),
        });
        shared.executor.notify_here();
        Connecting { shared: shared.clone(), progress }
    }
}

impl Future for Connecting {
    type Output = Result<Session, ConnectError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut progress = self.progress.borrow_mut();
        match progress.result.take() {
            Some(result) => Poll::Ready(result.map(|reference| Session::new(&self.shared, reference))),
            None => {
                let before = progress.waker.replace(context.waker().clone());
                // Dropping a waker may drop what it owns, which may call back into this code.
                drop(progress);
                drop(before);
                Poll::Pending
            }
        }
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        let (opened, waker) = {
            let mut progress = self.progress.borrow_mut();
            progress.abandoned = true;
            (progress.result.take(), progress.waker.take())
        };
        // The core drops what is left of this while it is borrowed, and a waker may own what comes back to it then.
        drop(waker);
        if let Some(Ok(session)) = opened {
            self.shared.core.borrow_mut().close_session(session);
            self.shared.executor.notify_here();
        }
    }
}

/// A session being closed: the future completes when it is closed.
pub struct Closing {
    session: Session,
}

impl Future for Closing {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut core = self.session.shared.core.borrow_mut();
        let reference = self.session.reference;
        if core.session(reference).is_none() {
            return Poll::Ready(());
        }
        let closers = &mut core.cold[reference.index as usize].closers;
        if !closers.iter().any(|closer| closer.will_wake(context.waker())) {
            closers.push(context.waker().clone());
        }
        Poll::Pending
    }
}
