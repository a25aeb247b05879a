//! Where answers go, and how those of other cores are merged into them.

use futures::future::join_all;

use super::backend::{Backend, Unavailable};
use super::batch::Batch;
use super::budget::Memory;
use super::counters::Count;
use super::session::Session;
use super::turn::Merged;
use crate::routing::Core;

/// A destination of answers.
pub(super) trait Output {
    type Error;

    /// Writes all answers, and empties the buffer.
    async fn write(&mut self, output: &mut Vec<u8>) -> Result<(), Self::Error>;

    /// Writes one answer without a copy.
    async fn write_long(&mut self, answer: &[u8]) -> Result<(), Self::Error>;

    /// Whether there is memory for a long answer.
    fn has_room(&self, bytes: usize) -> bool;

    /// Waits until there is memory for a long answer.
    async fn reserve(&mut self, bytes: usize) -> Result<(), Self::Error>;
}

/// Sends the batches of a session's turn to their cores, and merges the answers in order into the output, which is
/// written whenever it reaches its limit. A long answer is requested when it is its turn, and written without a copy.
///
/// If a core does not return its batch, writes the answers before the first of that batch, and returns [`Unavailable`]:
/// then the connection must be closed. A client would take an error in its place for the end of a retrieval that goes
/// on, or for the answer to another command if it expects none.
pub(super) async fn merge<B: Backend, O: Output>(
    session: &mut Session,
    backend: &B,
    output: &mut Vec<u8>,
    client: &mut O,
) -> Result<Result<(), Unavailable>, O::Error> {
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
            Merged::All => return Ok(Ok(())),
            Merged::Lost => {
                client.write(output).await?;
                return Ok(Err(Unavailable));
            }
            Merged::Full => client.write(output).await?,
            Merged::Long => {
                client.write_long(session.long_answer()).await?;
                session.pass_long_answer();
            }
            Merged::Again(lane) => {
                // Write before more is held.
                client.write(output).await?;
                let bytes = session.long_answer_bytes_max();
                let memory = if client.has_room(bytes) || !session.got_on(lane) {
                    client.reserve(bytes).await?;
                    Memory::Ample
                } else {
                    Memory::Short
                };
                let Some((core, batch)) = session.take_batch(lane, memory) else { continue };
                if let (_, Ok(batch)) = send((lane, core, batch)).await {
                    session.put_batch(lane, batch);
                }
            }
        }
    }
}
