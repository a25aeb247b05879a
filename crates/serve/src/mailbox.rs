//! Letters between cores: bounded mailboxes, one for each core.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc as blocking;
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

/// How often a thread that cannot write to a full mailbox tries again.
const FULL_LOOK: Duration = Duration::from_millis(1);

/// Is told the number of a core.
pub(crate) type Answer = Box<dyn FnOnce(u16) + Send>;

/// What comes to a core.
pub(crate) enum Mail<L> {
    /// Something of the service's.
    Letter(L),
    /// Take on nothing more, and end what is in progress.
    Drain(Answer),
    /// Say that you are there.
    Ping(Answer),
    /// A task of yours has failed.
    Failed,
    /// End.
    Exit,
}

impl<L> fmt::Debug for Mail<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mail::Letter(_) => "Letter",
            Mail::Drain(_) => "Drain",
            Mail::Ping(_) => "Ping",
            Mail::Failed => "Failed",
            Mail::Exit => "Exit",
        })
    }
}

/// Why a letter was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SendError {
    /// The mailbox is full. Try again later.
    #[error("the mailbox of core {0} is full")]
    Full(u16),
    /// The core has ended.
    #[error("core {0} has ended")]
    Ended(u16),
}

/// The mailboxes of all cores. Any thread may send.
pub struct Mailboxes<L>(Arc<[mpsc::Sender<Mail<L>>]>);

impl<L> Clone for Mailboxes<L> {
    fn clone(&self) -> Self {
        Mailboxes(self.0.clone())
    }
}

impl<L> fmt::Debug for Mailboxes<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailboxes").field("cores", &self.len()).finish()
    }
}

/// The other end of one mailbox.
#[derive(Debug)]
pub struct Mailbox<L>(pub(crate) mpsc::Receiver<Mail<L>>);

impl<L> Mailbox<L> {
    /// The next letter; `None` if nobody can send one any more. For tests of a service, which read in the place of a
    /// core.
    pub async fn letter(&mut self) -> Option<L> {
        loop {
            if let Mail::Letter(letter) = self.0.recv().await? {
                return Some(letter);
            }
        }
    }

    /// The same for a thread without an event loop.
    pub fn letter_blocking(&mut self) -> Option<L> {
        loop {
            if let Mail::Letter(letter) = self.0.blocking_recv()? {
                return Some(letter);
            }
        }
    }
}

/// Makes mailboxes that hold `letters_max` letters each, and their other ends. A server makes its own; this is for
/// tests of a service.
///
/// # Panics
/// If `letters_max` is 0.
pub fn mailboxes<L>(cores: u16, letters_max: usize) -> (Mailboxes<L>, Vec<Mailbox<L>>) {
    let pairs = (0..cores).map(|_| mpsc::channel(letters_max));
    let (senders, receivers): (Vec<_>, Vec<_>) = pairs.map(|(sender, receiver)| (sender, Mailbox(receiver))).unzip();
    (Mailboxes(senders.into()), receivers)
}

impl<L> Mailboxes<L> {
    /// How many cores there are.
    #[allow(clippy::len_without_is_empty, reason = "a server has at least one core")]
    pub fn len(&self) -> u16 {
        self.0.len() as u16
    }

    pub(crate) fn of(&self, core: u16) -> &mpsc::Sender<Mail<L>> {
        &self.0[usize::from(core)]
    }

    /// Sends a core a letter; waits while its mailbox is full.
    ///
    /// # Errors
    /// [`SendError::Ended`].
    ///
    /// # Panics
    /// If there is no such core.
    pub async fn send(&self, core: u16, letter: L) -> Result<(), SendError> {
        self.of(core).send(Mail::Letter(letter)).await.map_err(|_| SendError::Ended(core))
    }

