//! The event loop: one iteration receives a burst, runs handlers, continuations and tasks, and hands everything to send
//! to the transport at once.
//!
//! Packets are processed in two passes. The first runs the protocol for all of them; the second runs the handlers of
//! the requests it found, so that a handler may use sessions freely, and requests of one burst can be handed over
//! together.

use std::collections::BTreeSet;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use dunlin_net::clock::nanos;
use dunlin_net::poll::sleep_time;
use dunlin_net::{Arm, NetError, PollPolicy, Transport};

use super::control::control;
use super::dispatch::{push_back, run_handlers};
use super::panics::Origin;
use super::registry::Entry;
use super::session::{Completion, Session};
use super::worker::{Answer, WorkerReply};
use super::{Continuation, Endpoint, Shared};
use crate::core::Core;
use crate::core::receive::{Others, Received};
use crate::core::serve::Dispatch;
use crate::wire::header::FLAG_DEADLINE;
use crate::wire::{Header, Kind, Status};

/// Polls without packets after which the clock is read all the same.
const UNCLOCKED_MAX: u32 = 16;
/// The same while calls are in progress: their round trips are measured from the last reading of the clock.
const UNCLOCKED_WAITING_MAX: u32 = 8;
/// Polls of the transport in an iteration that finds nothing to do, if the loop would come back at once anyway.
const POLLS_PER_ITERATION: u32 = 4;
/// Iterations with packets after which timers are checked although the receive queue may hold more.
const BUSY_ITERATIONS_MAX: u32 = 64;
/// Timers are checked no more often than this.
const TIMER_PAUSE_NANOS: u64 = 20_000;
/// Wake this much before a paced packet is due, because a sleeping thread may wake this late.
const WAKE_UP_NANOS: u64 = 100_000;
/// Handlers and tasks of one iteration should not take longer.
const STALL_NANOS: u64 = 10_000_000;
/// Stalls are logged no more often than this.
const STALL_LOG_PAUSE_NANOS: u64 = 1_000_000_000;
/// With fewer sessions than this the cache holds them, and prefetching is only work.
const SESSIONS_IN_CACHE: usize = 256;

/// What to do after an [`Endpoint::turn`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It found something: come back soon.
    Busy,
    /// It found nothing, but the poll policy says to poll again soon.
    Spin,
    /// There is nothing to do: come back when [`Endpoint::wake_fd`] is readable, or after this time.
    Sleep(Duration),
}

impl<T: Transport> Endpoint<T> {
    /// Runs one iteration of the event loop, without sleeping. Returns the number of packets, tasks and replies it
    /// found. Zero means that there were none, but timers may have fired and made work for the next iteration: before
    /// sleeping, ask [`Endpoint::next_due`] for how long.
    ///
    /// # Panics
    /// If called from inside a handler, task or continuation of this endpoint.
    #[inline]
    pub fn run_once(&self) -> usize {
        self.iterate(1)
    }

    /// Runs an iteration that polls the transport up to `polls` times while there is nothing else to do.
    #[inline]
    fn iterate(&self, polls: u32) -> usize {
        let mut transport = self
            .transport
            .try_borrow_mut()
            .expect("the event loop of an endpoint was entered from inside its own handler");
        let shared = &self.shared;
        // A caller that runs iterations itself may have done anything since the last one.
        let mut is_clocked = self.is_clocked.get() && polls > 1;
        // First send what the application enqueued since the last iteration: the peer then works on it while this
        // endpoint works on what it received.
        if shared.core.borrow().tx.has_packets() {
            shared.core.borrow_mut().transmit(&mut *transport);
            is_clocked = true;
        }
        let mut packets = transport.rx_burst();
        if packets == 0 && self.is_quiet(polls) {
            // From now on only a packet can make work, or another thread that wakes a task. The work between two polls
            // is how late they are seen.
            let mut polls_left = polls;
            while packets == 0 && !shared.executor.has_ready() {
                polls_left -= 1;
                if polls_left == 0 {
                    self.is_clocked.set(is_clocked);
                    return 0;
                }
                packets = transport.rx_burst();
            }
        }
        let mut found = 0;
        loop {
            if packets > 0 {
                if !is_clocked {
                    // Round trips end now.
                    shared.core.borrow_mut().now = transport.now();
                }
                receive(shared, &mut *transport, packets);
            }
            found += packets;
            if shared.core.borrow().has_ended() {
                wake_waiting(shared);
            }
            if shared.at_workers.get() > 0 {
                found += take_worker_replies(shared);
            }
            if shared.executor.has_ready() {
                found += shared.executor.run_ready();
            }
            if shared.core.borrow().has_ended() {
                run_continuations(shared);
            }
            packets = self.send_and_look_at_timers(&mut transport, packets);
            if packets == 0 {
                return found;
            }
            // The time is that of the previous reading; these packets were already there then.
            is_clocked = true;
        }
    }

