//! Loads records into a server.

use std::collections::HashSet;
use std::fmt::{self, Debug, Display};
use std::future::Future;

use dunlin_net::Transport;
use dunlin_records::{Numbered, Record, RecordError};
use dunlin_serve::ServeError;
use dunlin_store::{Put, Refused};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use thiserror::Error;
use tokio::sync::mpsc::Receiver;
use tokio::sync::mpsc::error::TryRecvError;

use super::feed::{Event, feed};
use crate::client::{KvClient, KvError};

/// Bytes of keys and values in flight, plus one record.
const BYTES_IN_FLIGHT_MAX: usize = 32 << 20;

/// How records are loaded.
#[derive(Debug, Clone, Copy)]
pub struct Loading {
    in_flight: usize,
    is_strict: bool,
}

impl Loading {
    /// At most `in_flight` records in flight, at least one; records that the server rejects are left out.
    pub fn new(in_flight: usize) -> Loading {
        Loading { in_flight: in_flight.max(1), is_strict: false }
    }

    /// The same, but ends at the first record that is rejected.
    #[must_use]
    pub fn strict(self) -> Loading {
        Loading { is_strict: true, ..self }
    }
}

/// The result of loading.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Records loaded.
    pub records: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Records that were left out.
    pub skipped: u64,
}

/// Where records are loaded.
pub trait Target {
    /// Why a record was not stored.
    type Error: Debug + Display;

    /// Stores a record.
    fn store(&self, record: &Record) -> impl Future<Output = Result<(), Self::Error>>;

    /// Whether an error is the fault of the record, so that others can be stored nevertheless.
    fn is_misfit(error: &Self::Error) -> bool;
}

impl<T: Transport + 'static> Target for KvClient<T> {
    type Error = KvError;

    async fn store(&self, record: &Record) -> Result<(), KvError> {
        let put = Put { flags: record.flags, expires: record.expires, ..Put::default() };
        self.put(&record.key, &record.value, put).await.map(drop)
    }

    fn is_misfit(error: &KvError) -> bool {
        matches!(error, KvError::Key(_) | KvError::ValueTooLarge { .. } | KvError::Refused(Refused::TooLarge { .. }))
    }
}

/// A record that was left out.
#[derive(Debug)]
pub struct Skipped<E = KvError> {
    /// Its line, counted from 1.
    pub line: u64,
    /// The reason.
    pub why: Misfit<E>,
}

impl<E: Display> Display for Skipped<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            // It names the line itself.
            Misfit::Record(error) => Display::fmt(error, f),
            Misfit::Server { key, error } => write!(f, "line {}: key {key:?}: {error}", self.line),
        }
    }
}

/// Why a record cannot be loaded.
#[derive(Debug)]
pub enum Misfit<E = KvError> {
    /// It is malformed.
    Record(RecordError),
    /// The server rejects it: its key or value is too long.
    Server {
        /// The beginning of its key.
        key: String,
        /// The server's error.
        error: E,
    },
}

/// Why loading ended early. Records already loaded stay.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError<E: Debug + Display = KvError> {
    /// A record was rejected, in strict mode.
    #[error("{0}")]
    Skipped(Skipped<E>),
    /// The rest of the file cannot be read.
    #[error(transparent)]
    File(RecordError),
    /// The server failed, is full, or is gone.
    #[error("line {line}: {error}; {loaded} records were loaded before")]
    Server {
        /// The line of the record at which it failed.
        line: u64,
        /// The cause.
        error: E,
        /// Records loaded before.
        loaded: u64,
    },
    /// A thread could not be started.
    #[error("cannot read records: {0}")]
    Thread(ServeError),
}

/// Receives the progress of loading.
pub trait Watch<E = KvError> {
    /// Reports the number of records loaded. Called for every record, and ten times a second. Returning false ends
    /// loading, after the records in flight.
    fn loaded(&mut self, records: u64) -> bool;

    /// Reports that a record was left out.
    fn skipped(&mut self, skipped: &Skipped<E>);
}

