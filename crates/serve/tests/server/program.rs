//! A service for these tests: it echoes, keeps requests on demand, and fails on purpose.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use dunlin_net::{AnyTransport, Transport};
use dunlin_rpc::{DeferredRequest, Endpoint, EndpointConfig};
use dunlin_serve::{
    Channel, ChannelConfig, Core, Draining, EventLoop, Failed, Interrupt, Mailboxes, Pace, ServeConfig, ServeError,
    Server, Service, Site, long_work,
};
use tokio::sync::oneshot;

pub const ECHO: u8 = 1;
/// A request that is answered when the core drains.
pub const KEEP: u8 = 2;
pub const PANIC: u8 = 3;
/// A request whose handler holds a channel, and so the endpoint.
const HOLD: u8 = 4;

/// Long enough for a busy machine; a test that takes longer hangs.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub enum Letter {
    /// Report your number, and the count.
    Who(oneshot::Sender<(u16, u64)>),
    /// Add to the count.
    Count(u64),
    /// Report that you have read this, and stand still until the other end is dropped.
    Block(mpsc::Sender<()>, mpsc::Receiver<()>),
    /// The same, as announced long work.
    Work(mpsc::Sender<()>, mpsc::Receiver<()>),
    /// Panic.
    Panic,
    /// Report that you have failed.
    Fail,
    /// Send this many counts to another core.
    Forward(u16, u64),
}

/// The faults it can have.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    /// Core 1 cannot be built.
    Build,
    /// Core 1 panics when it is built.
    BuildPanics,
    /// Core 1 cannot begin.
    Begin,
    /// Core 0 drains for ever.
    Drain,
    /// Core 1 panics when it drains.
    DrainPanics,
    /// Core 0 does not end normally.
    End,
    /// Core 0 hangs when it ends, until the test lets go.
    EndHangs,
    /// The same, after the last work of the service has failed.
    FinishFailsAndEndHangs,
}

#[derive(Default)]
pub struct Program {
    pub fault: Fault,
    /// Cores that were built, and that have ended.
    pub built: AtomicU64,
    pub ended: AtomicU64,
    /// Lets go of a core that hangs when it ends.
    pub let_go: AtomicBool,
    pub given_up: Mutex<Vec<u16>>,
    /// What each core answered after a failure, if asked.
    pub rescued: Mutex<Vec<(u16, u64)>>,
}

pub struct ProgramCore<T: Transport> {
    site: Site<T, Letter>,
    program: Arc<Program>,
    kept: Rc<RefCell<Vec<DeferredRequest>>>,
    counted: u64,
}

impl<T: Transport + 'static> Core for ProgramCore<T> {
    type Letter = Letter;
    type Plan = u64;
    type Error = ServeError;

    fn begin(&mut self, plan: &Arc<u64>) -> Result<(), ServeError> {
        assert_eq!(**plan, u64::from(self.site.mailboxes.len()), "all cores are built");
        if self.program.fault == Fault::Begin && self.site.core == 1 {
            return Err(ServeError::System { what: "to begin", why: "on purpose".into() });
        }
        Ok(())
    }

    fn read(&mut self, letter: Letter) -> Pace {
        match letter {
            Letter::Panic => panic!("a fault on purpose"),
            Letter::Fail => self.site.health.fail("it was told to".into()),
            Letter::Block(reading, blocked) => {
                reading.send(()).unwrap();
                let _ = blocked.recv();
            }
            Letter::Work(reading, blocked) => long_work(|| {
                reading.send(()).unwrap();
                let _ = blocked.recv();
            }),
            Letter::Forward(core, counts) => {
                let (mailboxes, endpoint) = (self.site.mailboxes.clone(), self.site.endpoint.clone());
                endpoint.spawn(async move {
                    for _ in 0..counts {
                        mailboxes.send(core, Letter::Count(1)).await.unwrap();
                    }
                });
                return Pace::Yield;
            }
            other => self.read_after_failure(other),
        }
        Pace::Go
    }

    fn read_after_failure(&mut self, letter: Letter) {
        match letter {
            Letter::Who(answer) => _ = answer.send((self.site.core, self.counted)),
            Letter::Count(more) => self.counted += more,
            _ => {}
        }
    }

    fn drain(&mut self, _: Duration) -> Draining {
        match self.program.fault {
            Fault::Drain if self.site.core == 0 => return Box::pin(std::future::pending()),
            Fault::DrainPanics if self.site.core == 1 => return Box::pin(async { panic!("a fault on purpose") }),
            _ => {}
        }
        let kept = self.kept.clone();
        Box::pin(async move {
            for request in kept.take() {
                request.enqueue_response(b"at the end".to_vec()).unwrap();
            }
        })
    }

    fn end(self) -> Result<(), ServeError> {
        let hangs =
            matches!(self.program.fault, Fault::EndHangs | Fault::FinishFailsAndEndHangs) && self.site.core == 0;
        while hangs && !self.program.let_go.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.program.ended.fetch_add(1, Ordering::Relaxed);
        if self.program.fault == Fault::End && self.site.core == 0 {
            return Err(ServeError::System { what: "to end", why: "on purpose".into() });
        }
        Ok(())
    }
}

