//! One connection: reads, lets the session work, writes.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;

use futures::future::join_all;
use tokio::task::yield_now;

use super::backend::Backend;
use super::batch::Batch;
use super::buffers::Input;
use super::connections::{Activity, Ending, Shared};
use super::counters::Count;
use super::service::Service;
use super::session::{Progress, Session};
use super::socket::Stream;
use super::stats;
use super::turn::Merged;
use crate::routing::Core;

/// Longest rest of a command that is copied when its connection waits for more, so that the buffer can serve others meanwhile. In bytes.
const CARRY_BYTES_MAX: usize = 2048;
/// Reads that found something, one after the other, before the other tasks of the core get their turn.
const READS_PER_TURN: u32 = 4;

/// Why a connection's work is over.
enum End {
    /// The client or the server closed it.
    Closed,
    /// The socket failed.
    Failed(io::Error),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        End::Failed(error)
    }
}

/// A connection and what it holds of its core.
pub(super) struct Connection<B: Backend> {
    service: Rc<Service<B>>,
    shared: Rc<Shared>,
    stream: Stream,
    session: Session,
    /// Borrowed while there is something in it or to be done.
    input: Option<Input>,
    /// What was in the input when it was given back.
    carried: Vec<u8>,
    output: Vec<u8>,
}

impl<B: Backend> Connection<B> {
    pub fn new(service: Rc<Service<B>>, shared: Rc<Shared>, stream: Stream) -> Connection<B> {
        let session = Session::new(service.value_bytes_max());
        Connection { service, shared, stream, session, input: None, carried: Vec::new(), output: Vec::new() }
    }

    /// Serves until either side ends it.
    pub async fn run(mut self) {
        if let Err(End::Failed(error)) = self.serve().await {
            tracing::debug!(peer = %self.shared.peer, %error, "a memcached connection failed");
        }
        self.put_buffers();
    }

    async fn serve(&mut self) -> Result<(), End> {
        let mut reads = 0;
        loop {
            let is_more = self.read(&mut reads).await?;
            if !is_more {
                return Err(End::Closed);
            }
            self.shared.last_command.set(self.service.backend().now());
            self.shared.activity.set(Activity::Working);
            self.consume().await?;
            self.shared.activity.set(Activity::Waiting);
            if reads >= READS_PER_TURN {
                reads = 0;
                self.make_way().await;
            }
        }
    }

    /// Lets the other tasks of the core run.
    async fn make_way(&self) {
        self.count(Count::ConnYields, 1);
        yield_now().await;
    }

    fn count(&self, count: Count, by: u64) {
        self.service.backend().state().counters.add_many(count, by);
    }

    /// Gives all borrowed memory back, but for the rest of a command.
    fn put_buffers(&mut self) {
        let mut buffers = self.service.buffers();
        if let Some(input) = self.input.take_if(|input| input.filled().len() <= CARRY_BYTES_MAX) {
            self.carried = input.filled().to_vec();
            buffers.put_input(input);
        }
        if self.output.capacity() > 0 {
            buffers.put_output(std::mem::take(&mut self.output));
        }
        drop(buffers);
        self.session.release();
    }

    /// Waits for input and reads some; false at the end of it. An idle connection holds no buffers.
    async fn read(&mut self, reads: &mut u32) -> Result<bool, End> {
        poll_fn(|context| {
            if self.shared.ending.get() == Some(Ending::Now) {
                return Poll::Ready(Ok(false));
            }
            while let Poll::Ready(ready) = self.stream.poll_read_ready(context) {
                ready?;
                let wanted = self.session.wanted();
                if self.input.is_none() {
                    self.borrow_input();
                }
                let (stream, Some(input)) = (&mut self.stream, &mut self.input) else { break };
                let room = input.room(wanted);
                if let Poll::Ready(len) = stream.poll_read(context, room) {
                    *reads += 1;
                    return Poll::Ready(len.map(|len| self.received(len)).map_err(End::Failed));
                }
            }
            *reads = 0;
            self.shared.note_waker(context.waker());
            if self.shared.ending.get() == Some(Ending::Stop) {
                return Poll::Ready(self.read_last());
            }
            self.put_buffers();
            Poll::Pending
        })
        .await
    }

