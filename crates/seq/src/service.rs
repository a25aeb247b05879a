//! A sequencer on an endpoint: numbers by RPC.

use std::borrow::Cow;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use arrayvec::ArrayVec;
use dunlin_net::Transport;
use dunlin_rpc::{Endpoint, RegisterError, RequestBurst, Timers};
use dunlin_serve::epoch::OTHER_EPOCH;

use crate::counter::{Counter, Unavailable};
use crate::wire::{ANSWER_BYTES, Code, INFO, Info, NEXT, Next, check_info};

/// Maximum number of requests that an endpoint hands over at once, and a transport receives at once.
pub(crate) const BURST_MAX: usize = dunlin_net::transport::RX_BURST;

/// How to serve requests that arrive together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Batching {
    /// One addition to the counter and one burst of answers for all of them: the paper's doorbell batching.
    #[default]
    Bursts,
    /// One addition for each. Over RPC the endpoint still sends all answers of one turn together; see
    /// [`dunlin_rpc::config::Optimizations::transmit_batching`].
    Single,
}

/// The counters of one core's service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServiceStats {
    /// Requests answered with numbers.
    pub requests: u64,
    /// Numbers handed out.
    pub numbers: u64,
    /// Additions to the counter: `requests / draws` is the batching achieved.
    pub draws: u64,
    /// Requests that were pushed back because no numbers were reserved.
    pub pushed_back: u64,
    /// Requests that came while this sequencer had no term.
    pub not_serving: u64,
    /// Requests that named another epoch: from clients that have not heard of this one, or that know a later one.
    pub other_epoch: u64,
    /// Requests that came when all numbers were handed out.
    pub exhausted: u64,
    /// Requests that were malformed, unknown, or for an invalid run.
    pub bad: u64,
}

/// The service of one core. Clones share one state.
#[derive(Debug, Clone)]
pub struct SeqService {
    counter: Arc<Counter>,
    stats: Rc<Cell<ServiceStats>>,
}

impl SeqService {
    /// Serves numbers of `counter`, which may be shared with other cores, on an endpoint.
    ///
    /// All callers of the endpoint are trusted: there is no authentication.
    ///
    /// # Errors
    /// [`RegisterError`] if the request types [`NEXT`] or [`INFO`] have a handler already.
    ///
    /// ```
    /// use std::rc::Rc;
    /// use std::sync::Arc;
    ///
    /// use dunlin_net::{Addr, loopback::{LoopbackConfig, LoopbackNetwork}};
    /// use dunlin_rpc::{Endpoint, EndpointConfig};
    /// use dunlin_seq::{Batching, Client, ClientConfig, Counter, SeqService};
    ///
    /// # let network = LoopbackNetwork::new(LoopbackConfig { delay: std::time::Duration::ZERO, ..Default::default() });
    /// let server = Endpoint::new(network.endpoint(1)?, EndpointConfig::default())?;
    /// SeqService::register(&server, Arc::new(Counter::starting_at(1000)?), Batching::Bursts)?;
    ///
    /// let endpoint = Rc::new(Endpoint::new(network.endpoint(2)?, EndpointConfig::default())?);
    /// let client = Client::new(&endpoint, vec![Addr::Node(1)], ClientConfig::default());
    /// let work = async {
    ///     assert_eq!(client.next().await?, 1000);
    ///     assert_eq!(client.run(5).await?, 1001..1006);
    /// #     Ok::<(), Box<dyn std::error::Error>>(())
    /// };
    /// # let mut work = Box::pin(work);
    /// # loop {
    /// #     server.run_once();
    /// #     if let Some(done) = endpoint.poll_once(work.as_mut()) {
    /// #         break done?;
    /// #     }
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn register<T: Transport>(
        endpoint: &Endpoint<T>,
        counter: Arc<Counter>,
        batching: Batching,
    ) -> Result<SeqService, RegisterError> {
        let service = SeqService { counter, stats: Rc::default() };
        let (serving, timers) = (service.clone(), endpoint.timers());
        let together = if batching == Batching::Bursts { BURST_MAX } else { 1 };
        endpoint.register_burst(NEXT, move |burst| serving.serve(&timers, burst, together))?;
        let (serving, timers) = (service.clone(), endpoint.timers());
        endpoint.register(INFO, move |request| match check_info(request.payload()) {
            Ok(()) => request.respond(&serving.info(&timers).encode()),
            Err(code) => {
                serving.count(|stats| stats.bad += 1);
                request.fail(code as u32, code.message());
            }
        })?;
        Ok(service)
    }