/// Lets cores share the program with its owner.
pub struct Shareable(pub Arc<Program>);

impl<T: Transport + 'static> Service<T> for Shareable {
    type Core = ProgramCore<T>;
    type Ready = u16;
    type Finish = u64;

    fn build(&self, site: Site<T, Letter>) -> Result<(ProgramCore<T>, u16), ServeError> {
        let program = self.0.clone();
        let number = site.core;
        match program.fault {
            Fault::Build if number == 1 => {
                return Err(ServeError::System { what: "to build", why: "on purpose".into() });
            }
            Fault::BuildPanics if number == 1 => panic!("a fault on purpose"),
            _ => {}
        }
        program.built.fetch_add(1, Ordering::Relaxed);
        let kept: Rc<RefCell<Vec<DeferredRequest>>> = Rc::default();
        let keep = kept.clone();
        site.endpoint.register(ECHO, |request| {
            let payload = request.payload();
            request.respond(payload);
        })?;
        site.endpoint.register(KEEP, move |request| keep.borrow_mut().extend(request.defer()))?;
        site.endpoint.register(PANIC, |_| panic!("a fault on purpose"))?;
        let channel = Channel::new(&site.endpoint, Vec::new(), ChannelConfig::default());
        let held = channel.clone();
        site.endpoint.register_async(HOLD, move |_| {
            let channel = channel.clone();
            async move { channel.sessions().to_le_bytes().to_vec() }
        })?;
        site.endpoint.spawn(async move {
            std::future::pending::<()>().await;
            held.close();
        });
        site.endpoint.propagate_panics();
        Ok((ProgramCore { site, program, kept, counted: 0 }, number))
    }

    fn plan(&self, ready: Vec<u16>) -> Result<u64, ServeError> {
        assert!(ready.iter().copied().eq(0..ready.len() as u16), "in order: {ready:?}");
        Ok(ready.len() as u64)
    }

    async fn finish(&self, mailboxes: &Mailboxes<Letter>) -> Result<u64, ServeError> {
        if self.0.fault == Fault::FinishFailsAndEndHangs {
            return Err(ServeError::System { what: "the last work", why: "on purpose".into() });
        }
        Ok(mailboxes.ask_all(Letter::Who).await.iter().map(|(_, counted)| counted).sum())
    }

    async fn rescue(&self, mailboxes: &Mailboxes<Letter>, failed: &Failed) -> Option<String> {
        if !self.0.given_up.lock().unwrap().is_empty() {
            return Some("nothing was saved".into());
        }
        let answers = mailboxes.ask_all(Letter::Who).await;
        let told = format!("{} cores answered after core {} failed", answers.len(), failed.core);
        *self.0.rescued.lock().unwrap() = answers;
        Some(told)
    }

    fn give_up(&self, hung: &[u16]) {
        self.0.given_up.lock().unwrap().extend(hung);
    }
}

pub fn program(fault: Fault) -> Arc<Shareable> {
    Arc::new(Shareable(Arc::new(Program { fault, ..Program::default() })))
}

/// Settings of a server whose name no other test and no other run uses.
pub fn config(name: &str, cores: u16, event_loop: EventLoop) -> ServeConfig {
    let listen = format!("shm:test-serve-{name}-{event_loop:?}-{}", std::process::id()).parse().unwrap();
    let interrupt = Interrupt::default();
    ServeConfig { listen: vec![listen], cores, event_loop, interrupt, ..ServeConfig::named("test") }
}

/// Runs a test with either event loop.
pub fn with_each_loop(test: impl Fn(EventLoop)) {
    test(EventLoop::Endpoint);
    test(EventLoop::Tokio);
}

pub fn client(server: &dunlin_net::Addr) -> Endpoint<AnyTransport> {
    Endpoint::new(AnyTransport::for_peer(server).unwrap(), EndpointConfig::default()).unwrap()
}

/// Makes a core stand still until the returned value is dropped.
pub fn block(server: &Server<Shareable>, core: u16) -> mpsc::Sender<()> {
    keep_busy(server, core, Letter::Block)
}

/// Makes a core do announced long work until the returned value is dropped.
pub fn work_long(server: &Server<Shareable>, core: u16) -> mpsc::Sender<()> {
    keep_busy(server, core, Letter::Work)
}

fn keep_busy(
    server: &Server<Shareable>,
    core: u16,
    with: fn(mpsc::Sender<()>, mpsc::Receiver<()>) -> Letter,
) -> mpsc::Sender<()> {
    let ((open, blocked), (reading, read)) = (mpsc::channel(), mpsc::channel());
    server.mailboxes().try_send(core, with(reading, blocked)).map_err(|(why, _)| why).unwrap();
    read.recv().unwrap();
    open
}
