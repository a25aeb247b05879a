//! How much latency could be saved by delaying operations that do not delay their request (thesis, section 3.1.3).

use super::run::{Started, observe};
use super::{Contender, Setting, SettingError};
use crate::Policy;

/// Bounds of the saving by slack, in nanoseconds per operation, and for scale the mean latency of an operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SlackBounds {
    /// Each operation contributes the time by which it could be delayed without delaying its request.
    pub upper: f64,
    /// Each operation lets only the next one in its queue pass, if that takes no longer than the operation can be
    /// delayed. The saving is how much earlier the request of the passing operation ends. If that request ends earlier,
    /// the passing operation was its last one and has no slack, so it lets none pass itself: the savings of a queue add
    /// up.
    pub lower: f64,
    /// Mean time from sending an operation to its answer.
    pub latency: f64,
}

/// The latest two ends of a request's operations.
#[derive(Debug, Clone, Copy, Default)]
struct Ends {
    last: u64,
    second: u64,
}

/// Computes both bounds in a run with FIFO queues. Stores every operation, at 32 bytes each.
///
/// # Errors
/// [`SettingError`].
pub fn slack_bounds(setting: &Setting) -> Result<SlackBounds, SettingError> {
    let mut started: Vec<Started> = Vec::new();
    observe(setting, &Contender::of(Policy::Fifo), |operation| started.push(operation))?;
    Ok(bounds(setting, &started))
}

/// The bounds for operations in order of their start.
fn bounds(setting: &Setting, started: &[Started]) -> SlackBounds {
    let mut ends: Vec<Ends> = Vec::new();
    for operation in started {
        let request = operation.request as usize;
        if ends.len() <= request {
            ends.resize(request + 1, Ends::default());
        }
        ends[request].add(operation.end());
    }
    let slack = |operation: &Started| ends[operation.request as usize].last - operation.end();
    let requests = setting.measured();
    let is_measured = |operation: &&Started| requests.contains(&operation.request);
    let mut lower = 0;
    // The last operation that started at each server.
    let mut before: Vec<Option<Started>> = vec![None; setting.servers as usize];
    for next in started {
        let Some(first) = before[next.server as usize].replace(*next) else { continue };
        // It waited behind the other one, and would have fitted into that one's slack.
        let could_pass = next.sent <= first.at && u64::from(next.service) <= slack(&first);
        if could_pass && is_measured(&next) {
            lower += ends[next.request as usize].saved(next.end(), next.at - first.at);
        }
    }
    let measured = || started.iter().filter(is_measured);
    let count = measured().count().max(1) as f64;
    SlackBounds {
        upper: measured().map(|operation| slack(operation) as f64).sum::<f64>() / count,
        lower: lower as f64 / count,
        latency: measured().map(|operation| (operation.end() - operation.sent) as f64).sum::<f64>() / count
            + 2.0 * setting.network as f64,
    }
}

impl Started {
    fn end(&self) -> u64 {
        self.at + u64::from(self.service)
    }
}

impl Ends {
    fn add(&mut self, end: u64) {
        if end > self.last {
            (self.last, self.second) = (end, self.last);
        } else {
            self.second = self.second.max(end);
        }
    }

    /// How much earlier the request ends if its operation that ended at `end` does so by `earlier`.
    fn saved(&self, end: u64, earlier: u64) -> u64 {
        if end == self.last { earlier.min(self.last - self.second) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_operation_of_a_request_saves_time() {
        let mut ends = Ends::default();
        [30, 50, 40].into_iter().for_each(|end| ends.add(end));
        assert_eq!((ends.last, ends.second), (50, 40));
        assert_eq!([(50, 5), (50, 20), (40, 5)].map(|(end, earlier)| ends.saved(end, earlier)), [5, 10, 0]);
        // Two end last: one of them alone saves nothing.
        ends.add(50);
        assert_eq!(ends.saved(50, 5), 0);
        // A single operation saves everything.
        let mut only = Ends::default();
        only.add(50);
        assert_eq!(only.saved(50, 5), 5);
    }

    #[test]
    fn requests_that_are_not_measured_do_not_count() {
        let setting = Setting { requests: 10, network: 0, ..Setting::default() };
        let on = |server, request, at, service| Started { request, sent: 0, server, at, service };
        // The first belongs to the warm-up, the last to the drain.
        let started = [on(0, 4, 0, 500), on(1, 4, 0, 5), on(2, 5, 0, 10), on(3, 15, 0, 900)];
        let bounds = bounds(&setting, &started);
        assert_eq!((bounds.upper, bounds.lower, bounds.latency), (0.0, 0.0, 10.0));
    }
}
