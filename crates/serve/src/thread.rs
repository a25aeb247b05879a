//! A core on a thread of its own.

use std::rc::Rc;
use std::sync::{Arc, mpsc};

use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::Endpoint;
use futures::executor::block_on;
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};

use crate::addresses;
use crate::config::{EventLoop, ServeConfig};
use crate::core::Attendant;
use crate::drive::drive;
use crate::error::ServeError;
use crate::failure::{Failure, Health};
use crate::long_work::LongWork;
use crate::mailbox::{Mailbox, Mailboxes};
use crate::panics::{guarded, guarded_now};
use crate::service::{Core, Service, Site};

/// The letters of a service.
pub(crate) type Letter<S> = <<S as Service<AnyTransport>>::Core as Core>::Letter;
/// The plan of a service.
pub(crate) type Plan<S> = <<S as Service<AnyTransport>>::Core as Core>::Plan;
/// The errors of a service.
pub(crate) type ErrorOf<S> = <<S as Service<AnyTransport>>::Core as Core>::Error;

/// What a core reports while it starts.
pub(crate) enum Report<S: Service<AnyTransport>> {
    /// It is built, and listens here. It waits for the plan.
    Built { core: u16, addresses: Vec<Addr>, places: usize, ready: S::Ready, plan: oneshot::Sender<Arc<Plan<S>>> },
    /// It is serving.
    Begun,
    /// It cannot start.
    Failed { core: u16, error: ErrorOf<S> },
}

/// What a core's thread receives.
pub(crate) struct Setup<S: Service<AnyTransport>> {
    pub core: u16,
    pub service: Arc<S>,
    pub config: Arc<ServeConfig>,
    pub mailbox: Mailbox<Letter<S>>,
    pub mailboxes: Mailboxes<Letter<S>>,
    pub failure: Failure,
    pub long_work: LongWork,
    pub reports: mpsc::Sender<Report<S>>,
}

/// The endpoint of a core, for as long as its thread has it. Whatever ends the thread, handlers and tasks are dropped
/// then: those that hold the endpoint, as a channel does, would keep it and its address for ever.
struct Opened {
    endpoint: Rc<Endpoint<AnyTransport>>,
    /// The length of its receive queue.
    places: usize,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.endpoint.drop_application();
    }
}

type AnyAttendant<S> = Attendant<AnyTransport, <S as Service<AnyTransport>>::Core>;

impl<S: Service<AnyTransport>> Setup<S> {
    /// Runs the core until it is told to end. If the start fails, the owner receives the reason; a later error goes to
    /// the thread that joins this one.
    pub fn run(self) -> Result<(), ErrorOf<S>> {
        let (reports, core, failure) = (self.reports.clone(), self.core, self.failure.clone());
        let interrupt = self.config.interrupt.clone();
        let mut why_it_panicked = None;
        let run = guarded_now(|| self.try_run(), |why| why_it_panicked = Some(why));
        let result = run.unwrap_or_else(|| {
            let why = why_it_panicked.unwrap_or_default();
            failure.note(core, why.clone());
            Err(ServeError::CoreFailed { core, why, saved: None }.into())
        });
        interrupt.ring();
        match result.map_err(|error| reports.send(Report::Failed { core, error })) {
            Ok(()) | Err(Ok(())) => Ok(()),
            Err(Err(mpsc::SendError(Report::Failed { error, .. }))) => Err(error),
            Err(Err(_)) => Err(ServeError::Ended.into()),
        }
    }