/// Stores every record, many concurrently. Of records with the same key, the last one wins.
///
/// Another thread reads the records, and ends when they do; if they come from a pipe that stays open, it ends only with
/// the next record.
///
/// # Errors
/// [`LoadError`].
pub async fn load<T, R>(
    target: &T,
    records: R,
    loading: Loading,
    watch: &mut impl Watch<T::Error>,
) -> Result<Loaded, LoadError<T::Error>>
where
    T: Target,
    R: Iterator<Item = Result<Numbered, RecordError>> + Send + 'static,
{
    let mut source = Some(feed(records).map_err(LoadError::Thread)?);
    let mut load = Load { loading, loaded: Loaded::default(), keys: HashSet::new(), bytes: 0, watch };
    let mut next: Option<Numbered> = None;
    let mut in_flight = FuturesUnordered::new();
    loop {
        if let Some(numbered) = next.take_if(|numbered| load.has_room(&numbered.record, in_flight.len())) {
            load.begin(&numbered.record);
            in_flight.push(store(target, numbered));
        } else if next.is_some() {
            // Without room, there is something in flight.
            if let Some(done) = in_flight.next().await {
                load.end::<T>(done)?;
            }
        } else if let Some(events) = &mut source {
            let event = match waiting(events) {
                Some(event) => event,
                None if in_flight.is_empty() => events.recv().await.unwrap_or(Event::End),
                None => tokio::select! {
                    biased;
                    Some(done) = in_flight.next() => {
                        load.end::<T>(done)?;
                        continue;
                    }
                    event = events.recv() => event.unwrap_or(Event::End),
                },
            };
            match event {
                Event::Record(Ok(numbered)) => next = Some(numbered),
                Event::Record(Err(error)) if error.is_fatal() => return Err(LoadError::File(error)),
                Event::Record(Err(error)) => load.skip(Skipped { line: error.line, why: Misfit::Record(error) })?,
                Event::Tick => {}
                Event::End => source = None,
            }
            if !load.watch.loaded(load.loaded.records) {
                (source, next) = (None, None);
            }
        } else if let Some(done) = in_flight.next().await {
            load.end::<T>(done)?;
        } else {
            return Ok(load.loaded);
        }
    }
}

/// Returns an event that has already arrived.
fn waiting(events: &mut Receiver<Event>) -> Option<Event> {
    match events.try_recv() {
        Ok(event) => Some(event),
        Err(TryRecvError::Disconnected) => Some(Event::End),
        Err(TryRecvError::Empty) => None,
    }
}

async fn store<T: Target>(target: &T, numbered: Numbered) -> (Numbered, Result<(), T::Error>) {
    let result = target.store(&numbered.record).await;
    (numbered, result)
}

struct Load<'w, W> {
    loading: Loading,
    loaded: Loaded,
    /// Keys in flight: a later value of a key waits for the earlier one, so that the last wins.
    keys: HashSet<Vec<u8>>,
    /// Bytes in flight.
    bytes: usize,
    watch: &'w mut W,
}

impl<W> Load<'_, W> {
    fn has_room(&self, record: &Record, in_flight: usize) -> bool {
        in_flight < self.loading.in_flight && self.bytes < BYTES_IN_FLIGHT_MAX && !self.keys.contains(&record.key)
    }

    fn begin(&mut self, record: &Record) {
        self.keys.insert(record.key.clone());
        self.bytes += len(record);
    }

    fn end<T: Target>(
        &mut self,
        (numbered, result): (Numbered, Result<(), T::Error>),
    ) -> Result<(), LoadError<T::Error>>
    where
        W: Watch<T::Error>,
    {
        let Numbered { line, record } = numbered;
        self.keys.remove(&record.key);
        self.bytes -= len(&record);
        match result {
            Ok(()) => {
                self.loaded.records += 1;
                self.loaded.bytes += len(&record) as u64;
                Ok(())
            }
            Err(error) if T::is_misfit(&error) => {
                self.skip(Skipped { line, why: Misfit::Server { key: beginning(&record.key), error } })
            }
            Err(error) => Err(LoadError::Server { line, error, loaded: self.loaded.records }),
        }
    }

    fn skip<E: Debug + Display>(&mut self, skipped: Skipped<E>) -> Result<(), LoadError<E>>
    where
        W: Watch<E>,
    {
        if self.loading.is_strict {
            return Err(LoadError::Skipped(skipped));
        }
        self.loaded.skipped += 1;
        self.watch.skipped(&skipped);
        Ok(())
    }
}

fn len(record: &Record) -> usize {
    record.key.len() + record.value.len()
}

/// Returns as much of a key as fits in a line of text.
fn beginning(key: &[u8]) -> String {
    const CHARS_MAX: usize = 60;
    String::from_utf8_lossy(&key[..key.len().min(4 * CHARS_MAX)]).chars().take(CHARS_MAX).collect()
}