    /// The counters.
    pub fn stats(&self) -> ServiceStats {
        self.stats.get()
    }

    /// Its counter.
    pub fn counter(&self) -> &Arc<Counter> {
        &self.counter
    }

    fn info(&self, timers: &Timers) -> Info {
        let (counter, stats) = (&self.counter, self.stats.get());
        Info {
            start: counter.start(),
            next: counter.next(),
            end: counter.end(),
            numbers: stats.numbers,
            requests: stats.requests,
            is_serving: counter.is_serving(|| timers.boot_now()),
            epoch: counter.epoch(),
        }
    }

    /// Counts a request that is not served, and returns the code and the message of its answer.
    #[cold]
    fn refuse(&self, stats: &mut ServiceStats, timers: &Timers, why: Refusal) -> (u32, Cow<'static, str>) {
        let code = match why {
            Refusal::Epoch(named) => {
                self.counter.heard_of(named);
                // A sequencer without a term knows no present epoch.
                if self.counter.is_serving(|| timers.boot_now()) {
                    stats.other_epoch += 1;
                    return (OTHER_EPOCH, self.counter.epoch().to_string().into());
                }
                stats.not_serving += 1;
                Code::NotServing
            }
            Refusal::Bad(code) => {
                stats.bad += 1;
                code
            }
            Refusal::Unavailable(Unavailable::Exhausted) => {
                stats.exhausted += 1;
                Code::Exhausted
            }
            Refusal::Unavailable(Unavailable::NotServing | Unavailable::Dry) => {
                stats.not_serving += 1;
                Code::NotServing
            }
        };
        (code as u32, code.message().into())
    }

    /// The length of the run that a request is for.
    #[inline]
    fn admit(&self, request: &[u8]) -> Result<u32, Refusal> {
        let Next { epoch, length } = Next::parse(request).map_err(Refusal::Bad)?;
        if self.counter.admits(epoch) { Ok(length) } else { Err(Refusal::Epoch(epoch)) }
    }

    fn count(&self, count: impl FnOnce(&mut ServiceStats)) {
        let mut stats = self.stats.get();
        count(&mut stats);
        self.stats.set(stats);
    }

    /// Draws for the requests of a burst, so many at once. The clock is read here, after they were received.
    fn serve(&self, timers: &Timers, burst: &mut RequestBurst<'_>, together: usize) {
        let mut stats = self.stats.get();
        let (mut places, mut lengths) = (ArrayVec::<usize, BURST_MAX>::new(), ArrayVec::<u32, BURST_MAX>::new());
        for i in 0..burst.len() {
            match self.admit(burst.payload(i)) {
                Ok(length) => {
                    places.push(i);
                    lengths.push(length);
                }
                Err(why) => {
                    let (code, message) = self.refuse(&mut stats, timers, why);
                    burst.fail(i, code, &message);
                }
            }
        }
        if places.is_empty() {
            return self.stats.set(stats);
        }
        let mut firsts = [Ok(0); BURST_MAX];
        for (lengths, firsts) in lengths.chunks(together).zip(firsts.chunks_mut(together)) {
            self.counter.draw_runs(|| timers.boot_now(), lengths, firsts);
            stats.draws += 1;
        }
        for ((i, length), first) in places.into_iter().zip(lengths).zip(firsts) {
            match first {
                Ok(first) => {
                    stats.requests += 1;
                    stats.numbers += u64::from(length);
                    burst.respond_written(i, ANSWER_BYTES, |out| write_first(out, first));
                }
                Err(Unavailable::Dry) => {
                    stats.pushed_back += 1;
                    burst.push_back(i);
                }
                Err(why) => {
                    let (code, message) = self.refuse(&mut stats, timers, Refusal::Unavailable(why));
                    burst.fail(i, code, &message);
                }
            }
        }
        self.stats.set(stats);
    }
}

#[inline]
fn write_first(out: &mut [u8], first: u64) -> usize {
    out[..ANSWER_BYTES].copy_from_slice(&first.to_le_bytes());
    ANSWER_BYTES
}

/// Why a request gets no numbers.
enum Refusal {
    Bad(Code),
    /// It names this epoch, which is not the server's.
    Epoch(u64),
    Unavailable(Unavailable),
}