    fn borrow_input(&mut self) -> &mut Input {
        self.input.get_or_insert_with(|| {
            let carried = std::mem::take(&mut self.carried);
            self.service.buffers().input(&carried)
        })
    }

    fn received(&mut self, len: usize) -> bool {
        self.count(Count::BytesRead, len as u64);
        if let Some(input) = &mut self.input {
            input.fill(len);
        }
        len > 0
    }

    /// What came before the server was told to stop.
    fn read_last(&mut self) -> Result<bool, End> {
        let wanted = self.session.wanted();
        self.borrow_input();
        let Some(input) = &mut self.input else { return Ok(false) };
        match self.stream.try_read(input.room(wanted)) {
            Ok(len) => Ok(self.received(len)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Does what the input asks.
    async fn consume(&mut self) -> Result<(), End> {
        if self.output.capacity() == 0 {
            self.output = self.service.buffers().output();
        }
        loop {
            let Some(input) = &mut self.input else { return Ok(()) };
            let (used, progress) = self.session.consume(input.filled(), self.service.backend(), &mut self.output);
            input.advance(used);
            match progress {
                Progress::More => return self.write().await,
                Progress::Full => {
                    self.write().await?;
                    self.make_way().await;
                }
                Progress::Forward => self.forward().await?,
                Progress::Ask(ask) => {
                    stats::answer(ask, self.service.backend(), self.service.settings(), &mut self.output).await;
                }
                Progress::Close => {
                    self.count(Count::BadConnections, 0);
                    self.write().await?;
                    return Err(End::Closed);
                }
            }
        }
    }

    /// Sends the batches of a turn to their cores and puts the answers in order.
    async fn forward(&mut self) -> Result<(), End> {
        let backend = self.service.backend();
        let send = |(lane, core, batch): (usize, Core, Box<Batch>)| async move {
            let len = batch.len() as u64;
            (lane, len, backend.forward(core, batch).await)
        };
        let batches = self.session.take_batches();
        self.count(Count::ForwardedBatches, batches.len() as u64);
        for (lane, len, result) in join_all(batches.into_iter().map(send)).await {
            match result {
                Ok(batch) => self.session.put_batch(lane, batch),
                Err(_) => self.count(Count::ForwardsFailed, len),
            }
        }
        loop {
            match self.session.merge(&mut self.output) {
                Merged::All => return Ok(()),
                Merged::Full => self.write().await?,
                Merged::Again(lane) => {
                    let Some((core, batch)) = self.session.take_batch(lane) else { continue };
                    self.count(Count::ForwardedBatches, 1);
                    let len = batch.len() as u64;
                    match self.service.backend().forward(core, batch).await {
                        Ok(batch) => self.session.put_batch(lane, batch),
                        Err(_) => self.count(Count::ForwardsFailed, len),
                    }
                }
            }
        }
    }

    /// Writes all answers. While the client does not read them, nothing more is read from it.
    async fn write(&mut self) -> Result<(), End> {
        let mut written = 0;
        while written < self.output.len() {
            match self.stream.try_write(&self.output[written..]) {
                Ok(0) => return Err(End::Closed),
                Ok(len) => written += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait_for_room().await?,
                Err(error) => return Err(error.into()),
            }
        }
        self.count(Count::BytesWritten, written as u64);
        self.output.clear();
        Ok(())
    }

    async fn wait_for_room(&self) -> Result<(), End> {
        self.count(Count::Backpressure, 1);
        let before = self.shared.activity.replace(Activity::Writing);
        poll_fn(|context| {
            if self.shared.ending.get() == Some(Ending::Now) {
                return Poll::Ready(Err(End::Closed));
            }
            self.shared.note_waker(context.waker());
            self.stream.poll_write_ready(context).map_err(End::Failed)
        })
        .await?;
        self.shared.activity.set(before);
        Ok(())
    }
}