    fn try_run(self) -> Result<(), ErrorOf<S>> {
        self.long_work.attach();
        if let Some(&processor) = self.config.pin.get(usize::from(self.core)) {
            pin(processor)?;
        }
        match self.config.event_loop {
            EventLoop::Endpoint => self.run_endpoint(),
            EventLoop::Tokio => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let system = |why: std::io::Error| ServeError::System { what: "an event loop", why: why.to_string() };
                let runtime = runtime.map_err(system)?;
                LocalSet::new().block_on(&runtime, self.run_tokio())
            }
        }
    }

    /// Turns the endpoint with its own event loop.
    fn run_endpoint(self) -> Result<(), ErrorOf<S>> {
        let reports = self.reports.clone();
        let opened = self.open()?;
        let (attendant, plan) = self.build(&opened)?;
        // The owner drops it if another core cannot start.
        let Ok(plan) = plan.blocking_recv() else { return Ok(()) };
        let mut attendant = begin(attendant, &plan, &reports)?;
        let (endpoint, health) = (attendant.endpoint.clone(), attendant.health.clone());
        guarded_now(|| endpoint.block_on(attendant.attend()), |why| health.fail(why));
        if health.has_failed() {
            block_on(attendant.attend_after_failure());
        }
        attendant.core.end()
    }

    /// Turns the endpoint in a tokio task, so that after a panic there letters are still read.
    async fn run_tokio(self) -> Result<(), ErrorOf<S>> {
        let reports = self.reports.clone();
        let opened = self.open()?;
        let (attendant, plan) = self.build(&opened)?;
        let Ok(plan) = plan.await else { return Ok(()) };
        let mut attendant = begin(attendant, &plan, &reports)?;
        drop(reports);
        let (endpoint, health) = (attendant.endpoint.clone(), attendant.health.clone());
        let driving = async move {
            // A core without its event loop is useless, whether that ended with an error or a panic.
            let fail = health.clone();
            let driven = guarded(async { drive(&endpoint).await }, |why| fail.fail(why)).await;
            if let Some(Err(error)) = driven {
                health.fail(format!("its event loop has ended: {error}"));
            }
        };
        let driving = spawn_local(driving).abort_handle();
        attendant.health.on_failure({
            let driving = driving.clone();
            move || driving.abort()
        });
        attendant.attend().await;
        driving.abort();
        if attendant.health.has_failed() {
            attendant.attend_after_failure().await;
        }
        attendant.core.end()
    }

    fn open(&self) -> Result<Opened, ErrorOf<S>> {
        let transport = addresses::open(&self.config, self.core)?;
        let places = dunlin_net::Transport::rx_queue_len(&transport);
        let endpoint = Endpoint::new(transport, self.config.endpoint.clone()).map_err(ServeError::from)?;
        Ok(Opened { endpoint: Rc::new(endpoint), places })
    }

    /// Builds the core, and reports to the owner, who sends the plan when all cores are built.
    #[allow(clippy::type_complexity, reason = "a pair of two things that are used at once")]
    fn build(self, opened: &Opened) -> Result<(AnyAttendant<S>, oneshot::Receiver<Arc<Plan<S>>>), ErrorOf<S>> {
        let (endpoint, places) = (opened.endpoint.clone(), opened.places);
        let health = Health::new(self.core, self.failure, &self.mailboxes);
        let site =
            Site { core: self.core, endpoint: endpoint.clone(), mailboxes: self.mailboxes, health: health.clone() };
        let (core, ready) = self.service.build(site)?;
        let (plan, planned) = oneshot::channel();
        let addresses = endpoint.local_addrs().to_vec();
        let built = Report::Built { core: self.core, addresses, places, ready, plan };
        self.reports.send(built).map_err(|_| ServeError::Ended)?;
        let (number, mailbox, patience) = (self.core, self.mailbox, self.config.patience);
        let attendant =
            Attendant { number, core, endpoint, owns_endpoint: true, mailbox, health, patience, draining: None };
        Ok((attendant, planned))
    }
}

fn begin<S: Service<AnyTransport>>(
    mut attendant: AnyAttendant<S>,
    plan: &Arc<Plan<S>>,
    reports: &mpsc::Sender<Report<S>>,
) -> Result<AnyAttendant<S>, ErrorOf<S>> {
    attendant.core.begin(plan)?;
    reports.send(Report::Begun).map_err(|_| ServeError::Ended)?;
    Ok(attendant)
}

/// Pins this thread to a processor.
fn pin(processor: usize) -> Result<(), ServeError> {
    let failed = |why: std::io::Error| ServeError::Pin { processor, why };
    if processor >= rustix::thread::CpuSet::MAX_CPU {
        return Err(failed(std::io::Error::from(std::io::ErrorKind::InvalidInput)));
    }
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor);
    rustix::thread::sched_setaffinity(None, &set).map_err(|error| failed(error.into()))
}
