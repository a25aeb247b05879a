//! The load on every system: the same calls, measured in the same way.

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

/// Calls per second with `outstanding` of them at any time.
pub(super) async fn rate(
    caller: impl Caller,
    size: usize,
    outstanding: usize,
    run: Duration,
) -> Result<f64, BenchError> {
    let payload: Rc<[u8]> = vec![7; size].into();
    let warm = Instant::now() + run.mul_f64(WARM_UP_SHARE);
    let end = warm + run;
    let tasks = LocalSet::new();
    let callers: Vec<_> = (0..outstanding)
        .map(|_| tasks.spawn_local(call_until(caller.clone(), Rc::clone(&payload), warm, end)))
        .collect();
    let counts = tasks.run_until(futures::future::join_all(callers)).await;
    let mut calls = 0;
    for count in counts {
        calls += count.map_err(|e| BenchError::io("run a task")(e.into()))??;
    }
    Ok(calls as f64 / run.as_secs_f64())
}

/// Makes calls one after another; returns how many ended between `warm` and `end`.
async fn call_until(
    mut caller: impl Caller,
    payload: Rc<[u8]>,
    warm: Instant,
    end: Instant,
) -> Result<u64, BenchError> {
    let mut calls = 0;
    loop {
        caller.echo(Rc::clone(&payload)).await?;
        let now = Instant::now();
        if now >= end {
            return Ok(calls);
        }
        calls += u64::from(now >= warm);
    }
}
