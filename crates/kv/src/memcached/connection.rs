//! One connection: reads, runs the session, writes.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::task::yield_now;

use super::backend::{Backend, must_wait, wait_for_turn};
use super::budget::Memory;
use super::buffers::{Input, SPARE_OUTPUT_BYTES_MAX};
use super::client::{Client, End, Holdings, unless_ended};
use super::connections::{Activity, Ending, Shared};
use super::counters::Count;
use super::execute::Changes;
use super::hosts::Host;
use super::limits::{OUTPUT_BYTES_MAX, READ_BYTES, SHORT_BYTES, TURN_ANSWER_BYTES, UNREAD_BYTES_MIN};
use super::output::{Output as _, merge};
use super::service::Service;
use super::session::{Progress, Session};
use super::socket::Stream;
use super::stats;
use crate::tier::Holds;

/// Bytes around a value in an answer, at most.
const ANSWER_LINE_BYTES: usize = 512;
/// Successful reads in a row before the other tasks of the core get their turn.
const READS_PER_TURN: u32 = 4;

/// A connection, and its share of its core's resources.
pub(super) struct Connection<B: Backend> {
    service: Rc<Service<B>>,
    shared: Rc<Shared>,
    stream: Stream,
    session: Session,
    /// Borrowed while it has contents or work.
    input: Option<Input>,
    /// The contents of the input when it was returned.
    carried: Vec<u8>,
    output: Vec<u8>,
    held: Holdings,
}

