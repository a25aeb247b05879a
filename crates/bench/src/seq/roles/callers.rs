//! Callers of one RPC client, which share its requests.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use dunlin_lab::measure::Latencies;
use dunlin_lab::peer::{Control, Role};
use dunlin_lab::report::Metric;
use dunlin_net::{Addr, Transport};
use dunlin_rpc::Endpoint;
use dunlin_seq::{Client, ClientConfig, SeqError};
use serde::{Deserialize, Serialize};

use super::window::Window;
use super::{NumberFigures, TIMEOUT};
use crate::BenchError;
use crate::rpc::roles::setup::{OnTransport, Setup, Side};

/// Event-loop iterations between two readings of the clock.
const ITERATIONS_PER_LOOK: u32 = 16;

/// Callers that each wait for one number at a time, by RPC. With one caller this is the latency of
/// [`dunlin_seq::Client::next`].
#[derive(Debug, Serialize, Deserialize)]
pub struct SeqCallers {
    /// Transport and endpoint.
    pub setup: Setup,
    /// The server's address.
    pub server: String,
    /// Callers.
    pub callers: usize,
    /// Whether latencies are recorded. This reads the clock twice for each number.
    pub timed: bool,
    /// Length of the measured run.
    pub run: Duration,
}

impl Role for SeqCallers {
    const NAME: &'static str = "callers of a sequencer";
    type Ready = ();
    type Output = NumberFigures;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<NumberFigures, BenchError> {
        self.setup.on_transport(Side::Client, Call { callers: &self, control })
    }
}

struct Call<'a> {
    callers: &'a SeqCallers,
    control: &'a Control<SeqCallers>,
}

/// What the callers share.
struct State {
    numbers: Cell<u64>,
    latencies: RefCell<Latencies>,
    error: RefCell<Option<SeqError>>,
    window: RefCell<Window>,
    is_over: Cell<bool>,
    /// Callers that have not ended.
    left: Cell<usize>,
}

impl OnTransport for Call<'_> {
    type Output = NumberFigures;

    fn run<T: Transport + 'static>(self, transport: T) -> Result<NumberFigures, BenchError> {
        let Call { callers, control } = self;
        let server: Addr = callers.server.parse()?;
        let endpoint = Rc::new(Endpoint::new(transport, callers.setup.endpoint())?);
        let config = ClientConfig { timeout: TIMEOUT, attempt_timeout: TIMEOUT, ..ClientConfig::default() };
        let client = Client::new(&endpoint, vec![server], config);
        let state = Rc::new(State {
            numbers: Cell::new(0),
            latencies: RefCell::default(),
            error: RefCell::default(),
            window: RefCell::new(Window::new(callers.run)),
            is_over: Cell::new(false),
            left: Cell::new(callers.callers),
        });
        for _ in 0..callers.callers {
            endpoint.spawn(state.clone().call(client.clone(), callers.timed));
        }
        let mut iterations = 0u32;
        endpoint.run_until(|| {
            iterations = iterations.wrapping_add(1);
            if !iterations.is_multiple_of(ITERATIONS_PER_LOOK) {
                return false;
            }
            let live = |rate| control.live(Metric::Operations, rate);
            let is_over = state.window.borrow_mut().look(state.numbers.get(), live);
            is_over || control.stopping() || state.error.borrow().is_some()
        });
        // Tasks hold the client, and so the endpoint: they must end before both can be dropped.
        state.is_over.set(true);
        endpoint.run_until(|| state.left.get() == 0 || control.stopping());
        if let Some(error) = state.error.take() {
            return Err(error.into());
        }
        let rate = state.window.borrow().rate()?;
        let latency = if callers.timed { Some(state.latencies.borrow().percentiles()?) } else { None };
        Ok(NumberFigures { rate, latency })
    }
}

impl State {
    /// Asks for one number after the other until the run is over.
    async fn call<T: Transport + 'static>(self: Rc<Self>, client: Client<T>, timed: bool) {
        while !self.is_over.get() {
            let before = if timed { self.window.borrow().now() } else { 0 };
            if let Err(error) = client.next().await {
                *self.error.borrow_mut() = Some(error);
                break;
            }
            self.numbers.set(self.numbers.get() + 1);
            if timed {
                let window = self.window.borrow();
                if window.is_measuring() {
                    self.latencies.borrow_mut().record(window.now() - before);
                }
            }
        }
        self.left.set(self.left.get() - 1);
    }
}
