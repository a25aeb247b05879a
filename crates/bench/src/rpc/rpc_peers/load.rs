//! The load on every system: the same calls, measured in the same way.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use dunlin_lab::measure::{Latencies, Percentiles};
use tokio::task::LocalSet;

use crate::BenchError;

/// Length of the warm-up, which is not counted, as a share of the run.
const WARM_UP_SHARE: f64 = 0.2;

/// A client's handle; clones share one connection.
pub(super) trait Caller: Clone + 'static {
    /// Sends `payload` and waits for it to come back.
    async fn echo(&mut self, payload: Rc<[u8]>) -> Result<(), BenchError>;
}

/// Latencies with one call outstanding.
pub(super) async fn latency(mut caller: impl Caller, size: usize, run: Duration) -> Result<Percentiles, BenchError> {
    let payload: Rc<[u8]> = vec![7; size].into();
    let mut latencies = Latencies::new();
    let start = Instant::now();
    let warm = start + run.mul_f64(WARM_UP_SHARE);
    let end = warm + run;
    loop {
        let before = Instant::now();
        caller.echo(Rc::clone(&payload)).await?;
        let after = Instant::now();
        if before >= warm {
            latencies.record((after - before).as_nanos() as u64);
        }
        if after >= end {
            return Ok(latencies.percentiles()?);
        }
    }
}

/// Calls per second with `outstanding` of them at any time. It goes on beyond `run` until as many calls have ended as
/// there are outstanding ones, so that a short run of a slow system has a rate, too.
pub(super) async fn rate(
    caller: impl Caller,
    size: usize,
    outstanding: usize,
    run: Duration,
) -> Result<f64, BenchError> {
    let payload: Rc<[u8]> = vec![7; size].into();
    let warm = Instant::now() + run.mul_f64(WARM_UP_SHARE);
    let ended = Rc::new(Ended { warm, end: warm + run, calls_min: outstanding as u64, calls: Cell::new(0) });
    let tasks = LocalSet::new();
    let callers: Vec<_> = (0..outstanding)
        .map(|_| tasks.spawn_local(call_until(caller.clone(), Rc::clone(&payload), Rc::clone(&ended))))
        .collect();
    for caller in tasks.run_until(futures::future::join_all(callers)).await {
        caller.map_err(|e| BenchError::io("run a task")(e.into()))??;
    }
    Ok(ended.calls.get() as f64 / warm.elapsed().as_secs_f64())
}

/// The calls that all callers have seen end since the warm-up.
struct Ended {
    warm: Instant,
    end: Instant,
    calls_min: u64,
    calls: Cell<u64>,
}

impl Ended {
    /// Counts a call that ended now; true if it was the caller's last one.
    fn count(&self) -> bool {
        let now = Instant::now();
        self.calls.set(self.calls.get() + u64::from(now >= self.warm));
        now >= self.end && self.calls.get() >= self.calls_min
    }
}

/// Makes calls one after another, until enough have ended.
async fn call_until(mut caller: impl Caller, payload: Rc<[u8]>, ended: Rc<Ended>) -> Result<(), BenchError> {
    loop {
        caller.echo(Rc::clone(&payload)).await?;
        if ended.count() {
            return Ok(());
        }
    }
}
