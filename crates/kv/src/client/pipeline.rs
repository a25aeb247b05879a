//! Operations without futures: a callback runs when each ends. For load generators, and programs with very many
//! concurrent operations.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use dunlin_net::Transport;
use dunlin_rpc::{CallError, CallOptions, ContinuationId, MsgBuf};
use dunlin_serve::channel::is_session_over;

use super::KvClient;
use super::error::KvError;
use super::links::Links;
use super::operations::check_key;
use crate::wire::{OPERATE, Operation, Status};

/// A finished operation of a [`Pipeline`].
#[derive(Debug)]
pub struct Finished {
    /// The tag that was given to it.
    pub tag: u64,
    /// The response, to be parsed like that of the operation, or why there is none.
    pub result: Result<MsgBuf, CallError>,
}

impl Finished {
    /// Returns the status of the response; `None` if there is none or it is malformed.
    #[inline]
    pub fn status(&self) -> Option<Status> {
        Status::of(self.result.as_ref().ok()?)
    }
}

/// Many concurrent operations, each sent to the core that owns its key, with a callback for their results. Operations
/// do not allocate, and are not retried: when the server goes away or moves its keys, create another pipeline.
///
/// The callback runs in the endpoint's event loop and may submit further operations; it must hold the pipeline weakly,
/// otherwise the pipeline is never freed. The endpoint keeps what a pipeline registers for its whole life, so create
/// few.
pub struct Pipeline {
    links: Rc<Links>,
    lanes: Vec<Vec<ContinuationId>>,
    in_flight: Rc<Cell<usize>>,
    options: CallOptions,
}

impl Pipeline {
    /// Creates a pipeline over the sessions of `client`. `on_end` runs for each operation that ends.
    ///
    /// # Errors
    /// As [`KvClient::connect`].
    pub async fn new<T: Transport + 'static>(
        client: &KvClient<T>,
        on_end: impl FnMut(Finished) + 'static,
    ) -> Result<Pipeline, KvError> {
        let links = client.connection.links().await?;
        let connection = Rc::downgrade(&client.connection);
        let on_end = Rc::new(RefCell::new(on_end));
        let in_flight = Rc::new(Cell::new(0));
        let lane = |core: usize, lane: usize| {
            let (links, connection) = (Rc::downgrade(&links), connection.clone());
            let (on_end, in_flight) = (on_end.clone(), in_flight.clone());
            client.connection.endpoint.register_continuation(move |completion| {
                in_flight.set(in_flight.get() - 1);
                if let Some(links) = links.upgrade() {
                    let count = &links.cores[core].lanes[lane].in_flight;
                    count.set(count.get() - 1);
                    let is_over = completion.result.as_ref().err().is_some_and(is_session_over);
                    if is_over && let Some(connection) = connection.upgrade() {
                        connection.leave(&links);
                    }
                }
                // Its buffer is returned first, for the operation that the callback may submit.
                drop(completion.request);
                (on_end.borrow_mut())(Finished { tag: completion.tag, result: completion.result });
            })
        };
        let lanes = links.cores.iter().enumerate();
        let lanes =
            lanes.map(|(number, core)| (0..core.lanes.len()).map(|place| lane(number, place)).collect()).collect();
        let options = client.config.deadline.map(CallOptions::timeout).unwrap_or_default();
        Ok(Pipeline { links, lanes, in_flight, options })
    }

    /// Begins an operation. Its request leaves with the next iteration of the event loop.
    ///
    /// # Errors
    /// [`KvError::Key`], [`KvError::NoBuffer`], or [`KvError::Call`], for example [`CallError::QueueFull`]: nothing was
    /// sent, and the callback does not run.
    #[inline]
    pub fn submit(&self, operation: &Operation<'_>, tag: u64) -> Result<(), KvError> {
        check_key(operation.key())?;
        let request = MsgBuf::written(operation.encoded_len(), |out| operation.encode(out))?;
        let number = usize::from(self.links.map.routing.owner(operation.key()));
        let core = &self.links.cores[number];
        let place = core.choose();
        let (lane, continuation) = (&core.lanes[place], self.lanes[number][place]);
        lane.session
            .enqueue_request_with(OPERATE, request, continuation, tag, self.options)
            .map_err(|failure| KvError::Call { error: failure.error })?;
        lane.in_flight.set(lane.in_flight.get() + 1);
        self.in_flight.set(self.in_flight.get() + 1);
        Ok(())
    }

    /// Returns the number of operations in flight.
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.in_flight.get()
    }
}
