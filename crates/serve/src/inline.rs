//! A core without a thread: on an endpoint of any transport that the caller turns, in a test or in the simulator.

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dunlin_net::Transport;
use dunlin_rpc::Endpoint;
use tokio::sync::oneshot;

use crate::core::Attendant;
use crate::error::ServeError;
use crate::failure::{Failure, Health};
use crate::mailbox::{Control, Mailboxes, mailboxes};
use crate::service::{Core, Service, Site};

/// Letters that wait.
const LETTERS_MAX: usize = 1024;

type ErrorOf<S, T> = <<S as Service<T>>::Core as Core>::Error;

/// Receives the result of a core when it ends.
type End<E> = oneshot::Receiver<Result<(), E>>;

/// A service on one core, whose tasks are tasks of its endpoint: turning the endpoint runs it. A core that needs tokio
/// cannot run this way.
///
/// A panic is not caught: it reaches the caller that turns the endpoint. When this is dropped, the core ends the next
/// time the endpoint is turned; until then it keeps the endpoint alive.
///
/// ```
/// # use std::rc::Rc;
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use dunlin_net::{Transport, loopback::{LoopbackConfig, LoopbackNetwork}};
/// # use dunlin_rpc::{Endpoint, EndpointConfig};
/// # use dunlin_serve::{Core, Inline, ServeError, Service, Site};
/// # struct Echo;
/// # struct EchoCore;
/// # impl Core for EchoCore { type Letter = (); type Plan = (); type Error = ServeError; }
/// # impl<T: Transport + 'static> Service<T> for Echo {
/// #     type Core = EchoCore;
/// #     type Ready = ();
/// #     type Finish = ();
/// #     fn build(&self, site: Site<T, ()>) -> Result<(EchoCore, ()), ServeError> { Ok((EchoCore, ())) }
/// #     fn plan(&self, _: Vec<()>) -> Result<(), ServeError> { Ok(()) }
/// # }
/// let network = LoopbackNetwork::new(LoopbackConfig::default());
/// let endpoint = Rc::new(Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?);
/// let server = Inline::start(Arc::new(Echo), &endpoint, Duration::from_secs(1))?;
/// let mut stopping = Box::pin(server.stop());
/// while endpoint.poll_once(stopping.as_mut()).is_none() {
///     network.advance(Duration::from_millis(1));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Inline<T: Transport, S: Service<T>> {
    service: Arc<S>,
    mailboxes: Mailboxes<<S::Core as Core>::Letter>,
    failure: Failure,
    ended: Mutex<Option<End<ErrorOf<S, T>>>>,
}

