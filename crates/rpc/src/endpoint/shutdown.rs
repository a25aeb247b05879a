//! Graceful shutdown of an endpoint (paper, appendix B): first what is in progress ends, then its sessions.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use dunlin_net::Transport;
use dunlin_net::clock::nanos;

use super::event_loop::run_continuations;
use super::{Endpoint, Shared};

/// How long responses that their callers have not released are kept, in case one must be resent.
const LINGER_NANOS: u64 = 200_000_000;

/// What had not ended when a shutdown ran out of patience.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unfinished {
    /// Requests that handlers still had. Their callers got [`crate::CallError::Closed`]; the results of the handlers
    /// are dropped.
    pub requests: u32,
    /// Calls of this endpoint that had no answer. They ended with [`crate::CallError::Closed`].
    pub calls: u32,
}

impl Unfinished {
    /// Whether everything had ended.
    pub fn is_nothing(&self) -> bool {
        *self == Unfinished::default()
    }
}

enum Phase {
    /// Waiting until `end` for what is in progress.
    Draining { end: u64 },
    /// Waiting until `end` for callers that may ask for a response again.
    Lingering { end: u64 },
    /// Waiting for the peers to agree.
    Closing,
}

/// An endpoint that is shutting down: the future of what was left unfinished.
#[must_use = "the sessions are closed only when this is awaited"]
pub struct ShuttingDown {
    shared: Rc<Shared>,
    phase: Phase,
    unfinished: Unfinished,
}

impl<T: Transport> Endpoint<T> {
    /// Drops handlers, continuations and tasks, except a task that calls this. [`Endpoint::shutdown`] does so at its
    /// end. An endpoint that ends without a shutdown, because something failed, and whose handlers or tasks hold it,
    /// would otherwise keep its address for ever. Nothing can be registered afterwards.
    ///
    /// ```
    /// # use std::rc::Rc;
    /// # use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};
    /// # use dunlin_rpc::{Endpoint, EndpointConfig};
    /// # let network = LoopbackNetwork::new(LoopbackConfig::default());
    /// let endpoint = Rc::new(Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?);
    /// let held = endpoint.clone();
    /// endpoint.register(7, move |request| request.respond(format!("{} tasks", held.stats().tasks).as_bytes()))?;
    /// assert_eq!(Rc::strong_count(&endpoint), 2);
    /// endpoint.drop_application();
    /// assert_eq!(Rc::strong_count(&endpoint), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn drop_application(&self) {
        self.shared.drop_application();
    }

    /// Shuts down gracefully. From now on no session opens, and requests that arrive are answered with
    /// [`crate::CallError::ShuttingDown`]: nothing ran, so they can be repeated elsewhere. Requests that handlers of
    /// any kind have, and this endpoint's own calls, have up to `patience` to end; then every session is closed. The
    /// future completes when the peers know it, or did not answer; the event loop must run meanwhile. If it is dropped
    /// before, the endpoint stays as it is and opens no more sessions.
    ///
    /// At the end, handlers, continuations and tasks are dropped. So an endpoint that they hold, as asynchronous
    /// handlers with clients of other services do, is freed when its owner drops it. A task that awaits this is kept.
    ///
    /// ```
    /// # use dunlin_net::{Addr, loopback::{LoopbackConfig, LoopbackNetwork}};
    /// # use dunlin_rpc::{CallError, Endpoint, EndpointConfig};
    /// # use std::time::Duration;
    /// # let network = LoopbackNetwork::new(LoopbackConfig { delay: Duration::ZERO, ..Default::default() });
    /// # let server = Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?;
    /// # let client = Endpoint::new(network.endpoint(2)?, EndpointConfig::default())?;
    /// let mut connecting = Box::pin(client.connect(&Addr::Node(1)));
    /// # let session = loop {
    /// #     server.run_once();
    /// #     if let Some(session) = client.poll_once(connecting.as_mut()) { break session? }
    /// # };
    /// let mut leaving = Box::pin(server.shutdown(Duration::from_secs(1)));
    /// # let unfinished = loop {
    /// #     network.advance(Duration::from_micros(100));
    /// #     client.run_once();
    /// #     if let Some(unfinished) = server.poll_once(leaving.as_mut()) { break unfinished }
    /// # };
    /// assert!(unfinished.is_nothing());
    /// assert!(!session.is_open());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shutdown(&self, patience: Duration) -> ShuttingDown {
        let now = self.now();
        let mut core = self.shared.core.borrow_mut();
        core.now = core.now.max(now);
        core.stop_opening();
        let phase = Phase::Draining { end: now.saturating_add(nanos(patience)) };
        drop(core);
        self.shared.executor.notify_here();
        ShuttingDown { shared: self.shared.clone(), phase, unfinished: Unfinished::default() }
    }
}

impl Future for ShuttingDown {
    type Output = Unfinished;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Unfinished> {
        let this = &mut *self;
        let mut core = this.shared.core.borrow_mut();
        let left = Unfinished { requests: core.deferred + this.shared.at_workers.get(), calls: core.calls_pending() };
        if let Phase::Draining { end } = this.phase {
            if left.is_nothing() {
                this.phase = Phase::Lingering { end: end.min(core.now.saturating_add(LINGER_NANOS)) };
            } else if core.now >= end {
                this.phase = Phase::Lingering { end };
            }
        }
        if let Phase::Lingering { end } = this.phase
            && (core.requests_held() == 0 || core.now >= end)
        {
            this.unfinished = left;
            this.phase = Phase::Closing;
            core.close_sessions();
        }
        if matches!(this.phase, Phase::Closing) && core.session_count == 0 {
            drop(core);
            // Calls have ended, and their continuations must still run.
            run_continuations(&this.shared);
            this.shared.drop_application();
            return Poll::Ready(this.unfinished);
        }
        if !core.ticked.iter().any(|waker| waker.will_wake(context.waker())) {
            core.ticked.push(context.waker().clone());
        }
        core.arm_tick();
        drop(core);
        // The tick may come sooner than a sleep would end.
        this.shared.executor.notify_here();
        Poll::Pending
    }
}
