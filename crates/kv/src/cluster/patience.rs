//! When a read asks another replica, because the first one is slow: after how long, and how often.

/// Response times that the percentile for speculative retries is of.
const RESPONSES: usize = 256;
/// It is known with so many, and computed anew after so many.
const RESPONSES_MIN: usize = 32;

/// The last response times.
#[derive(Debug, Default)]
pub(super) struct Responses {
    nanos: Vec<u64>,
    next: usize,
    since: usize,
    percentile: Option<u64>,
}

impl Responses {
    pub fn add(&mut self, nanos: u64) {
        if self.nanos.len() < RESPONSES {
            self.nanos.push(nanos);
        } else {
            self.nanos[self.next] = nanos;
            self.next = (self.next + 1) % RESPONSES;
        }
        self.since += 1;
        if self.since >= RESPONSES_MIN {
            self.since = 0;
            let mut sorted = self.nanos.clone();
            sorted.sort_unstable();
            self.percentile = Some(sorted[sorted.len() * 9 / 10]);
        }
    }

    /// The 90th percentile, if enough are known.
    pub fn percentile(&self) -> Option<u64> {
        self.percentile
    }
}

/// Further replicas that may be asked at once because one is slow.
const EXTRA_MAX: f64 = 10.0;
/// Further ones for each request.
const EXTRA_PER_REQUEST: f64 = 0.1;

/// Limits how often another replica is asked because one is slow: if all are, asking more of them makes it worse.
#[derive(Debug)]
pub(super) struct ExtraRequests(f64);

impl Default for ExtraRequests {
    fn default() -> Self {
        ExtraRequests(EXTRA_MAX)
    }
}

impl ExtraRequests {
    /// Counts a first request.
    pub fn earn(&mut self) {
        self.0 = (self.0 + EXTRA_PER_REQUEST).min(EXTRA_MAX);
    }

    /// Returns whether another replica may be asked now.
    pub fn spend(&mut self) -> bool {
        let may = self.0 >= 1.0;
        if may {
            self.0 -= 1.0;
        }
        may
    }
}
