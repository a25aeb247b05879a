//! The client of a connection: why it ends, the memory that is held for it, and how answers reach it.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;

use super::backend::Backend;
use super::budget::Held;
use super::connections::{Activity, Ending, Shared};
use super::counters::Count;
use super::hosts::Host;
use super::limits::UNREAD_BYTES_MIN;
use super::output::Output;
use super::service::Service;
use super::socket::Stream;

/// Why a connection ends.
pub(super) enum End {
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

/// The memory that a connection holds of its core's budget.
pub(super) struct Holdings {
    /// The start of a command, of at most [`SHORT_BYTES`].
    pub short: Held,
    /// A buffer of [`READ_BYTES`].
    pub read: Held,
    /// A buffer for a command that does not fit in the others.
    pub command: Held,
    pub turn: Held,
    pub answers: Held,
}

impl Holdings {
    pub fn of(host: &Host) -> Holdings {
        Holdings {
            short: Held::nothing(&host.commands),
            read: Held::nothing(&host.reads),
            command: Held::nothing(&host.commands),
            turn: Held::nothing(&host.turns),
            answers: Held::nothing(&host.answers),
        }
    }

    /// Returns the bytes that others may wait for, also those beside the pools.
    pub fn bytes(&self) -> usize {
        let held = [&self.short, &self.read, &self.command, &self.turn, &self.answers];
        held.into_iter().map(|held| held.bytes() + held.bytes_beside()).sum()
    }
}

/// Waits for work of the server, unless the connection is to end at once.
pub(super) async fn unless_ended<R>(shared: &Shared, work: impl Future<Output = R>) -> Result<R, End> {
    let mut work = pin!(work);
    poll_fn(|context| {
        if shared.ending.get() == Some(Ending::Now) {
            return Poll::Ready(Err(End::Closed));
        }
        shared.note_waker(context.waker());
        work.as_mut().poll(context).map(Ok)
    })
    .await
}

/// The client of a connection, as a destination of answers.
pub(super) struct Client<'a, B: Backend> {
    pub service: &'a Service<B>,
    pub shared: &'a Shared,
    pub stream: &'a Stream,
    pub held: &'a mut Holdings,
}

impl<B: Backend> Client<'_, B> {
    /// Writes bytes from a buffer of this capacity. While the client does not read them, the server reads nothing from
    /// it.
    async fn write_bytes(&mut self, bytes: &[u8], capacity: usize) -> Result<(), End> {
        // Another core may have executed the command after the last snapshot was saved: it must not be acknowledged.
        if self.shared.ending.get() == Some(Ending::Now) {
            return Err(End::Closed);
        }
        let counters = &self.service.backend().state().counters;
        let mut written = 0;
        while written < bytes.len() {
            match self.stream.try_write(&bytes[written..]) {
                Ok(0) => return Err(End::Closed),
                Ok(len) => written += len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    counters.add(Count::Backpressure);
                    self.hold_unread(capacity).await?;
                    self.wait_for_room().await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        counters.add_many(Count::BytesWritten, written as u64);
        self.held.answers.set(0);
        self.shared.note_progress(bytes.len(), self.held.bytes());
        Ok(())
    }

    /// Accounts for the memory of answers that the client does not read at once. A small amount needs no room, unless
    /// many connections have some; a larger one may have to wait in line again, since connections that ran while other
    /// cores worked may have taken the room.
    async fn hold_unread(&mut self, bytes: usize) -> Result<(), End> {
        if bytes <= UNREAD_BYTES_MIN && self.held.answers.may_be_beside(bytes) {
            self.held.answers.set_beside(bytes);
            return Ok(());
        }
        if !self.held.answers.can_have(bytes) {
            self.reserve(bytes).await?;
        }
        self.held.answers.set(bytes);
        Ok(())
    }

    async fn wait_for_room(&self) -> Result<(), End> {
        let shared = self.shared;
        let before = shared.activity.replace(Activity::Writing);
        shared.note_held(self.held.bytes(), self.service.backend().now());
        poll_fn(|context| {
            if shared.ending.get() == Some(Ending::Now) {
                return Poll::Ready(Err(End::Closed));
            }
            shared.note_waker(context.waker());
            self.stream.poll_write_ready(context).map_err(End::Failed)
        })
        .await?;
        shared.activity.set(before);
        Ok(())
    }
}

impl<B: Backend> Output for Client<'_, B> {
    type Error = End;

    async fn write(&mut self, output: &mut Vec<u8>) -> Result<(), End> {
        self.write_bytes(output, output.capacity()).await?;
        output.clear();
        Ok(())
    }

    async fn write_long(&mut self, answer: &[u8]) -> Result<(), End> {
        self.write_bytes(answer, answer.len()).await
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.held.answers.can_have(bytes)
    }

    async fn reserve(&mut self, bytes: usize) -> Result<(), End> {
        let (shared, held) = (self.shared, &mut *self.held);
        // A connection that waits for a pool must hold nothing of it.
        held.answers.set(0);
        let before = shared.activity.get();
        shared.enter_line(self.service.backend().now());
        poll_fn(|context| {
            if shared.ending.get() == Some(Ending::Now) {
                return Poll::Ready(Err(End::Closed));
            }
            shared.note_waker(context.waker());
            held.answers.poll_at_least(bytes, context).map(Ok)
        })
        .await?;
        shared.leave_line(before, self.service.backend().now());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn a_connection_that_must_end_waits_for_nothing() {
        let shared = Shared::new(1, String::new(), 0);
        let ends = async {
            yield_now().await;
            shared.end(Ending::Now);
        };
        let (ended, ()) = futures::future::join(unless_ended(&shared, pending::<()>()), ends).await;
        assert!(matches!(ended, Err(End::Closed)));
        assert!(unless_ended(&shared, async {}).await.is_err(), "nothing begins any more");
    }
}