    /// Whether an iteration without packets can end here: nothing is ready, and it is not yet time to read the clock.
    /// This is the cost of polling, so it is as short as possible.
    #[inline]
    fn is_quiet(&self, polls: u32) -> bool {
        let core = self.shared.core.borrow();
        let unclocked = self.unclocked.get() + polls;
        let unclocked_max = match core.config.poll {
            // A loop that sleeps or yields after every empty iteration has time to read the clock; so have simulations.
            PollPolicy::Sleep | PollPolicy::Yielding { .. } => 1,
            _ if core.calls_pending() > 0 => UNCLOCKED_WAITING_MAX,
            _ => UNCLOCKED_MAX,
        };
        let is_quiet = unclocked < unclocked_max
            && self.shared.at_workers.get() == 0
            && !self.shared.executor.has_ready()
            && !core.has_begun()
            && !core.has_ended();
        self.unclocked.set(if is_quiet { unclocked } else { 0 });
        is_quiet
    }

    /// The second half of an iteration: sends what it produced, then reads the clock and checks timers. Returns the
    /// number of packets in a burst that it received and that must be processed before timers are.
    fn send_and_look_at_timers(&self, transport: &mut T, packets: usize) -> usize {
        let mut core = self.shared.core.borrow_mut();
        let before = core.now;
        if core.has_begun() {
            core.now = transport.now();
            core.start_openings(transport);
            core.set_deadlines();
        }
        // Answers in the receive queue come before timeouts: only a drained queue proves that an answer is late.
        core.busy_iterations = if packets == 0 { 0 } else { core.busy_iterations + 1 };
        let drained = packets == 0 || core.busy_iterations >= BUSY_ITERATIONS_MAX;
        // The clock is read when everything urgent is done: after a transmission, or when there is nothing else to do.
        // The packets just received may have made the application send something.
        let is_clocked = if core.tx.has_packets() {
            core.transmit(transport);
            true
        } else if drained || core.congestion.next_send().is_some() {
            core.now = transport.now();
            true
        } else {
            false
        };
        if let Some(timed) = core.timed.take().filter(|_| is_clocked) {
            let nanos = core.now.saturating_sub(before);
            core.note_timed(timed, nanos);
        }
        if core.now.saturating_sub(before) >= STALL_NANOS {
            self.on_stall(&mut core, transport, packets, before);
        }
        self.is_clocked.set(is_clocked);
        if core.now >= core.congestion.due() {
            core.send_paced();
            if core.tx.has_packets() {
                core.transmit(transport);
            }
        }
        if drained && core.now >= core.timers_at {
            drop(core);
            return self.look_at_timers(transport, before);
        }
        0
    }

    /// Counts an iteration with packets that took long, and logs at most one per second. `before` is the previous
    /// reading of the clock; without packets it may be older than the iteration.
    #[cold]
    #[inline(never)]
    fn on_stall(&self, core: &mut Core, transport: &T, packets: usize, before: u64) {
        if packets == 0 {
            return;
        }
        let requests = (0..packets).filter_map(|i| {
            let packet = transport.rx_packet(i);
            let header = Header::parse(packet.head(), packet.len()).ok()?;
            (header.kind == Kind::Request).then(|| header.req_type())
        });
        let req_types: BTreeSet<u8> = requests.collect();
        core.counters.loop_stalls += 1;
        if core.now >= self.stall_logged.get() {
            self.stall_logged.set(core.now + STALL_LOG_PAUSE_NANOS);
            let (held, stalls) = (Duration::from_nanos(core.now - before), core.counters.loop_stalls);
            tracing::warn!(
                ?held,
                ?req_types,
                stalls,
                "handlers or tasks held the event loop; meanwhile it serves nobody: move long work to a worker-mode handler"
            );
        }
    }

