//! Reads records on a separate thread, so that a slow file or pipe does not block sessions.

use std::thread;
use std::time::Duration;

use dunlin_records::{Numbered, RecordError};
use dunlin_serve::{ServeError, side};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Records that may wait between the file and the network.
const RECORDS_WAITING_MAX: usize = 64;
/// How often the receiver is woken without a record.
const TICK: Duration = Duration::from_millis(100);

/// What comes from the file.
#[derive(Debug)]
pub(super) enum Event {
    /// A record, or its error.
    Record(Result<Numbered, RecordError>),
    /// Time has passed.
    Tick,
    /// The end of the records.
    End,
}

/// Reads records on a separate thread until there are no more, or the receiver is gone.
///
/// # Errors
/// [`ServeError::System`].
pub(super) fn feed<R>(records: R) -> Result<Receiver<Event>, ServeError>
where
    R: Iterator<Item = Result<Numbered, RecordError>> + Send + 'static,
{
    let (sender, events) = channel(RECORDS_WAITING_MAX);
    let ticks = sender.clone();
    side::start("records", move || read(records, &sender))?;
    side::start("ticks", move || tick(&ticks))?;
    Ok(events)
}

fn read(records: impl Iterator<Item = Result<Numbered, RecordError>>, sender: &Sender<Event>) {
    for record in records {
        if sender.blocking_send(Event::Record(record)).is_err() {
            return;
        }
    }
    // A receiver that is gone needs no end.
    let _ = sender.blocking_send(Event::End);
}

fn tick(sender: &Sender<Event>) {
    while !sender.is_closed() {
        // If records are waiting, nobody needs to be woken.
        let _ = sender.try_send(Event::Tick);
        thread::sleep(TICK);
    }
}
