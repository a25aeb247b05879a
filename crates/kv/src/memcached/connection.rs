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
        self.service.lookout().note_read();
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
            // Its core may have failed while it waited.
            if self.shared.ending.get() == Some(Ending::Now) {
                return Err(End::Closed);
            }
            let Some(input) = &mut self.input else { return Ok(()) };
            let (used, progress) = self.session.consume(input.filled(), self.service.backend(), &mut self.output);
            input.advance(used);
            match progress {
                Progress::More => return self.write().await,
                Progress::Full => {
                    self.write().await?;
                    self.make_way().await;
                }
                Progress::Forward => {
                    let Connection { session, service, output, stream, shared, .. } = self;
                    let write = async |output: &mut Vec<u8>| write(service, shared, stream, output).await;
                    merge(session, service.backend(), output, write).await?;
                }
                Progress::Ask(ask) => {
                    stats::answer(ask, self.service.backend(), self.service.settings(), &mut self.output).await;
                }
                Progress::Close => {
                    self.write().await?;
                    return Err(End::Closed);
                }
            }
        }
    }

    async fn write(&mut self) -> Result<(), End> {
        write(&self.service, &self.shared, &self.stream, &mut self.output).await
    }
}

/// Writes all answers. While the client does not read them, nothing more is read from it.
async fn write<B: Backend>(service: &Service<B>, shared: &Shared, stream: &Stream, output: &mut Vec<u8>) -> Result<(), End> {
    let counters = &service.backend().state().counters;
    let mut written = 0;
    while written < output.len() {
        match stream.try_write(&output[written..]) {
            Ok(0) => return Err(End::Closed),
            Ok(len) => written += len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                counters.add(Count::Backpressure);
                wait_for_room(shared, stream).await?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    counters.add_many(Count::BytesWritten, written as u64);
    output.clear();
    Ok(())
}

async fn wait_for_room(shared: &Shared, stream: &Stream) -> Result<(), End> {
    let before = shared.activity.replace(Activity::Writing);
    poll_fn(|context| {
        if shared.ending.get() == Some(Ending::Now) {
            return Poll::Ready(Err(End::Closed));
        }
        shared.note_waker(context.waker());
        stream.poll_write_ready(context).map_err(End::Failed)
    })
    .await?;
    shared.activity.set(before);
    Ok(())
}

/// Sends the batches of a session's turn to their cores, and puts the answers in order into the output, which `write` empties whenever it
/// has as much as it may.
pub(super) async fn merge<B: Backend, E>(
    session: &mut Session,
    backend: &B,
    output: &mut Vec<u8>,
    mut write: impl AsyncFnMut(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let counters = &backend.state().counters;
    let send = |(lane, core, batch): (usize, Core, Box<Batch>)| async move {
        let len = batch.len() as u64;
        counters.add(Count::ForwardedBatches);
        let result = backend.forward(core, batch).await;
        if result.is_err() {
            counters.add_many(Count::ForwardsFailed, len);
        }
        (lane, result)
    };
    let batches = session.take_batches();
    for (lane, result) in join_all(batches.into_iter().map(send)).await {
        if let Ok(batch) = result {
            session.put_batch(lane, batch);
        }
    }
    loop {
        match session.merge(output) {
            Merged::All => return Ok(()),
            Merged::Full => write(output).await?,
            Merged::Again(lane) => {
                let Some((core, batch)) = session.take_batch(lane) else { continue };
                if let (_, Ok(batch)) = send((lane, core, batch)).await {
                    session.put_batch(lane, batch);
                }
            }
        }
    }
}