    /// Runs the timers that are due, unless packets have arrived since the queue was found empty: between that and the
    /// reading of the clock this thread may have been descheduled for milliseconds, and answers that came meanwhile are
    /// not late. Their round trips end at `before`, the previous reading of the clock. Returns the number of these
    /// packets.
    #[inline(never)]
    fn look_at_timers(&self, transport: &mut T, before: u64) -> usize {
        let mut core = self.shared.core.borrow_mut();
        if core.busy_iterations < BUSY_ITERATIONS_MAX && core.wheel.next_due().is_some_and(|due| due <= core.now) {
            let late = transport.rx_burst();
            if late > 0 {
                core.now = before;
                return late;
            }
        }
        core.timers_at = core.now + TIMER_PAUSE_NANOS;
        let now = core.now;
        core.trimmer.look(now);
        self.shared.time.tell(now);
        core.busy_iterations = 0;
        self.shared.transport_counters.set(transport.counters());
        if core.run_timers(transport) > 0 {
            // Tasks that wait for the effects of timers are polled before the loop sleeps.
            self.unclocked.set(1);
        }
        if core.tx.has_packets() {
            core.transmit(transport);
        }
        drop(core);
        wake_waiting(&self.shared);
        run_continuations(&self.shared);
        self.shared.drop_discarded();
        0
    }

    /// Runs one iteration, then sleeps if there was nothing to do and the poll policy says so.
    fn run_and_wait(&self) {
        if self.iterate(POLLS_PER_ITERATION) > 0 {
            return self.idle.borrow_mut().on_work();
        }
        let Some(time) = self.begin_sleep() else { return };
        let mut transport = self.transport.borrow_mut();
        transport.wait(time);
        self.shared.executor.end_sleep();
        // What woke us is timed from here, not from the time when the sleep began.
        self.note_wake(transport.now());
    }

    /// Notes that a sleep has ended.
    fn note_wake(&self, now: u64) {
        self.shared.core.borrow_mut().now = now;
        self.idle.borrow_mut().on_wake(now);
    }

    /// After an iteration that found nothing: begins a sleep if the poll policy says so and there is nothing to do, and
    /// returns how long it may last.
    fn begin_sleep(&self) -> Option<Duration> {
        // Only after a few empty iterations, since it reads the clock.
        if self.unclocked.get() != 0 {
            return None;
        }
        let (now, due) = {
            let core = self.shared.core.borrow();
            if core.has_work() {
                return None;
            }
            (core.now, sleep_until(&core)?)
        };
        if !self.idle.borrow_mut().should_sleep(now) {
            return None;
        }
        let time = sleep_time(now, due);
        let replies = &self.shared.worker_replies.1;
        (!time.is_zero() && self.shared.executor.begin_sleep(|| !replies.is_empty())).then_some(time)
    }

