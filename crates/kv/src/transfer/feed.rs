//! Records from a thread that reads them, so that a slow file or pipe keeps no session waiting.

use std::thread;
use std::time::Duration;

use dunlin_records::{Numbered, RecordError};
use dunlin_serve::{ServeError, side};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Records that wait between the file and the network.
const RECORDS_WAITING_MAX: usize = 64;
/// How often whoever waits for records is woken without one.
const TICK: Duration = Duration::from_millis(100);

/// What comes from the file.
#[derive(Debug)]
pub(super) enum Event {
    /// A record, or what is wrong with it.
    Record(Result<Numbered, RecordError>),
    /// Time has passed.
    Tick,
    /// There is no more.
    End,
}

/// Reads records on a thread of its own until there are no more, or nobody wants them.
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
    // Whoever has gone needs no end.
    let _ = sender.blocking_send(Event::End);
}

fn tick(sender: &Sender<Event>) {
    while !sender.is_closed() {
        // Where records wait nobody needs to be woken.
        let _ = sender.try_send(Event::Tick);
        thread::sleep(TICK);
    }
}
