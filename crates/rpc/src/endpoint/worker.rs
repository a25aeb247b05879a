//! Worker threads, for handlers too long for the event loop (paper, section 3.2).

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::Shared;
use super::executor::Notifier;
use super::handler::{WorkerHandler, WorkerRequest, context_of};
use super::panics::panic_message;
use crate::context::RequestContext;
use crate::core::serve::ServeRef;
use crate::core::share::PeerRef;
use crate::error::ApplicationError;
use crate::msgbuf::MsgBuf;
use crate::payload::{HandlerError, Payload};
use crate::wire::Status;

/// A request on its way to a worker.
pub(crate) struct Job {
    handler: WorkerHandler,
    /// Set until it runs.
    request: Option<MsgBuf>,
    context: RequestContext,
    serve: ServeRef,
    peer: PeerRef,
    /// When it was queued, on the endpoint's clock.
    queued: u64,
    replies: Sender<WorkerReply>,
    notifier: Arc<Notifier>,
}

/// Its answer on the way back.
pub(crate) struct WorkerReply {
    pub serve: ServeRef,
    pub peer: PeerRef,
    pub answer: Answer,
    /// Set if the handler ran.
    pub worked: Option<Worked>,
}

/// How long the request waited for a worker, and how long that took.
#[derive(Clone, Copy)]
pub(crate) struct Worked {
    pub req_type: u8,
    pub queued_nanos: u64,
    pub ran_nanos: u64,
}

/// What a worker made of a request.
pub(crate) enum Answer {
    Response(Payload),
    Failure(ApplicationError),
    /// The status, if there is neither.
    Status(Status),
}

impl Job {
    pub fn new(shared: &Rc<Shared>, serve: ServeRef, request: MsgBuf, handler: WorkerHandler) -> Job {
        let (replies, notifier) = (shared.worker_replies.0.clone(), shared.executor.notifier());
        shared.at_workers.set(shared.at_workers.get() + 1);
        let peer = shared.core.borrow_mut().count_deferred(serve);
        let context = context_of(shared, serve);
        let queued = shared.core.borrow().now;
        Job { handler, request: Some(request), context, serve, peer, queued, replies, notifier }
    }

    /// Runs the handler, unless the caller no longer waits for its answer.
    fn run(mut self) {
        // Only this takes the request, and it consumes the job.
        let Some(request) = self.request.take() else { return };
        if !self.context.is_waited_for() {
            return self.reply(Answer::Status(Status::Expired), None);
        }
        let request = WorkerRequest::new(request, self.context.clone());
        let (req_type, begun) = (self.context.req_type(), self.context.now());
        let answer = match catch_unwind(AssertUnwindSafe(|| (self.handler)(request))) {
            Ok(Ok(response)) => Answer::Response(response),
            Ok(Err(HandlerError::Application(error))) => Answer::Failure(error),
            Ok(Err(HandlerError::Failed(error))) => {
                tracing::debug!(req_type, error, "a worker-mode handler failed; its caller got an error");
                Answer::Status(Status::HandlerFailed)
            }
            Err(panic) => {
                let message = panic_message(&*panic);
                tracing::error!(req_type, message, "a worker-mode handler panicked; its caller got an error");
                Answer::Status(Status::HandlerFailed)
            }
        };
        let ran_nanos = self.context.now().saturating_sub(begun);
        let worked = Worked { req_type, queued_nanos: begun.saturating_sub(self.queued), ran_nanos };
        self.reply(answer, Some(worked));
    }

    fn reply(&self, answer: Answer, worked: Option<Worked>) {
        // If the endpoint is gone, no reply is needed.
        if self.replies.send(WorkerReply { serve: self.serve, peer: self.peer, answer, worked }).is_ok() {
            self.notifier.notify();
        }
    }
}

impl Drop for Job {
    /// A job that never ran, because the queue was full or the pool is gone, pushes its request back.
    fn drop(&mut self) {
        if self.request.take().is_some() {
            self.reply(Answer::Status(Status::Busy), None);
        }
    }
}

enum Message {
    Run(Job),
    Stop,
}

/// The queue through which an endpoint hands requests to a pool.
#[derive(Clone)]
pub(crate) struct WorkerQueue(Sender<Message>);

impl WorkerQueue {
    /// Hands a job over. If the queue is full or the pool is gone, the job is dropped, and pushes its request back.
    pub fn send(&self, job: Job) {
        // A job that is returned is dropped here.
        let _ = self.0.try_send(Message::Run(job));
    }
}

/// A bounded pool of worker threads. Any number of endpoints may share it. Dropping it finishes the queued requests and
/// joins the threads; without threads ([`WorkerPool::by_hand`]) it pushes them back.
pub struct WorkerPool {
    queue: WorkerQueue,
    waiting: Receiver<Message>,
    threads: Vec<JoinHandle<()>>,
}

impl WorkerPool {
    /// Starts `threads` threads behind a queue of at most `queue_len` waiting requests. Both are at least 1.
    ///
    /// # Errors
    /// If the system has no more threads.
    pub fn new(threads: usize, queue_len: usize) -> io::Result<WorkerPool> {
        let (sender, receiver) = bounded(queue_len.max(1));
        let mut pool = WorkerPool { queue: WorkerQueue(sender), waiting: receiver, threads: Vec::new() };
        for i in 0..threads.max(1) {
            let receiver = pool.waiting.clone();
            let builder = std::thread::Builder::new().name(format!("dunlin-worker-{i}"));
            pool.threads.push(builder.spawn(move || work(&receiver))?);
        }
        Ok(pool)
    }

    /// Creates a pool without threads: requests wait until [`WorkerPool::run_queued`]. For tests and simulations, where
    /// everything happens in one thread and in a repeatable order.
    pub fn by_hand(queue_len: usize) -> WorkerPool {
        let (sender, waiting) = bounded(queue_len.max(1));
        WorkerPool { queue: WorkerQueue(sender), waiting, threads: Vec::new() }
    }

    /// Runs the requests that are waiting now, on this thread, except those whose callers no longer wait; returns how
    /// many there were. Do not call it from inside a handler of an endpoint that uses the pool.
    ///
    /// ```
    /// # use dunlin_net::{Addr, loopback::{LoopbackConfig, LoopbackNetwork}};
    /// # use dunlin_rpc::{Endpoint, EndpointConfig, WorkerPool};
    /// # let network = LoopbackNetwork::new(LoopbackConfig::default());
    /// let server = Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?;
    /// let pool = WorkerPool::by_hand(64);
    /// server.register_worker(7, &pool, |request| request.into_payload())?;
    /// assert_eq!(pool.run_queued(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run_queued(&self) -> usize {
        let mut ran = 0;
        for _ in 0..self.waiting.len() {
            if let Ok(Message::Run(job)) = self.waiting.try_recv() {
                job.run();
                ran += 1;
            }
        }
        ran
    }

    pub(crate) fn queue(&self) -> WorkerQueue {
        self.queue.clone()
    }
}

fn work(jobs: &Receiver<Message>) {
    while let Ok(Message::Run(job)) = jobs.recv() {
        job.run();
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        for _ in &self.threads {
            // Fails only if every thread has ended.
            let _ = self.queue.0.send(Message::Stop);
        }
        for thread in self.threads.drain(..) {
            // Handlers' panics are caught, so a thread ends normally.
            let _ = thread.join();
        }
    }
}