    /// Runs one iteration inside a foreign event loop, and returns what to do until the next: for a thread that waits
    /// for other things as well, as tokio's does.
    ///
    /// After [`Turn::Sleep`] the thread may sleep until [`Endpoint::wake_fd`] is readable or the time is over, and then
    /// calls this again; calling it earlier does no harm. Everything that makes work for the endpoint meanwhile makes
    /// the descriptor readable: packets, other threads, and this thread itself, when its other tasks issue calls or
    /// answer requests.
    ///
    /// Unless [`Endpoint::wake_fd`] was called before, it never returns [`Turn::Sleep`].
    ///
    /// # Panics
    /// As [`Endpoint::run_once`].
    ///
    /// ```
    /// use dunlin_net::{AnyTransport, PollPolicy, wake};
    /// use dunlin_rpc::{Endpoint, EndpointConfig, Turn};
    ///
    /// let transport = AnyTransport::bind(&"udp://127.0.0.1:0".parse()?)?;
    /// let endpoint = Endpoint::new(transport, EndpointConfig { poll: PollPolicy::Sleep, ..EndpointConfig::default() })?;
    /// endpoint.register(7, |request| request.respond(b"pong"))?;
    /// let fd = endpoint.wake_fd()?;
    /// # let mut turns = 0;
    /// loop {
    ///     match endpoint.turn() {
    ///         Turn::Busy | Turn::Spin => {}
    ///         // Here a foreign event loop would wait for its other descriptors, too.
    ///         Turn::Sleep(time) => drop(wake::wait_readable(&fd, time)),
    ///     }
    /// #   turns += 1;
    /// #   if turns == 3 { break }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn turn(&self) -> Turn {
        if self.is_armed.replace(false) {
            let mut transport = self.transport.borrow_mut();
            transport.disarm();
            self.shared.executor.end_sleep();
            self.note_wake(transport.now());
        }
        // Anything may have happened since the last turn.
        self.is_clocked.set(false);
        if self.iterate(POLLS_PER_ITERATION) > 0 {
            self.idle.borrow_mut().on_work();
            return Turn::Busy;
        }
        let Some(time) = self.begin_sleep() else { return Turn::Spin };
        match self.transport.borrow_mut().arm(time) {
            Arm::Work => {
                self.shared.executor.end_sleep();
                Turn::Spin
            }
            Arm::Sleep(time) => {
                self.is_armed.set(true);
                Turn::Sleep(time)
            }
        }
    }

    /// A descriptor that becomes readable when a thread that sleeps after [`Turn::Sleep`] must call [`Endpoint::turn`]
    /// again. Do not read from it; it works with level-triggered and edge-triggered waiting.
    ///
    /// # Errors
    /// As [`Transport::wake_fd`].
    pub fn wake_fd(&self) -> Result<OwnedFd, NetError> {
        self.transport.borrow_mut().wake_fd()
    }

    /// Runs the event loop until `done` returns true; it is called after every iteration.
    ///
    /// # Panics
    /// As [`Endpoint::run_once`].
    pub fn run_until(&self, mut done: impl FnMut() -> bool) {
        self.read_clock();
        while !done() {
            self.run_and_wait();
        }
    }

    /// Runs the event loop for a time on the transport's clock.
    ///
    /// # Panics
    /// As [`Endpoint::run_once`].
    pub fn run_for(&self, time: Duration) {
        let end = self.now().saturating_add(nanos(time));
        // So that the loop does not sleep past the end.
        let timer = self.shared.core.borrow_mut().wheel.create(crate::core::timers::TOKEN_TICK);
        self.shared.core.borrow_mut().wheel.arm(timer, end);
        self.run_until(|| self.shared.core.borrow().now >= end);
        self.shared.core.borrow_mut().wheel.remove(timer);
    }

    /// Reads the clock before the first turn: the loop may have stood still for long, and tasks that run in that turn
    /// count their times from what was read last.
    fn read_clock(&self) {
        let now = self.now();
        self.shared.core.borrow_mut().now = now;
        self.is_clocked.set(false);
    }

    /// Runs the event loop until `future` is done, and returns its output. Spawned tasks run meanwhile.
    ///
    /// # Panics
    /// As [`Endpoint::run_once`].
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        let mut first = true;
        self.read_clock();
        loop {
            if self.shared.executor.is_root_due(first) {
                if let Poll::Ready(output) = self.shared.executor.poll_root(future.as_mut()) {
                    return output;
                }
                self.is_clocked.set(false);
            }
            first = false;
            self.run_and_wait();
        }
    }

    /// Runs one iteration without sleeping and polls `future` once: for driving several endpoints in one thread.
    ///
    /// # Panics
    /// As [`Endpoint::run_once`].
    pub fn poll_once<F: Future + ?Sized>(&self, future: Pin<&mut F>) -> Option<F::Output> {
        self.run_once();
        match self.shared.executor.poll_root(future) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    /// When the event loop will next have something to do even if no packet comes, on the transport's clock: for
    /// drivers of a simulated clock, which ask this when [`Endpoint::run_once`] returned zero. That is at once if the
    /// last iteration left something to do, for example if it found no packets but let timers fire: the tasks they woke
    /// run in the next. Otherwise it is when the next timer is due. `None` if there is nothing.
    pub fn next_due(&self) -> Option<u64> {
        let core = self.shared.core.borrow();
        let has_replies = self.shared.at_workers.get() > 0 && !self.shared.worker_replies.1.is_empty();
        if core.is_iteration_due() || self.shared.executor.has_ready() || has_replies {
            return Some(core.now);
        }
        // A driver that jumps to this time must find that timers are checked then.
        let timer = core.wheel.next_due().map(|due| due.max(core.timers_at));
        let discarded = (!core.discarded.is_empty()).then_some(core.timers_at);
        timer.into_iter().chain(discarded).chain(core.congestion.next_send()).min()
    }
}

