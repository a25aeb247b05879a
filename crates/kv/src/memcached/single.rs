//! A [`Backend`] of one core with one partition, and a connection without a socket: for tests, examples and fuzzing.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::{Future, ready};

use dunlin_store::{Store, UnixSeconds, VALUE_BYTES_MAX, Visit};
use futures::FutureExt as _;

use super::backend::{Backend, CoreState, FlushTime, Inquiry, Report, Unavailable};
use super::batch::Batch;
use super::output::{Output, merge};
use super::service::Settings;
use super::session::{Progress, Session};
use super::stats;
use crate::metrics::{CoreMetrics, Operation, Outcome};
use crate::routing::Core;

/// One core that owns every key, with a clock that is set by the caller.
#[derive(Debug, Default)]
pub struct Single<S> {
    store: RefCell<S>,
    state: CoreState,
    metrics: RefCell<CoreMetrics>,
    now: Cell<UnixSeconds>,
    flush_at: Cell<Option<UnixSeconds>>,
}

impl<S: Store> Single<S> {
    /// Creates a core with this partition, at this time.
    pub fn new(store: S, now: UnixSeconds) -> Single<S> {
        Single {
            store: RefCell::new(store),
            state: CoreState::default(),
            metrics: RefCell::default(),
            now: Cell::new(now),
            flush_at: Cell::new(None),
        }
    }

    /// Returns the same core with another limit of its connections' memory.
    #[must_use]
    pub fn with_connection_bytes(self, bytes: usize) -> Single<S> {
        Single { state: CoreState::with_connection_bytes(bytes), ..self }
    }

    /// Sets the time.
    pub fn set_now(&self, now: UnixSeconds) {
        self.now.set(now);
        if self.flush_at.get().is_some_and(|at| at <= now) {
            self.flush_at.set(None);
            self.store.borrow_mut().flush();
            self.metrics.borrow_mut().count(Operation::Flush, Outcome::Hit);
        }
    }
}

impl<S: Store + Visit + 'static> Backend for Single<S> {
    type Store = S;

    fn elsewhere(&self, _key: &[u8]) -> Option<Core> {
        None
    }

    fn cores(&self) -> Core {
        1
    }

    fn with_store<R>(&self, run: impl FnOnce(&mut S) -> R) -> R {
        run(&mut self.store.borrow_mut())
    }

    fn now(&self) -> UnixSeconds {
        self.now.get()
    }

    fn state(&self) -> &CoreState {
        &self.state
    }

    fn metrics(&self) -> &RefCell<CoreMetrics> {
        &self.metrics
    }

    fn forward(&self, _core: Core, _batch: Box<Batch>) -> impl Future<Output = Result<Box<Batch>, Unavailable>> {
        ready(Err(Unavailable))
    }

    fn flush(&self, at: FlushTime) -> impl Future<Output = Result<(), Unavailable>> {
        self.flush_at.set(Some(match at {
            FlushTime::Now => self.now.get(),
            FlushTime::At(at) => at,
        }));
        self.set_now(self.now.get());
        ready(Ok(()))
    }

    fn ask(&self, inquiry: Inquiry) -> impl Future<Output = Vec<Report>> {
        ready(vec![self.state.report(inquiry, &*self.store.borrow(), self.now.get())])
    }
}

/// A client that reads at once.
struct Said<'a> {
    out: &'a mut Vec<u8>,
    most: &'a mut usize,
}

impl Output for Said<'_> {
    type Error = Infallible;

    async fn write(&mut self, output: &mut Vec<u8>) -> Result<(), Infallible> {
        *self.most = (*self.most).max(output.len());
        self.out.append(output);
        Ok(())
    }

    async fn write_long(&mut self, answer: &[u8]) -> Result<(), Infallible> {
        *self.most = (*self.most).max(answer.len());
        self.out.extend_from_slice(answer);
        Ok(())
    }

    fn has_room(&self, _bytes: usize) -> bool {
        true
    }

    async fn reserve(&mut self, _bytes: usize) -> Result<(), Infallible> {
        Ok(())
    }
}

/// A connection without a socket: it takes a client's bytes and returns the answers.
#[derive(Debug)]
pub struct Conversation<'a, B> {
    backend: &'a B,
    settings: &'a Settings,
    session: Session,
    input: Vec<u8>,
    is_closed: bool,
}

impl<'a, B: Backend> Conversation<'a, B> {
    /// Creates a connection to a core whose futures are ready at once.
    pub fn new(backend: &'a B, settings: &'a Settings) -> Conversation<'a, B> {
        Conversation { backend, settings, session: Session::new(VALUE_BYTES_MAX), input: Vec::new(), is_closed: false }
    }

    /// Whether the server closed it.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Returns the number of bytes received and not consumed.
    pub fn pending(&self) -> usize {
        self.input.len()
    }

    /// Sends bytes, and appends the answers to `out`. Returns the most bytes of answers that waited to be written at
    /// once.
    ///
    /// # Panics
    /// If a future of the backend is not ready at once.
    pub fn say(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> usize {
        if self.is_closed {
            return 0;
        }
        self.input.extend_from_slice(bytes);
        let (mut at, mut answers, mut most) = (0, Vec::new(), 0);
        loop {
            let (used, progress) = self.session.consume(&self.input[at..], self.backend, &mut answers);
            at += used;
            most = most.max(answers.len());
            match progress {
                // There is ample memory and no tier, and changes do not wait.
                Progress::More
                | Progress::Full
                | Progress::Memory
                | Progress::Turn
                | Progress::Tier
                | Progress::Close => {
                    out.append(&mut answers);
                }
                Progress::Ask(ask) => {
                    let mut client = Said { out: &mut *out, most: &mut most };
                    let answered =
                        stats::answer(ask, self.backend, self.settings, &mut answers, &mut client).now_or_never();
                    assert!(answered.is_some(), "this backend is not ready at once");
                }
                Progress::Forward => {
                    let mut client = Said { out: &mut *out, most: &mut most };
                    let merged = merge(&mut self.session, self.backend, &mut answers, &mut client).now_or_never();
                    let Some(Ok(merged)) = merged else { panic!("this backend is not ready at once") };
                    if merged.is_err() {
                        self.is_closed = true;
                        self.input.clear();
                        return most;
                    }
                }
            }
            if matches!(progress, Progress::More | Progress::Close) {
                self.is_closed = progress == Progress::Close;
                self.input.drain(..at);
                return most;
            }
        }
    }
}