impl<T: Transport + 'static, S: Service<T>> Inline<T, S> {
    /// Builds the core on an endpoint, and begins. When it ends, everything else that runs on the endpoint is dropped,
    /// too.
    ///
    /// # Errors
    /// The service's error.
    pub fn start(
        service: Arc<S>,
        endpoint: &Rc<Endpoint<T>>,
        patience: Duration,
    ) -> Result<Inline<T, S>, ErrorOf<S, T>> {
        Inline::start_on(service, endpoint, patience, true)
    }

    /// Begins on an endpoint that also runs other things, which continue when the core ends.
    pub(crate) fn start_beside(service: Arc<S>, endpoint: &Rc<Endpoint<T>>) -> Result<Inline<T, S>, ErrorOf<S, T>> {
        Inline::start_on(service, endpoint, Duration::ZERO, false)
    }

    fn start_on(
        service: Arc<S>,
        endpoint: &Rc<Endpoint<T>>,
        patience: Duration,
        owns_endpoint: bool,
    ) -> Result<Inline<T, S>, ErrorOf<S, T>> {
        let (mailboxes, mut receivers) = mailboxes(1, LETTERS_MAX);
        let failure = Failure::default();
        let health = Health::new(0, failure.clone(), &mailboxes);
        let site = Site { core: 0, endpoint: endpoint.clone(), mailboxes: mailboxes.clone(), health: health.clone() };
        let (mut core, ready) = service.build(site)?;
        core.begin(&Arc::new(service.plan(vec![ready])?))?;
        let mailbox = receivers.pop().ok_or(ServeError::Ended)?;
        let mut attendant = Attendant {
            number: 0,
            core,
            endpoint: endpoint.clone(),
            owns_endpoint,
            mailbox,
            health,
            patience,
            draining: None,
        };
        let (end, ended) = oneshot::channel();
        endpoint.spawn(async move {
            attendant.attend().await;
            if attendant.health.has_failed() {
                attendant.attend_after_failure().await;
            }
            // There may be no receiver.
            let _ = end.send(attendant.core.end());
            if attendant.owns_endpoint {
                // Drop what keeps the endpoint alive.
                attendant.endpoint.drop_application();
            }
        });
        Ok(Inline { service, mailboxes, failure, ended: Mutex::new(Some(ended)) })
    }

    /// Its mailbox, in the form of a server with one core.
    pub fn mailboxes(&self) -> &Mailboxes<<S::Core as Core>::Letter> {
        &self.mailboxes
    }

    /// Why it has failed, if it has.
    pub fn failure(&self) -> &Failure {
        &self.failure
    }

    /// Ends gracefully, as [`crate::Server::stop`] does.
    ///
    /// # Errors
    /// The service's error at its end; [`ServeError::CoreFailed`] if one of its tasks reported a failure.
    pub async fn stop(self) -> Result<S::Finish, ErrorOf<S, T>> {
        let (done, drained) = oneshot::channel();
        // If the core has ended, everything below ends at once.
        let _ = self.mailboxes.command(0, Control::Drain(Box::new(move |_| _ = done.send(()))));
        let _ = drained.await;
        let failed = self.failure.get();
        let (mut finished, mut saved) = (Ok(S::Finish::default()), None);
        match &failed {
            Some(failed) => saved = self.service.rescue(&self.mailboxes, failed).await,
            None => finished = self.service.finish(&self.mailboxes).await,
        }
        self.mailboxes.command_exit();
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ended) = ended {
            ended.await.unwrap_or_else(|_| Err(ServeError::Ended.into()))?;
        }
        match failed {
            Some(failed) => Err(ServeError::CoreFailed { core: 0, why: failed.why, saved }.into()),
            None => finished,
        }
    }
}

impl<T: Transport, S: Service<T>> Drop for Inline<T, S> {
    fn drop(&mut self) {
        self.mailboxes.command_exit();
    }
}

#[cfg(test)]
mod tests {
    use dunlin_net::Addr;
    use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork};
    use dunlin_rpc::EndpointConfig;

    use super::*;
    use crate::service::Pace;

    const ECHO: u8 = 1;

    /// Fails at its first letter.
    struct Failing;

    impl Core for Failing {
        type Letter = ();
        type Plan = ();
        type Error = ServeError;

        fn read(&mut self, (): ()) -> Pace {
            panic!("a letter");
        }
    }

    impl<T: Transport + 'static> Service<T> for Failing {
        type Core = Failing;
        type Ready = ();
        type Finish = ();

        fn build(&self, _: Site<T, ()>) -> Result<(Failing, ()), ServeError> {
            Ok((Failing, ()))
        }

        fn plan(&self, _: Vec<()>) -> Result<(), ServeError> {
            Ok(())
        }
    }

    #[test]
    fn a_core_that_fails_leaves_what_else_an_endpoint_of_others_runs() {
        let network = LoopbackNetwork::new(LoopbackConfig::default());
        let endpoint = Rc::new(Endpoint::new(network.endpoint(1).unwrap(), EndpointConfig::default()).unwrap());
        endpoint.register(ECHO, |request| request.respond(b"here")).unwrap();
        let core = Inline::start_beside(Arc::new(Failing), &endpoint).unwrap();
        let mut work = Box::pin(async {
            core.mailboxes().send(0, ()).await.unwrap();
            while core.failure().get().is_none() {
                endpoint.timers().sleep(Duration::from_micros(10)).await;
            }
            let session = endpoint.connect(&Addr::Node(1)).await.unwrap();
            assert_eq!(&session.call(ECHO, vec![1]).await.unwrap().response[..], b"here");
            drop(session.close());
        });
        let is_done = (0..10_000).any(|_| {
            network.advance(Duration::from_micros(10));
            endpoint.poll_once(work.as_mut()).is_some()
        });
        assert!(is_done);
    }
}