/// How long the event loop may sleep: inner `None` for as long as it likes, outer `None` if it must not, because a
/// packet must be sent sooner than a sleeping thread wakes up.
fn sleep_until(core: &Core) -> Option<Option<u64>> {
    let timer = core.wheel.next_due();
    let Some(send) = core.congestion.next_send() else { return Some(timer) };
    if core.config.poll == PollPolicy::Sleep {
        return Some(timer.into_iter().chain([send]).min());
    }
    let awake = send.saturating_sub(WAKE_UP_NANOS);
    (awake > core.now).then(|| timer.into_iter().chain([awake]).min())
}

/// Processes a burst of `count` packets and runs the handlers it calls for.
fn receive<T: Transport>(shared: &Rc<Shared>, transport: &mut T, count: usize) {
    let mut received = Received::default();
    let refuses;
    {
        let mut core = shared.core.borrow_mut();
        let optimizations = core.config.optimizations;
        core.counters.rx_packets += count as u64;
        if optimizations.prefetch.is_on() && count > 1 && core.sessions.len() > SESSIONS_IN_CACHE {
            prefetch(&core, transport, count);
        }
        let clock_each = !optimizations.batched_timestamps.is_on();
        let mut clocked = false;
        for i in 0..count {
            let packet = transport.rx_packet(i);
            // The time of the last iteration is good enough for round trips. A deadline, however, is converted to our
            // clock, and the application may have been away for any time.
            let has_deadline = packet.head().get(1).is_some_and(|flags| flags & FLAG_DEADLINE != 0);
            if has_deadline && !clocked || clock_each {
                core.now = transport.now();
                clocked = true;
            }
            core.on_packet(i as u8, &packet, &mut received);
        }
        if core.silent > 0 {
            find_signs_of_life(&mut core, transport, count);
        }
        if !core.sampled.is_empty() {
            core.record_round_trips(transport.now());
        }
        let handled = core.counters.requests_handled;
        core.counters.requests_handled = handled + received.dispatches.len() as u64;
        core.choose_timed(handled, &received.dispatches);
        refuses = core.shutting_down;
    }
    if received.dispatches.is_empty() {
        return manage_sessions(shared, transport, &received.others);
    }
    let mut rest = Rest { shared, transport, received: &received, passed: 0 };
    while !refuses && rest.passed < received.dispatches.len() {
        rest.run_handlers();
    }
}

/// Prefetches what the packets of a burst seem to need.
#[inline(never)]
fn prefetch<T: Transport>(core: &Core, transport: &T, count: usize) {
    // Each step finds the address of the next in what the previous step fetched, for all packets at once.
    for i in 0..count {
        core.prefetch(transport.rx_packet(i).head());
    }
    for i in 0..count {
        core.prefetch_serve(transport.rx_packet(i).head());
    }
    for i in 0..count {
        core.prefetch_response(transport.rx_packet(i).head());
    }
}

#[cold]
#[inline(never)]
fn find_signs_of_life<T: Transport>(core: &mut Core, transport: &T, count: usize) {
    (0..count).for_each(|i| core.find_sign_of_life(transport.rx_packet(i).head()));
}

/// The rest of a burst, which is handled even if a handler panics and the panic is propagated. Requests that no handler
/// got are pushed back, so that their callers may retry: nothing processes their packets again. After them come the
/// packets that manage sessions: a peer may announce its end only once.
struct Rest<'a, T: Transport> {
    shared: &'a Rc<Shared>,
    transport: &'a mut T,
    received: &'a Received,
    /// Requests that were passed to handlers, or answered.
    passed: usize,
}

impl<T: Transport> Rest<'_, T> {
    /// Runs handlers until one panics. Catching panics once for all of them costs less than once for each.
    #[inline]
    fn run_handlers(&mut self) {
        let (shared, before, passed) = (self.shared, self.passed, &mut self.passed);
        let dispatches = &self.received.dispatches[before..];
        let run = AssertUnwindSafe(|| run_handlers(shared, &mut *self.transport, dispatches, passed));
        if let Err(panic) = catch_unwind(run) {
            // If no handler got anything, the application is not at fault.
            let Some(last) = self.passed.checked_sub(before + 1) else { resume_unwind(panic) };
            shared.on_panic(Origin::Handler(dispatches[last].1.req_type()), panic);
        }
    }
}

