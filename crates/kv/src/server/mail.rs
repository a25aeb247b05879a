//! What the threads of a server tell each other: bounded mailboxes, one for each core.

use std::sync::Arc;
use std::sync::mpsc as blocking;
use std::thread;
use std::time::{Duration, Instant};

use dunlin_store::snapshot::Part;
use tokio::sync::{mpsc, oneshot};

use crate::memcached::{Batch, FlushTime, Inquiry, Report, Socket};
use crate::metrics::CoreStats;
use crate::routing::Core;
use crate::wire::ServerMap;

/// Letters that wait in one mailbox; whoever sends more waits.
const LETTERS_MAX: usize = 1024;

/// How often a thread that cannot write to a full mailbox tries again.
const FULL_LOOK: Duration = Duration::from_millis(1);

/// A letter to a core.
#[derive(Debug)]
pub(super) enum Mail {
    /// Every core listens: begin to serve.
    Serve(Arc<ServerMap>, oneshot::Sender<()>),
    /// Tell what you count.
    Stats(oneshot::Sender<CoreStats>),
    /// Take part in a snapshot.
    Snapshot(Part),
    /// Serve a memcached connection.
    Adopt(Socket),
    /// Run commands on your keys.
    Run(Box<Batch>, oneshot::Sender<Box<Batch>>),
    /// Delete everything, now or at a time.
    Flush(FlushTime, oneshot::Sender<()>),
    /// Tell memcached's counts.
    Ask(Inquiry, oneshot::Sender<Report>),
    /// Take on nothing more, and end what is in progress. The partition stays.
    Drain(blocking::Sender<Core>),
    /// Say that you are there.
    Ping(blocking::Sender<Core>),
    /// A task of yours has failed.
    Failed,
    /// End.
    Exit,
}

/// The mailboxes of all cores.
#[derive(Debug, Clone)]
pub(super) struct Mailboxes(Arc<[mpsc::Sender<Mail>]>);

impl Mailboxes {
    /// Mailboxes for so many cores, and their other ends.
    pub fn new(cores: u16) -> (Mailboxes, Vec<mpsc::Receiver<Mail>>) {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..cores).map(|_| mpsc::channel(LETTERS_MAX)).unzip();
        (Mailboxes(senders.into()), receivers)
    }

    /// How many cores there are.
    pub fn len(&self) -> u16 {
        self.0.len() as u16
    }

    /// The mailbox of a core.
    pub fn of(&self, core: Core) -> &mpsc::Sender<Mail> {
        &self.0[usize::from(core)]
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &mpsc::Sender<Mail>> {
        self.0.iter()
    }

    /// Writes to every core and waits for their answers, in order; those of cores that have ended are left out. For threads without an event
    /// loop.
    pub fn ask_all_blocking<R>(&self, letter: impl Fn(oneshot::Sender<R>) -> Mail) -> Vec<R> {
        let send = |mailbox: &mpsc::Sender<Mail>| {
            let (answer, answered) = oneshot::channel();
            mailbox.blocking_send(letter(answer)).ok().map(|()| answered)
        };
        // All are asked before the first answer is waited for.
        let waiting: Vec<_> = self.iter().filter_map(send).collect();
        waiting.into_iter().filter_map(|answered| answered.blocking_recv().ok()).collect()
    }

    /// Writes to every core, and waits no longer than `patience` until all that run have answered with their number. Returns the cores that
    /// did not, although their threads run. For threads without an event loop.
    pub fn silent_cores(&self, patience: Duration, letter: impl Fn(blocking::Sender<Core>) -> Mail) -> Vec<Core> {
        self.silent_but(&[], patience, letter)
    }

    /// The same without some cores.
    pub fn silent_but(
        &self,
        without: &[Core],
        patience: Duration,
        letter: impl Fn(blocking::Sender<Core>) -> Mail,
    ) -> Vec<Core> {
        let deadline = Instant::now() + patience;
        let (answer, answers) = blocking::channel();
        let is_silent = |core: &Core| self.send_by(deadline, *core, letter(answer.clone()));
        let mut waiting: Vec<Core> = (0..self.len()).filter(|core| !without.contains(core)).filter(is_silent).collect();
        drop(answer);
        while !waiting.is_empty() {
            // All are dropped if the threads of those that are waited for end.
            let Ok(core) = answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) else { break };
            waiting.retain(|waited| *waited != core);
        }
        waiting.retain(|core| !self.of(*core).is_closed());
        waiting
    }

    /// Writes to a core before the deadline. Whether its thread runs.
    pub fn send_by(&self, deadline: Instant, core: Core, mut letter: Mail) -> bool {
        loop {
            match self.of(core).try_send(letter) {
                Ok(()) => return true,
                Err(mpsc::error::TrySendError::Closed(_)) => return false,
                Err(mpsc::error::TrySendError::Full(_)) if Instant::now() >= deadline => return true,
                Err(mpsc::error::TrySendError::Full(returned)) => {
                    letter = returned;
                    thread::sleep(FULL_LOOK);
                }
            }
        }
    }

    /// As [`Mailboxes::ask_all_blocking`], for a task.
    pub async fn ask_all<R>(&self, letter: impl Fn(oneshot::Sender<R>) -> Mail) -> Vec<R> {
        let mut waiting = Vec::with_capacity(self.0.len());
        for mailbox in self.iter() {
            let (answer, answered) = oneshot::channel();
            if mailbox.send(letter(answer)).await.is_ok() {
                waiting.push(answered);
            }
        }
        let mut answers = Vec::with_capacity(waiting.len());
        for answered in waiting {
            answers.extend(answered.await.ok());
        }
        answers
    }
}