impl<B: Backend> Connection<B> {
    pub fn new(service: Rc<Service<B>>, shared: Rc<Shared>, stream: Stream, host: &Host, client: u64) -> Connection<B> {
        let session = Session::new(service.value_bytes_max()).with_client(client);
        let held = Holdings::of(host);
        Connection { service, shared, stream, session, input: None, carried: Vec::new(), output: Vec::new(), held }
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
            // A command may have waited for long.
            self.shared.last_command.set(self.service.backend().now());
            self.shared.activity.set(Activity::Waiting);
            if reads >= READS_PER_TURN {
                reads = 0;
                self.make_way().await;
            }
        }
    }

    /// Lets the other tasks of the core run. All answers must have been written.
    async fn make_way(&mut self) {
        self.count(Count::ConnYields, 1);
        debug_assert!(self.output.is_empty(), "answers are written before others run");
        // Memory that a connection holds while others run is counted, but that of a long answer is not.
        if self.output.capacity() > SPARE_OUTPUT_BYTES_MAX {
            self.output = Vec::new();
        }
        yield_now().await;
    }

    fn count(&self, count: Count, by: u64) {
        self.service.backend().state().counters.add_many(count, by);
    }

    /// Returns all borrowed memory, except for an incomplete command.
    fn put_buffers(&mut self) {
        if self.kept() <= SHORT_BYTES {
            self.carry();
        } else {
            self.shrink_input();
        }
        self.put_answers();
        self.note_held();
    }

    /// Returns the number of bytes read and not consumed.
    fn kept(&self) -> usize {
        self.input.as_ref().map_or(self.carried.len(), |input| input.filled().len())
    }

    /// Returns the input buffer, and keeps only the start of a command.
    fn carry(&mut self) {
        self.carry_input();
        self.held.command.set(0);
    }

    /// Returns the memory of a finished command, before the connection may wait with the answers of later ones.
    fn release_command(&mut self) {
        if self.held.command.bytes() > 0 && self.kept() <= SHORT_BYTES {
            self.carry();
            self.hold_short();
        }
    }

    /// Returns the input buffer, keeps only the start of a command, and stays in line for a longer command.
    fn carry_input(&mut self) {
        if let Some(input) = self.input.take() {
            self.carried = input.filled().to_vec();
            self.service.buffers().put_input(input);
        }
        self.held.read.set(0);
        self.held.short.set_beside(self.carried.len());
    }

    /// Holds no more than the maximum of the command at the front of the input: the previous one may have been longer.
    fn shrink_input(&mut self) {
        let needed = self.needed();
        if self.held.command.bytes() <= needed {
            return;
        }
        if let Some(input) = &mut self.input {
            let kept = input.filled().to_vec();
            let len = kept.len().max(needed.min(READ_BYTES));
            *input = Input::of(kept, len);
        }
        self.held.command.set(needed);
    }

    /// Returns the maximum length of the command at the front of the input, plus what may be read after it: no more
    /// than every connection may keep.
    fn needed(&self) -> usize {
        self.session.command_bytes_max() + SHORT_BYTES
    }

    /// Returns the memory for answers, and what is held for other cores.
    fn put_answers(&mut self) {
        self.put_output();
        self.held.turn.set(0);
        self.held.answers.set(0);
    }

    /// Returns the memory in which answers are built.
    fn put_output(&mut self) {
        if self.output.capacity() > 0 {
            self.service.buffers().put_output(std::mem::take(&mut self.output));
        }
        self.session.release();
    }

    /// Shrinks the memory for answers to what a connection may have when memory is short.
    fn shrink_output(&mut self) {
        if self.session.turn_bytes() > SHORT_BYTES {
            self.session.release();
        }
        if self.output.capacity() > SHORT_BYTES {
            // Copies them to new memory: shrinking a buffer in place leaves a hole too small for the next one of its
            // size.
            let answers = self.output[..].to_vec();
            self.service.buffers().put_output(std::mem::replace(&mut self.output, answers));
        }
    }

    fn note_held(&self) {
        self.shared.note_held(self.held.bytes(), self.service.backend().now());
    }

    /// Waits for input and reads some; returns false at the end of it. An idle connection holds no buffers.
    async fn read(&mut self, reads: &mut u32) -> Result<bool, End> {
        poll_fn(|context| {
            if self.shared.ending.get() == Some(Ending::Now) {
                return Poll::Ready(Ok(false));
            }
            while let Poll::Ready(ready) = self.stream.poll_read_ready(context) {
                ready?;
                let Poll::Ready(most) = self.poll_input(context) else {
                    // A stopping server does not wait for input that it has not received.
                    let stops = self.shared.ending.get() == Some(Ending::Stop);
                    return if stops { Poll::Ready(Ok(false)) } else { Poll::Pending };
                };
                if self.shared.activity.get() == Activity::Starved {
                    self.shared.leave_line(Activity::Waiting, self.service.backend().now());
                }
                let (stream, Some(input)) = (&mut self.stream, &mut self.input) else { break };
                let len_max = most.saturating_sub(input.filled().len());
                let room = input.room(most);
                let len_max = room.len().min(len_max);
                if let Poll::Ready(len) = stream.poll_read(context, &mut room[..len_max]) {
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

    /// Borrows a buffer to read into, as soon as the budget has the memory that it may need. Returns how many bytes it
    /// may contain then.
    fn poll_input(&mut self, context: &mut Context<'_>) -> Poll<usize> {
        let (wanted, kept, needed) = (self.session.wanted(), self.kept(), self.needed());
        let is_long = self.held.command.bytes() > 0;
        if is_long && kept <= SHORT_BYTES && (wanted <= SHORT_BYTES || self.held.command.bytes() < needed) {
            // The command that it was for is finished.
            self.carry();
        }
        if self.held.command.bytes() == 0 {
            if wanted <= READ_BYTES && self.held.read.can_have(READ_BYTES) {
                self.hold_read();
                return Poll::Ready(READ_BYTES);
            }
            if wanted <= SHORT_BYTES && kept < SHORT_BYTES {
                self.hold_short();
                return Poll::Ready(SHORT_BYTES);
            }
        }
        ready!(self.poll_memory(context, needed));
        let most = self.hold_long();
        // Room for the longest command suffices for any that may follow.
        let is_for_any = most >= self.session.longest_command_bytes() + SHORT_BYTES;
        Poll::Ready(if is_for_any { most } else { most.min(wanted + SHORT_BYTES) })
    }

    /// Takes a buffer of [`READ_BYTES`], which must be available.
    fn hold_read(&mut self) {
        if self.input.as_ref().is_some_and(|input| input.capacity() < READ_BYTES) {
            self.carry();
        }
        self.held.read.set(READ_BYTES);
        self.held.short.set(0);
        // The connection may have been in line.
        self.held.command.set(0);
        self.borrow_input();
    }

    /// Takes a buffer of [`SHORT_BYTES`].
    fn hold_short(&mut self) {
        if self.input.is_none() {
            self.input = Some(self.service.buffers().short(&std::mem::take(&mut self.carried)));
            self.held.short.set_beside(SHORT_BYTES);
        }
    }

    /// Takes a buffer that can grow to the memory held for a command, and returns that size.
    fn hold_long(&mut self) -> usize {
        let bytes = self.held.command.bytes();
        if self.input.as_ref().is_none_or(|input| input.capacity() < bytes.min(READ_BYTES)) {
            self.carry_input();
            if bytes < READ_BYTES {
                self.input = Some(Input::of(std::mem::take(&mut self.carried), bytes));
            }
            self.borrow_input();
        }
        self.held.read.set(0);
        self.held.short.set(0);
        bytes
    }

    /// Waits until the budget has memory for a command.
    fn poll_memory(&mut self, context: &mut Context<'_>, bytes: usize) -> Poll<()> {
        if self.held.command.poll_at_least(bytes, context).is_ready() {
            return Poll::Ready(());
        }
        if self.shared.activity.get() != Activity::Starved {
            self.count(Count::MemoryWaits, 1);
            self.shared.enter_line(self.service.backend().now());
            if self.kept() <= SHORT_BYTES {
                self.carry_input();
            }
            self.put_answers();
        }
        self.shared.note_waker(context.waker());
        Poll::Pending
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

    /// Reads input that arrived before the server was told to stop.
    fn read_last(&mut self) -> Result<bool, End> {
        let most = self.session.wanted() + SHORT_BYTES;
        self.borrow_input();
        let Some(input) = &mut self.input else { return Ok(false) };
        match self.stream.try_read(input.room(most)) {
            Ok(len) => Ok(self.received(len)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Executes the commands in the input.
    async fn consume(&mut self) -> Result<(), End> {
        let (mut waited, mut has_turn) = (0, false);
        // Keeps what was read from the tier in memory until the commands have run that wait for it.
        let mut holds = Holds::default();
        loop {
            // A turn is for what runs right after the wait for it.
            let may_change = std::mem::take(&mut has_turn) || !must_wait(self.service.backend());
            self.session.set_changes(if may_change { Changes::Run } else { Changes::Wait });
            self.session.set_waited(waited);
            let memory = if self.has_memory() { Memory::Ample } else { Memory::Short };
            self.session.set_memory(memory);
            if memory == Memory::Short {
                self.shrink_output();
            } else if self.output.capacity() == 0 {
                self.output = self.service.buffers().output();
            }
            // Its core may have failed while it waited.
            if self.shared.ending.get() == Some(Ending::Now) {
                return Err(End::Closed);
            }
            let Some(input) = &mut self.input else { return Ok(()) };
            let (used, progress) = self.session.consume(input.filled(), self.service.backend(), &mut self.output);
            input.advance(used);
            // A change that has to wait for its turn keeps its record meanwhile: reading it again would take the turn.
            if progress != Progress::Turn || used > 0 || !self.output.is_empty() {
                holds.clear();
            }
            self.shared.note_progress(used, self.held.bytes());
            if progress != Progress::More || self.output.len() > UNREAD_BYTES_MIN {
                self.release_command();
            }
            match progress {
                Progress::More => return self.write().await,
                Progress::Full => {
                    self.write().await?;
                    self.make_way().await;
                }
                Progress::Tier => {
                    // The client need not wait for the answers that there are.
                    self.write().await?;
                    let (tickets, client) = (self.session.take_awaited(), self.session.client());
                    let begun = Instant::now();
                    let fetched = unless_ended(&self.shared, self.service.backend().fetch(tickets, client)).await?;
                    holds = fetched.map_err(io::Error::other)?;
                    waited += u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
                }
                // All answers must have been written before it waits.
                Progress::Turn if !self.output.is_empty() => self.write().await?,
                Progress::Turn => {
                    // Thousands may be in line: they keep their commands, and no memory for answers.
                    self.put_answers();
                    waited += wait_for_turn(self.service.backend()).await;
                    has_turn = true;
                }
                // Earlier answers have used up the room.
                Progress::Memory if !self.output.is_empty() => self.write().await?,
                Progress::Memory => self.starve().await,
                Progress::Forward => {
                    let bytes = self.session.turn_bytes_with_answers();
                    match memory {
                        Memory::Ample => self.held.turn.set(bytes),
                        Memory::Short => self.held.turn.set_beside(bytes),
                    }
                    let Connection { session, service, output, stream, shared, held, .. } = self;
                    let mut client = Client { service, shared, stream, held };
                    let merged = unless_ended(shared, merge(session, service.backend(), output, &mut client)).await??;
                    merged.map_err(io::Error::other)?;
                    self.held.turn.set(0);
                }
                Progress::Ask(ask) => {
                    let Connection { service, shared, stream, output, held, .. } = self;
                    let mut client = Client { service, shared, stream, held };
                    stats::answer(ask, service.backend(), service.settings(), output, &mut client).await?;
                }
                Progress::Close => {
                    self.write().await?;
                    return Err(End::Closed);
                }
            }
        }
    }

    /// Whether there is memory for the longest answers, and for a turn if there are other cores.
    #[inline]
    fn has_memory(&self) -> bool {
        let backend = self.service.backend();
        let has_turn = backend.owns_all() || self.held.turn.can_have(self.turn_bytes_max());
        has_turn && self.held.answers.can_have(self.answer_bytes_max())
    }

    /// Waits in line for that memory. What it then has is more than needed, until answers are written.
    #[cold]
    async fn starve(&mut self) {
        self.count(Count::MemoryWaits, 1);
        self.put_answers();
        self.note_held();
        let before = self.shared.activity.get();
        self.shared.enter_line(self.service.backend().now());
        let answer_bytes = self.answer_bytes_max();
        let turn_bytes = if self.service.backend().owns_all() { 0 } else { self.turn_bytes_max() };
        let Connection { shared, held, .. } = self;
        poll_fn(|context| {
            shared.note_waker(context.waker());
            if shared.ending.get() == Some(Ending::Now) {
                return Poll::Ready(());
            }
            ready!(held.turn.poll_at_least(turn_bytes, context));
            held.answers.poll_at_least(answer_bytes, context)
        })
        .await;
        self.shared.leave_line(before, self.service.backend().now());
    }

    /// Returns the maximum length of answers before they are written.
    fn answer_bytes_max(&self) -> usize {
        OUTPUT_BYTES_MAX + self.service.value_bytes_max() + ANSWER_LINE_BYTES
    }

    /// Returns the maximum memory of a turn: commands, answers built here, and short ones of other cores.
    fn turn_bytes_max(&self) -> usize {
        let commands = self.input.as_ref().map_or(0, |input| input.filled().len());
        commands + self.answer_bytes_max() + TURN_ANSWER_BYTES
    }

    async fn write(&mut self) -> Result<(), End> {
        // Keep the memory for the next turn only if there is room.
        if !self.held.turn.can_have(self.session.turn_bytes()) {
            self.session.release();
        }
        self.held.turn.set(self.session.turn_bytes());
        let Connection { service, shared, stream, output, held, .. } = self;
        Client { service, shared, stream, held }.write(output).await
    }
}