impl<T: Transport> Drop for Rest<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.passed < self.received.dispatches.len() {
            push_back_all(self.shared, &self.received.dispatches[self.passed..]);
        }
        manage_sessions(self.shared, self.transport, &self.received.others);
    }
}

#[inline]
fn manage_sessions<T: Transport>(shared: &Rc<Shared>, transport: &mut T, others: &Others) {
    for (i, other) in others {
        control(shared, transport, *i as usize, other);
    }
}

#[cold]
fn push_back_all(shared: &Rc<Shared>, dispatches: &[(u8, Dispatch)]) {
    dispatches.iter().for_each(|(_, dispatch)| push_back(shared, dispatch.serve));
}

fn take_worker_replies(shared: &Rc<Shared>) -> usize {
    let mut taken = 0;
    shared.time.tell(shared.core.borrow().now);
    while let Ok(reply) = shared.worker_replies.1.try_recv() {
        taken += 1;
        shared.at_workers.set(shared.at_workers.get() - 1);
        shared.core.borrow_mut().uncount_deferred(reply.peer);
        note_worked(shared, &reply);
        match reply.answer {
            // It is no error of the handler that a caller gave up.
            Answer::Response(response) => drop(shared.core.borrow_mut().respond(reply.serve, response)),
            Answer::Failure(error) => {
                let mut core = shared.core.borrow_mut();
                let _ = core.respond_failure(reply.serve, error.code(), error.message());
            }
            Answer::Status(Status::Busy) => push_back(shared, reply.serve),
            Answer::Status(status) => {
                let mut core = shared.core.borrow_mut();
                core.counters.requests_expired += u64::from(status == Status::Expired);
                core.respond_status(reply.serve, status);
            }
        }
    }
    taken
}

/// Counts how long a request waited for its worker, and how long the worker took.
fn note_worked(shared: &Rc<Shared>, reply: &WorkerReply) {
    let mut core = shared.core.borrow_mut();
    if let Some(worked) = reply.worked.filter(|_| core.config.time_handlers.is_on()) {
        core.handlers.note_in_queue(worked.req_type, worked.queued_nanos);
        core.handlers.note_in_handler(worked.req_type, worked.ran_nanos);
    }
}

/// Wakes the waiters of what has ended. Wakers may run any code, so nothing is borrowed meanwhile.
pub(crate) fn wake_waiting(shared: &Rc<Shared>) {
    if std::mem::take(&mut shared.core.borrow_mut().root_woken) {
        shared.executor.wake_root();
    }
    if !shared.core.borrow().woken.is_empty() {
        let mut wakers = std::mem::take(&mut shared.core.borrow_mut().woken);
        wakers.reverse();
        let mut waking = Waking { shared, wakers };
        while let Some(waker) = waking.wakers.pop() {
            waker.wake();
        }
    }
}

/// Wakers being called, the first of them last. If one panics, the next iteration calls the others.
struct Waking<'a> {
    shared: &'a Rc<Shared>,
    wakers: Vec<Waker>,
}

impl Drop for Waking<'_> {
    fn drop(&mut self) {
        self.wakers.reverse();
        let woken = &mut self.shared.core.borrow_mut().woken;
        // Its memory is reused the next time.
        self.wakers.append(woken);
        std::mem::swap(&mut self.wakers, woken);
    }
}

/// Runs the continuations of calls that ended.
pub(crate) fn run_continuations(shared: &Rc<Shared>) {
    // Looked up once for all consecutive calls that use it.
    let mut continuation: Option<(u32, Entry<Continuation>)> = None;
    loop {
        let Some(ended) = shared.core.borrow_mut().next_ended() else { return };
        if continuation.as_ref().is_none_or(|(number, _)| *number != ended.continuation) {
            let found = shared.continuations.get(ended.continuation as usize);
            continuation = found.map(|entry| (ended.continuation, entry));
        }
        if let Some(Ok(mut run)) = continuation.as_ref().map(|(_, entry)| entry.try_borrow_mut()) {
            let session = Session::new(shared, ended.session);
            run(Completion { session, tag: ended.tag, result: ended.result, request: ended.request });
        }
    }
}
