//! One endpoint of a cluster.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use dunlin_net::{Addr, PollPolicy, Transport, Waker};
use dunlin_rpc::{Connecting, Endpoint, EndpointConfig, Session};
use dunlin_sim::{Datacenter, Next, SimTransport, ThreadClock};

use crate::BenchError;

/// Request type of [`Member::serve`].
pub const SINK: u8 = 1;

/// The first error of any member's task.
pub(super) type Failure = Rc<RefCell<Option<BenchError>>>;

/// An endpoint, with the thread that it runs on.
///
/// Tasks must not hold a member, which would keep the endpoint, and so the task, alive forever. Before they start, get
/// them what they need, such as the future of [`Member::connect`] and [`Member::clock`]; they may hold sessions.
pub struct Member {
    endpoint: Rc<Endpoint<SimTransport>>,
    clock: ThreadClock,
    addr: Addr,
    waker: Waker,
    failure: Failure,
}

impl Member {
    /// Starts an endpoint on a thread.
    pub(super) fn start(
        datacenter: &mut Datacenter,
        (host, thread): (u32, u16),
        config: EndpointConfig,
        failure: Failure,
    ) -> Result<Member, BenchError> {
        let transport = datacenter.bind(host, thread)?;
        let (clock, waker) = (transport.clock(), transport.waker());
        // A simulated thread reads its clock for free, and before each burst: this policy does that.
        let endpoint = Rc::new(Endpoint::new(transport, EndpointConfig { poll: PollPolicy::Sleep, ..config })?);
        // A panic in a task fails the experiment.
        endpoint.propagate_panics();
        let driven = endpoint.clone();
        datacenter.spawn(host, thread, move || {
            while driven.run_once() > 0 {}
            Next::OnPacket { or_at: driven.next_due() }
        })?;
        Ok(Member { endpoint, clock, addr: Datacenter::addr(host, thread), waker, failure })
    }

    /// The endpoint.
    pub fn endpoint(&self) -> &Endpoint<SimTransport> {
        &self.endpoint
    }

    /// A shared reference to the endpoint, for parts of this member that live as long as its cluster.
    pub fn share_endpoint(&self) -> Rc<Endpoint<SimTransport>> {
        self.endpoint.clone()
    }

    /// The clock of its thread: the virtual time of its tasks, in nanoseconds.
    pub fn clock(&self) -> ThreadClock {
        self.clock.clone()
    }

    /// Its address.
    pub fn addr(&self) -> &Addr {
        &self.addr
    }

    /// Opens a session to another member.
    pub fn connect(&self, to: &Addr) -> Connecting {
        self.endpoint.connect(to)
    }

    /// Opens sessions to others, one after the other, and adds them to `opened`.
    pub fn open_each(&self, others: Vec<Addr>, opened: Rc<RefCell<Vec<Session>>>) {
        let endpoint = Rc::downgrade(&self.endpoint);
        self.spawn(async move {
            for other in others {
                // The endpoint is dropped with its cluster, and this task with it.
                let Some(connecting) = endpoint.upgrade().map(|endpoint| endpoint.connect(&other)) else {
                    return Ok(());
                };
                let session = connecting.await?;
                opened.borrow_mut().push(session);
            }
            Ok(())
        });
    }

    /// Runs a task. Its error ends the experiment.
    pub fn spawn(&self, task: impl Future<Output = Result<(), BenchError>> + 'static) {
        let failure = self.failure.clone();
        self.endpoint.spawn(async move {
            if let Err(error) = task.await {
                failure.borrow_mut().get_or_insert(error);
            }
        });
        // The endpoint may be idle until a packet comes.
        self.waker.wake();
    }

    /// The place for errors outside tasks.
    pub(super) fn failure(&self) -> Failure {
        self.failure.clone()
    }

    /// Answers requests of type [`SINK`] with `response_bytes` bytes, in the event loop. Each costs `cost_ns` of CPU
    /// time.
    ///
    /// # Errors
    /// [`BenchError::Register`] if it already does so.
    pub fn serve(&self, response_bytes: usize, cost_ns: u64) -> Result<(), BenchError> {
        let clock = self.clock();
        Ok(self.endpoint.register(SINK, move |request| {
            clock.charge(cost_ns);
            request.respond_with(response_bytes, |bytes| bytes.fill(0));
        })?)
    }
}
