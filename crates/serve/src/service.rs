//! The traits that a program implements to be a service.

use std::fmt::Display;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dunlin_net::Transport;
use dunlin_rpc::Endpoint;

use crate::error::ServeError;
use crate::failure::{Failed, Health};
use crate::mailbox::Mailboxes;

/// What a core does before its endpoint shuts down.
pub type Draining = Pin<Box<dyn Future<Output = ()>>>;

/// What a core is built with.
pub struct Site<T: Transport, L> {
    /// Its number, from 0.
    pub core: u16,
    /// Its endpoint. Nothing turns it before [`Core::begin`].
    pub endpoint: Rc<Endpoint<T>>,
    /// The mailboxes of all cores.
    pub mailboxes: Mailboxes<L>,
    /// Through which its tasks report failures.
    pub health: Health,
}

/// A service: it builds cores, and is what they share. All its methods but [`Service::build`] run on the thread that
/// owns the server.
///
/// ```
/// use std::sync::Arc;
///
/// use dunlin_net::Transport;
/// use dunlin_serve::{Core, ServeConfig, ServeError, Server, Service, Site};
///
/// struct Echo;
/// struct EchoCore;
///
/// impl Core for EchoCore {
///     type Letter = ();
///     type Plan = ();
///     type Error = ServeError;
/// }
///
/// impl<T: Transport + 'static> Service<T> for Echo {
///     type Core = EchoCore;
///     type Ready = ();
///     type Finish = ();
///
///     fn build(&self, site: Site<T, ()>) -> Result<(EchoCore, ()), ServeError> {
///         site.endpoint.register(7, |request| {
///             let payload = request.payload();
///             request.respond(payload);
///         })?;
///         Ok((EchoCore, ()))
///     }
///
///     fn plan(&self, _: Vec<()>) -> Result<(), ServeError> {
///         Ok(())
///     }
/// }
///
/// let listen = format!("shm:doc-echo-{}", std::process::id()).parse()?;
/// let config = ServeConfig { listen: vec![listen], cores: 2, ..ServeConfig::named("echo") };
/// let server = Server::start(Arc::new(Echo), config)?;
/// println!("serving echoes at {}", server.addresses()[0]);
/// server.stop()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Service<T: Transport>: Send + Sync + 'static {
    /// One core.
    type Core: Core;
    /// What a core reports when it is built.
    type Ready: Send + 'static;
    /// The result of the shutdown when all cores were healthy.
    type Finish: Default;

    /// Builds a core, on its own thread.
    ///
    /// # Errors
    /// Why the core cannot be built; the server then does not start.
    #[allow(clippy::type_complexity, reason = "a service writes the types that it has chosen")]
    fn build(
        &self,
        site: Site<T, <Self::Core as Core>::Letter>,
    ) -> Result<(Self::Core, Self::Ready), <Self::Core as Core>::Error>;

    /// Computes the plan for all cores from their reports, in order.
    ///
    /// # Errors
    /// Why they cannot begin; the server then does not start.
    fn plan(&self, ready: Vec<Self::Ready>) -> Result<<Self::Core as Core>::Plan, <Self::Core as Core>::Error>;

    /// Joins the errors of two cores, if the start should wait for the reports of all cores before it fails; otherwise
    /// returns the first error, which ends the start at once.
    ///
    /// # Errors
    /// The error that ends the start at once.
    fn join_errors(
        &self,
        before: Option<<Self::Core as Core>::Error>,
        error: <Self::Core as Core>::Error,
    ) -> Result<<Self::Core as Core>::Error, <Self::Core as Core>::Error> {
        Err(before.unwrap_or(error))
    }

    /// Does the work of the shutdown, between [`Core::drain`] and [`Core::end`]; the cores read letters meanwhile.
    ///
    /// # Errors
    /// Why the work failed. The server ends all the same.
    fn finish(
        &self,
        _mailboxes: &Mailboxes<<Self::Core as Core>::Letter>,
    ) -> impl Future<Output = Result<Self::Finish, <Self::Core as Core>::Error>> {
        async { Ok(Self::Finish::default()) }
    }

    /// Saves what can be saved after a core failed, and returns what it saved. Cores that failed read letters with
    /// [`Core::read_after_failure`]; a core that hangs does not read any.
    fn rescue(
        &self,
        _mailboxes: &Mailboxes<<Self::Core as Core>::Letter>,
        _failed: &Failed,
    ) -> impl Future<Output = Option<String>> {
        async { None }
    }

    /// Called with the cores that hang, so that nothing waits for them: while the server runs, or while it ends. Any
    /// thread may call it.
    fn give_up(&self, _hung: &[u16]) {}
}

/// How a core continues after a letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// With the next letter.
    Go,
    /// With its other tasks: one of them continues what the letter began.
    Yield,
}

/// One core of a service. It stays on one thread, and need not be `Send`.
///
/// After [`Core::begin`] its endpoint is turned, and its letters are read one after the other. A panic in it is a
/// failure: [`Failed`]. Panics of its handlers and tasks are caught by the endpoint, and each ends only its own
/// request. A core whose state a handler may leave half changed calls [`dunlin_rpc::Endpoint::propagate_panics`]: then
/// they are failures, too.
pub trait Core: 'static {
    /// What cores and the owner of the server send to it.
    type Letter: Send + 'static;
    /// What it receives when all cores are built.
    type Plan: Send + Sync + 'static;
    /// What goes wrong.
    type Error: From<ServeError> + Display + Send + 'static;

    /// Begins to serve; every core is built by now.
    ///
    /// # Errors
    /// Why it cannot; the server then does not start.
    fn begin(&mut self, _plan: &Arc<Self::Plan>) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Reads a letter. Must take no longer than requests may wait.
    fn read(&mut self, letter: Self::Letter) -> Pace {
        drop(letter);
        Pace::Go
    }

    /// Reads a letter after this core has failed: its state may be in the middle of a change. Handlers and tasks of its
    /// endpoint have been dropped by then. A request dropped here gets no answer.
    fn read_after_failure(&mut self, letter: Self::Letter) {
        drop(letter);
    }

    /// Starts nothing new, and finishes what is in progress. After that the endpoint shuts down. Letters are read
    /// meanwhile.
    fn drain(&mut self, _patience: Duration) -> Draining {
        Box::pin(std::future::ready(()))
    }

    /// Called when the endpoint has shut down. Letters are still read.
    fn drained(&mut self) {}

    /// Ends, after the last letter. The endpoint still exists, but is not turned; its handlers and tasks are dropped at
    /// the latest when this returns.
    ///
    /// # Errors
    /// What could not be ended normally.
    fn end(self) -> Result<(), Self::Error>
    where
        Self: Sized,
    {
        Ok(())
    }
}
