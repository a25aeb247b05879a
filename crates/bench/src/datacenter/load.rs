//! Batches of small calls, many in flight: the load of the paper's sections 6.2 and 6.3, for a member of a cluster.

use std::cell::RefCell;
use std::rc::Rc;

use dunlin_lab::measure::Latencies;
use dunlin_net::random::Random;
use dunlin_rpc::{Completion, ContinuationId, MsgBuf, Payload, Session};
use dunlin_sim::ThreadClock;

use super::member::{Failure, Member, SINK};
use crate::BenchError;

/// The shape of the load: a batch goes to random sessions, and when its last response arrives, the next batch is
/// issued.
#[derive(Debug, Clone, Copy)]
pub struct BatchLoad {
    /// Requests in a batch.
    pub batch: usize,
    /// Requests in flight; rounded down to whole batches.
    pub in_flight: usize,
    /// Bytes of a request.
    pub bytes: usize,
    /// Calls issued before this time, in nanoseconds, are not counted.
    pub tally_from: u64,
}

/// The results of calls, of one member or of many together.
#[derive(Debug, Default)]
pub struct BatchTally {
    /// Calls that were issued and ended during the count.
    pub calls: u64,
    /// From issuing a call to its continuation.
    pub latencies: Latencies,
}

struct Batch {
    missing: usize,
    issued: u64,
    buffers: Vec<Payload>,
}

struct State {
    load: BatchLoad,
    sessions: Vec<Session>,
    batches: Vec<Batch>,
    random: Random,
    clock: ThreadClock,
    continuation: Option<ContinuationId>,
    tally: Rc<RefCell<BatchTally>>,
    failure: Failure,
}

impl BatchLoad {
    /// Starts this load on a member's sessions, without end. Its calls are added to `tally`.
    ///
    /// # Errors
    /// [`BenchError::Alloc`].
    pub fn start(
        self,
        member: &Member,
        sessions: Vec<Session>,
        random: Random,
        tally: &Rc<RefCell<BatchTally>>,
    ) -> Result<(), BenchError> {
        let mut batches = Vec::new();
        for _ in 0..(self.in_flight / self.batch).max(1) {
            let buffers = (0..self.batch).map(|_| Ok(MsgBuf::copy_from(&vec![7; self.bytes])?.into()));
            batches.push(Batch { missing: 0, issued: 0, buffers: buffers.collect::<Result<_, BenchError>>()? });
        }
        let state = Rc::new(RefCell::new(State {
            load: self,
            sessions,
            batches,
            random,
            clock: member.clock(),
            continuation: None,
            tally: tally.clone(),
            failure: member.failure(),
        }));
        let shared = state.clone();
        let continuation =
            member.endpoint().register_continuation(move |completion| shared.borrow_mut().on_completion(completion));
        state.borrow_mut().continuation = Some(continuation);
        member.spawn(async move {
            let mut state = state.borrow_mut();
            (0..state.batches.len()).for_each(|index| state.issue(index));
            Ok(())
        });
        Ok(())
    }
}

impl State {
    fn issue(&mut self, index: usize) {
        let Some(continuation) = self.continuation else { return };
        let batch = &mut self.batches[index];
        batch.issued = self.clock.now();
        while let Some(request) = batch.buffers.pop() {
            let session = &self.sessions[self.random.below(self.sessions.len() as u64) as usize];
            match session.enqueue_request(SINK, request, continuation, index as u64) {
                Ok(()) => batch.missing += 1,
                Err(failure) => {
                    self.failure.borrow_mut().get_or_insert(failure.error.into());
                    return;
                }
            }
        }
    }

    fn on_completion(&mut self, completion: Completion) {
        let index = completion.tag as usize;
        let batch = &mut self.batches[index];
        match completion.result {
            Ok(_) if batch.issued >= self.load.tally_from => {
                let mut tally = self.tally.borrow_mut();
                tally.calls += 1;
                tally.latencies.record(self.clock.now() - batch.issued);
            }
            Ok(_) => {}
            Err(error) => {
                self.failure.borrow_mut().get_or_insert(error.into());
                return;
            }
        }
        batch.buffers.push(completion.request);
        batch.missing -= 1;
        if batch.missing == 0 {
            self.issue(index);
        }
    }
}