    /// Sends a core a letter now.
    ///
    /// # Errors
    /// [`SendError`], with the letter.
    ///
    /// # Panics
    /// If there is no such core.
    pub fn try_send(&self, core: u16, letter: L) -> Result<(), (SendError, L)> {
        self.of(core).try_send(Mail::Letter(letter)).map_err(|error| {
            let (why, mail) = match error {
                mpsc::error::TrySendError::Full(mail) => (SendError::Full(core), mail),
                mpsc::error::TrySendError::Closed(mail) => (SendError::Ended(core), mail),
            };
            let Mail::Letter(letter) = mail else { unreachable!("a letter was sent") };
            (why, letter)
        })
    }

    /// Sends a core a letter before the deadline; waits while its mailbox is full. For threads without an event loop.
    ///
    /// # Errors
    /// [`SendError`].
    ///
    /// # Panics
    /// If there is no such core.
    pub fn send_by(&self, deadline: Instant, core: u16, letter: L) -> Result<(), SendError> {
        self.deliver_by(deadline, core, Mail::Letter(letter))
    }

    pub(crate) fn deliver_by(&self, deadline: Instant, core: u16, mut mail: Mail<L>) -> Result<(), SendError> {
        loop {
            match self.of(core).try_send(mail) {
                Ok(()) => return Ok(()),
                Err(mpsc::error::TrySendError::Closed(_)) => return Err(SendError::Ended(core)),
                Err(mpsc::error::TrySendError::Full(_)) if Instant::now() >= deadline => return Err(SendError::Full(core)),
                Err(mpsc::error::TrySendError::Full(returned)) => {
                    mail = returned;
                    thread::sleep(FULL_LOOK);
                }
            }
        }
    }

    /// Asks every core and waits for their answers, in order; those of cores that have ended, or drop the question, are
    /// left out.
    pub async fn ask_all<R>(&self, letter: impl Fn(oneshot::Sender<R>) -> L) -> Vec<R> {
        let mut waiting = Vec::with_capacity(self.0.len());
        for core in 0..self.len() {
            let (answer, answered) = oneshot::channel();
            if self.send(core, letter(answer)).await.is_ok() {
                waiting.push(answered);
            }
        }
        let mut answers = Vec::with_capacity(waiting.len());
        for answered in waiting {
            answers.extend(answered.await.ok());
        }
        answers
    }

    /// The same for a thread without an event loop.
    ///
    /// # Panics
    /// Inside a tokio runtime.
    pub fn ask_all_blocking<R>(&self, letter: impl Fn(oneshot::Sender<R>) -> L) -> Vec<R> {
        let send = |mailbox: &mpsc::Sender<Mail<L>>| {
            let (answer, answered) = oneshot::channel();
            mailbox.blocking_send(Mail::Letter(letter(answer))).ok().map(|()| answered)
        };
        // All are asked before the first answer is waited for.
        let waiting: Vec<_> = self.0.iter().filter_map(send).collect();
        waiting.into_iter().filter_map(|answered| answered.blocking_recv().ok()).collect()
    }

    /// Writes to every core but some, and waits no longer than `patience` until all that run have answered. Returns the
    /// cores that did not, although their threads run.
    pub(crate) fn silent_but(&self, without: &[u16], patience: Duration, mail: impl Fn(Answer) -> Mail<L>) -> Vec<u16> {
        let deadline = Instant::now() + patience;
        let (answer, answers) = blocking::channel();
        let has_ended = |core: u16| {
            let answer = answer.clone();
            // Nobody may wait for the answer any more.
            let mail = mail(Box::new(move |core| _ = answer.send(core)));
            matches!(self.deliver_by(deadline, core, mail), Err(SendError::Ended(_)))
        };
        let asked = (0..self.len()).filter(|core| !without.contains(core));
        let mut waiting: Vec<u16> = asked.filter(|core| !has_ended(*core)).collect();
        drop(answer);
        while !waiting.is_empty() {
            // All are dropped if the threads of those that are waited for end.
            let Ok(core) = answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) else { break };
            waiting.retain(|waited| *waited != core);
        }
        waiting.retain(|core| !self.of(*core).is_closed());
        waiting
    }
}
