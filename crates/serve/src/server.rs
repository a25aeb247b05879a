//! The owner of the cores: it starts them, watches them, and stops them.

use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dunlin_net::{Addr, AnyTransport};
use futures::executor::block_on;
use tokio::sync::oneshot;

use crate::config::ServeConfig;
use crate::error::{ServeError, StartError};
use crate::failure::{Failed, Failure};
use crate::limits;
use crate::long_work::LongWork;
use crate::mailbox::{Control, Mailboxes, mailboxes};
use crate::notify;
use crate::service::Service;
use crate::thread::{ErrorOf, Letter, Plan, Report, Setup};
use crate::waiting::{deadline_in, ends_within};
use crate::watch::{HangWatch, Patience};

/// How often a quiet server is checked: every event rings the interrupt anyway.
const IDLE_LOOK: Duration = Duration::from_secs(1);

/// A running server. When dropped, it ends gracefully, without [`Service::finish`].
///
/// [`Service`] has an example.
pub struct Server<S: Service<AnyTransport>> {
    service: Arc<S>,
    mailboxes: Mailboxes<Letter<S>>,
    threads: Vec<JoinHandle<Result<(), ErrorOf<S>>>>,
    /// `None` once the threads are ending.
    watch: Option<HangWatch>,
    failure: Failure,
    config: Arc<ServeConfig>,
    plan: Arc<Plan<S>>,
    addresses: Vec<Vec<Addr>>,
    advice: Vec<String>,
}

/// A core that is built and waiting for the plan.
struct Waiting<S: Service<AnyTransport>> {
    addresses: Vec<Addr>,
    places: usize,
    ready: S::Ready,
    plan: oneshot::Sender<Arc<Plan<S>>>,
}

impl<S: Service<AnyTransport>> Server<S> {
    /// Starts a server, and returns when every core serves.
    ///
    /// # Errors
    /// Why a core, or the server, cannot start: a setting is wrong, an address is in use, or the service returns an
    /// error. All cores have ended by then.
    pub fn start(service: Arc<S>, config: ServeConfig) -> Result<Server<S>, StartError<ErrorOf<S>>> {
        check(&config)?;
        let too_few = limits::allow_descriptors(limits::of_cores(&config)).err();
        let (mailboxes, receivers) = mailboxes(config.cores, config.letters_max.max(1));
        let failure = Failure::ringing(config.interrupt.clone());
        let config = Arc::new(config);
        let long_works: Vec<LongWork> = (0..config.cores).map(|_| LongWork::default()).collect();
        // Declared before the channel, so dropped after it: cores whose reports nobody reads any more end.
        let mut starting = Starting { threads: Vec::new(), answer_max: config.answer_max };
        let (reports, reported) = mpsc::channel();
        for ((core, mailbox), long_work) in (0..).zip(receivers).zip(&long_works) {
            let setup = Setup {
                core,
                service: service.clone(),
                config: config.clone(),
                mailbox,
                mailboxes: mailboxes.clone(),
                failure: failure.clone(),
                long_work: long_work.clone(),
                reports: reports.clone(),
            };
            let thread = thread::Builder::new().name(format!("{}-{core}", config.name)).spawn(move || setup.run());
            starting.threads.push(thread.map_err(|why| ServeError::System { what: "a thread", why: why.to_string() })?);
        }
        drop(reports);
        let waiting = wait_until_built(&*service, config.cores, &reported)?;
        let (mut ready, mut plans, mut addresses, mut places) = (Vec::new(), Vec::new(), Vec::new(), usize::MAX);
        for core in waiting {
            ready.push(core.ready);
            plans.push(core.plan);
            addresses.push(core.addresses);
            places = places.min(core.places);
        }
        let plan = Arc::new(service.plan(ready).map_err(|error| StartError { core: None, error })?);
        // A core that has ended meanwhile has reported why.
        plans.into_iter().for_each(|sender| drop(sender.send(plan.clone())));
        let name = |core| (config.cores > 1).then_some(core);
        for _ in 0..config.cores {
            match reported.recv().map_err(|_| ServeError::Ended)? {
                Report::Begun => {}
                Report::Built { .. } => unreachable!("a core is built once"),
                Report::Failed { core, error } => {
                    // The others have begun, and are waiting for letters.
                    mailboxes.command_exit();
                    return Err(StartError { core: name(core), error });
                }
            }
        }
        let watch = HangWatch::start(&service, &mailboxes, &failure, Patience::of(&config), long_works);
        let watch = Some(watch.inspect_err(|_| mailboxes.command_exit())?);
        let threads = std::mem::take(&mut starting.threads);
        let too_few = too_few.map(|why| why.to_string());
        let advice = too_few.into_iter().chain(limits::of_receive_queue(&addresses[0], places)).collect();
        let places: Vec<String> = addresses[0].iter().map(Addr::to_string).collect();
        tracing::info!(name = config.name, cores = config.cores, ?places, "a server serves");
        Ok(Server { service, mailboxes, threads, watch, failure, config, plan, addresses, advice })
    }

