//! Tasks of an endpoint that only yield.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use dunlin_lab::LabError;
use dunlin_lab::peer::{Control, Role};
use dunlin_net::{Clock, Transport};
use dunlin_rpc::Endpoint;
use serde::{Deserialize, Serialize};

use super::setup::{OnTransport, Setup, Side};
use crate::{BenchError, WARM_UP_SHARE};

/// Polls of the floor between two looks at the clock.
const FLOOR_POLLS: u64 = 1_000;

/// Tasks that yield whenever they are polled, on an endpoint without peers.
#[derive(Debug, Serialize, Deserialize)]
pub struct Switching {
    /// Transport and endpoint.
    pub setup: Setup,
    /// Number of tasks.
    pub tasks: usize,
    /// Length of the measured run, and of its floor.
    pub run: Duration,
}

impl Role for Switching {
    const NAME: &'static str = "tasks that yield";
    type Ready = ();
    /// Nanoseconds from one task to the next, and the same of a plain loop.
    type Output = (f64, f64);
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<(f64, f64), BenchError> {
        self.setup.on_transport(Side::Server, Switch { switching: &self, control })
    }
}

struct Switch<'a> {
    switching: &'a Switching,
    control: &'a Control<Switching>,
}

/// Yields for ever, and counts.
async fn yields(count: Rc<Cell<u64>>) {
    loop {
        count.set(count.get() + 1);
        let mut yielded = false;
        poll_fn(|context| {
            if yielded {
                return Poll::Ready(());
            }
            yielded = true;
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }
}

impl OnTransport for Switch<'_> {
    type Output = (f64, f64);

    fn run<T: Transport>(self, transport: T) -> Result<(f64, f64), BenchError> {
        let (clock, run) = (Clock::new(), self.switching.run.as_nanos() as u64);
        let warm = self.switching.run.mul_f64(WARM_UP_SHARE).as_nanos() as u64;
        let floor = self.floor(&clock, run)?;
        let endpoint = Endpoint::new(transport, self.switching.setup.endpoint())?;
        let count = Rc::new(Cell::new(0));
        for _ in 0..self.switching.tasks {
            endpoint.spawn(yields(count.clone()));
        }
        let begin = clock.now();
        endpoint.run_until(|| clock.now() - begin >= warm || self.control.stopping());
        let (start, before) = (clock.now(), count.get());
        endpoint.run_until(|| clock.now() - start >= run || self.control.stopping());
        Ok((per_switch(clock.now() - start, count.get() - before)?, floor))
    }
}

impl Switch<'_> {
    /// The same futures, polled in turn.
    fn floor(&self, clock: &Clock, run: u64) -> Result<f64, BenchError> {
        let count = Rc::new(Cell::new(0));
        let one = || Box::pin(yields(count.clone())) as Pin<Box<dyn Future<Output = ()>>>;
        let mut futures: Vec<_> = (0..self.switching.tasks).map(|_| one()).collect();
        let mut context = Context::from_waker(Waker::noop());
        let start = clock.now();
        while clock.now() - start < run && !self.control.stopping() {
            let end = count.get() + FLOOR_POLLS;
            while count.get() < end {
                for future in &mut futures {
                    // It never ends.
                    let _ = future.as_mut().poll(&mut context);
                }
            }
        }
        per_switch(clock.now() - start, count.get())
    }
}

fn per_switch(nanos: u64, switches: u64) -> Result<f64, BenchError> {
    if switches == 0 {
        return Err(LabError::NoSamples { what: "a run of tasks" }.into());
    }
    Ok(nanos as f64 / switches as f64)
}