    /// The addresses of core 0, with the ports that the system chose.
    pub fn addresses(&self) -> &[Addr] {
        &self.addresses[0]
    }

    /// The addresses of each core.
    pub fn addresses_of_cores(&self) -> &[Vec<Addr>] {
        &self.addresses
    }

    /// How many cores it has.
    pub fn cores(&self) -> u16 {
        self.mailboxes.len()
    }

    /// The plan with which all cores began.
    pub fn plan(&self) -> &Arc<Plan<S>> {
        &self.plan
    }

    /// The mailboxes of its cores.
    pub fn mailboxes(&self) -> &Mailboxes<Letter<S>> {
        &self.mailboxes
    }

    /// The service.
    pub fn service(&self) -> &S {
        &self.service
    }

    /// Why a core has failed, if one has.
    pub fn failure(&self) -> &Failure {
        &self.failure
    }

    /// What an operator could change so that the server can serve more, one sentence each; determined at the start.
    pub fn advice(&self) -> &[String] {
        &self.advice
    }

    /// Whether all its cores serve. A core that hangs counts as failed after [`ServeConfig::answer_max`]. Once one has
    /// failed, the others continue to serve until [`Server::stop`] ends the server and returns the reason.
    pub fn is_running(&self) -> bool {
        self.failure.get().is_none() && self.threads.iter().all(|thread| !thread.is_finished())
    }

    /// Serves until its interrupt is set or a core fails, and then stops. Tells the service manager when it is ready,
    /// and when it stops.
    ///
    /// # Errors
    /// As [`Server::stop`].
    pub fn run(self) -> Result<S::Finish, ErrorOf<S>> {
        notify::ready();
        while self.is_running() && !self.config.interrupt.is_set() {
            self.config.interrupt.wait(IDLE_LOOK);
        }
        notify::stopping();
        self.stop()
    }

    /// Shuts down gracefully: cores drain for [`ServeConfig::drain_max`] together, [`Service::finish`] runs if all
    /// cores are healthy and [`Service::rescue`] if one is not, and the threads end. Takes at most
    /// [`ServeConfig::stop_max`], plus the time of the service's own work.
    ///
    /// # Errors
    /// The error of the service at its end; [`ServeError::CoreFailed`] if a core failed, hangs, or does not end. The
    /// server has ended all the same; the thread of a core that hangs ends with the process.
    pub fn stop(mut self) -> Result<S::Finish, ErrorOf<S>> {
        tracing::info!(name = self.config.name, "a server stops");
        self.drain();
        self.settle();
        let is_well = self.failure.get().is_none();
        let finished = is_well.then(|| block_on(self.service.finish(&self.mailboxes)));
        // A core may have failed meanwhile.
        tracing::debug!(name = self.config.name, "its cores have drained");
        let rescue = |failed: Failed| (block_on(self.service.rescue(&self.mailboxes, &failed)), failed);
        let rescued = self.failure.get().map(rescue);
        let saved = finished.as_ref().map(|finished| match finished {
            Ok(_) => "the last work of the service was done before".to_owned(),
            Err(why) => format!("the last work of the service failed before: {why:#}"),
        });
        let mut ended = self.end(saved.as_deref());
        // A core that failed has ended with an error that says less.
        if let Some((saved, Failed { core, why })) = rescued {
            ended = Err(ServeError::CoreFailed { core, why, saved }.into());
        }
        if let (Err(_), Some(Err(why))) = (&ended, &finished) {
            tracing::error!(name = self.config.name, why = format!("{why:#}"), "the last work of a server failed, too");
        }
        ended?;
        finished.unwrap_or_else(|| Ok(S::Finish::default()))
    }

    fn drain(&self) {
        let silent = self.mailboxes.command_all(self.config.drain_max, |core| self.is_given_up(core), Control::Drain);
        if !silent.is_empty() {
            tracing::warn!(cores = ?silent, within = ?self.config.drain_max, "cores did not finish what was in progress");
        }
    }

    /// Waits until every core has answered or was given up. Long work is no longer an excuse.
    fn settle(&self) {
        self.watch.iter().for_each(HangWatch::excuse_nothing);
        self.mailboxes.command_all(Duration::MAX, |core| self.is_given_up(core), Control::Ping);
    }

    fn is_given_up(&self, core: u16) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.is_given_up(core))
    }

    /// Ends the threads. A thread that hangs is left alone: it ends with the process, and its error says what was
    /// saved.
    fn end(&mut self, saved: Option<&str>) -> Result<(), ErrorOf<S>> {
        // A core that is ending no longer answers.
        self.watch = None;
        self.mailboxes.command_exit();
        join_within(self.config.answer_max, saved, self.threads.drain(..))
    }
}

/// Waits for the threads of all cores to end, in order. Returns the first error; a thread that does not end in time is
/// one.
fn join_within<E: From<ServeError>>(
    time: Duration,
    saved: Option<&str>,
    threads: impl Iterator<Item = JoinHandle<Result<(), E>>>,
) -> Result<(), E> {
    let deadline = deadline_in(time);
    let mut ended = Ok(());
    for (core, thread) in (0..).zip(threads) {
        let result = match ends_within(deadline.saturating_duration_since(Instant::now()), &thread) {
            true => thread.join().unwrap_or_else(|_| Err(ServeError::Ended.into())),
            false => Err(did_not_end(core, time, saved).into()),
        };
        // Join all before returning the first error.
        ended = ended.and(result);
    }
    ended
}

fn did_not_end(core: u16, within: Duration, saved: Option<&str>) -> ServeError {
    tracing::error!(core, ?within, "a core did not end");
    ServeError::CoreFailed { core, why: format!("it did not end within {within:?}"), saved: saved.map(str::to_owned) }
}

impl<S: Service<AnyTransport>> Drop for Server<S> {
    fn drop(&mut self) {
        if !self.threads.is_empty() {
            self.drain();
            // Only `stop` reports the error.
            let _ = self.end(None);
        }
    }
}

/// Waits until every core is built; returns them in order.
fn wait_until_built<S: Service<AnyTransport>>(
    service: &S,
    cores: u16,
    reported: &mpsc::Receiver<Report<S>>,
) -> Result<Vec<Waiting<S>>, StartError<ErrorOf<S>>> {
    let mut built: Vec<Option<Waiting<S>>> = (0..cores).map(|_| None).collect();
    let mut joined = None;
    for _ in 0..cores {
        match reported.recv().map_err(|_| ServeError::Ended)? {
            Report::Built { core, addresses, places, ready, plan } => {
                built[usize::from(core)] = Some(Waiting { addresses, places, ready, plan });
            }
            Report::Failed { core, error } => {
                let name = (cores > 1).then_some(core);
                let error = service.join_errors(joined.take(), error);
                joined = Some(error.map_err(|error| StartError { core: name, error })?);
            }
            Report::Begun => unreachable!("no core has the plan"),
        }
    }
    match joined {
        Some(error) => Err(StartError { core: None, error }),
        None => Ok(built.into_iter().flatten().collect()),
    }
}

/// The threads of a server that is starting; waits for their end if the start fails.
struct Starting<E: From<ServeError>> {
    threads: Vec<JoinHandle<Result<(), E>>>,
    answer_max: Duration,
}

impl<E: From<ServeError>> Drop for Starting<E> {
    fn drop(&mut self) {
        // The reason for the failed start is known already.
        let _ = join_within(self.answer_max, None, self.threads.drain(..));
    }
}

/// Rejects invalid settings.
fn check(config: &ServeConfig) -> Result<(), ServeError> {
    let cores = config.cores;
    if cores == 0 || cores > ServeConfig::CORES_MAX {
        return Err(ServeError::Cores { cores });
    }
    if !config.pin.is_empty() && config.pin.len() != usize::from(cores) {
        return Err(ServeError::Pins { cores, processors: config.pin.len() });
    }
    if config.listen.is_empty() && config.peer.is_none() {
        return Err(ServeError::NoAddress);
    }
    Ok(())
}
