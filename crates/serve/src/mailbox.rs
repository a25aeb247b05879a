//! Letters between cores: one bounded mailbox per core, and beside each a control channel, which never waits for
//! letters.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc as blocking;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::future::{join_all, select_all};
use futures::stream::FuturesUnordered;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

use crate::waiting::{deadline_in, wait_until};

/// How often a wait for answers drops cores that were given up meanwhile.
const GIVEN_UP_LOOK: Duration = Duration::from_millis(50);

/// A callback that receives the number of a core.
pub(crate) type Answer = Box<dyn FnOnce(u16) + Send>;

/// A command from the owner of a core. A core reads commands before its letters. The channel has no limit: there is one
/// drain, one exit and one failure, and each sender has at most one ping at a core at a time.
pub(crate) enum Control {
    /// Start nothing new, and finish what is in progress.
    Drain(Answer),
    /// Answer that you are alive.
    Ping(Answer),
    /// One of your tasks has failed.
    Failed,
    /// End, after the letters already sent.
    Exit,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Control::Drain(_) => "Drain",
            Control::Ping(_) => "Ping",
            Control::Failed => "Failed",
            Control::Exit => "Exit",
        })
    }
}

/// What a core receives.
#[derive(Debug)]
pub(crate) enum Mail<L> {
    Control(Control),
    Letter(L),
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
pub struct Mailboxes<L>(Arc<[Senders<L>]>);

struct Senders<L> {
    letters: mpsc::Sender<L>,
    control: mpsc::UnboundedSender<Control>,
}

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

/// The receiving end of one mailbox.
#[derive(Debug)]
pub struct Mailbox<L> {
    letters: mpsc::Receiver<L>,
    control: mpsc::UnboundedReceiver<Control>,
    is_closed: bool,
}

impl<L> Mailbox<L> {
    /// The next letter; `None` if no sender is left. For tests of a service, which read in place of a core.
    pub async fn letter(&mut self) -> Option<L> {
        self.letters.recv().await
    }

    /// The same for a thread without an event loop.
    pub fn letter_blocking(&mut self) -> Option<L> {
        self.letters.blocking_recv()
    }

    /// The next mail, control first; `None` after the last letter.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Mail<L>>> {
        if let Poll::Ready(Some(control)) = self.control.poll_recv(context) {
            return Poll::Ready(Some(Mail::Control(control)));
        }
        if self.is_closed {
            // Not `poll_recv`, which waits for senders that hold a place and do not use it: a core that hangs may hold
            // one.
            return Poll::Ready(self.letters.try_recv().ok().map(Mail::Letter));
        }
        self.letters.poll_recv(context).map(|letter| letter.map(Mail::Letter))
    }

    /// Accepts no more letters; those already sent can still be read.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
        self.letters.close();
    }
}

/// Creates mailboxes that hold `letters_max` letters each, and their receiving ends. A server creates its own; this is
/// for tests of a service.
///
/// # Panics
/// If `letters_max` is 0.
pub fn mailboxes<L>(cores: u16, letters_max: usize) -> (Mailboxes<L>, Vec<Mailbox<L>>) {
    let make = |_| {
        let (letters, read) = mpsc::channel(letters_max);
        let (control, obeyed) = mpsc::unbounded_channel();
        (Senders { letters, control }, Mailbox { letters: read, control: obeyed, is_closed: false })
    };
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..cores).map(make).unzip();
    (Mailboxes(senders.into()), receivers)
}

impl<L> Mailboxes<L> {
    /// How many cores there are.
    #[allow(clippy::len_without_is_empty, reason = "a server has at least one core")]
    pub fn len(&self) -> u16 {
        self.0.len() as u16
    }

    fn of(&self, core: u16) -> &Senders<L> {
        &self.0[usize::from(core)]
    }

    /// The sender of commands to one core; it does nothing once the core has ended.
    pub(crate) fn control(&self, core: u16) -> mpsc::UnboundedSender<Control> {
        self.of(core).control.clone()
    }

    /// Sends a command to a core; an error if the core has ended.
    pub(crate) fn command(&self, core: u16, control: Control) -> Result<(), SendError> {
        self.of(core).control.send(control).map_err(|_| SendError::Ended(core))
    }

    /// Tells all cores that still run to end.
    pub(crate) fn command_exit(&self) {
        (0..self.len()).for_each(|core| _ = self.command(core, Control::Exit));
    }

    /// Sends a core a letter; waits while its mailbox is full.
    ///
    /// # Errors
    /// [`SendError::Ended`].
    ///
    /// # Panics
    /// If there is no such core.
    pub async fn send(&self, core: u16, letter: L) -> Result<(), SendError> {
        self.of(core).letters.send(letter).await.map_err(|_| SendError::Ended(core))
    }

    /// Sends a core a letter without waiting.
    ///
    /// # Errors
    /// [`SendError`], with the letter.
    ///
    /// # Panics
    /// If there is no such core.
    pub fn try_send(&self, core: u16, letter: L) -> Result<(), (SendError, L)> {
        self.of(core).letters.try_send(letter).map_err(|error| match error {
            mpsc::error::TrySendError::Full(letter) => (SendError::Full(core), letter),
            mpsc::error::TrySendError::Closed(letter) => (SendError::Ended(core), letter),
        })
    }

    /// Sends a letter that any core may read to the first core with room for it, trying core `first` first and then the
    /// others in order. Waits while all mailboxes are full. Returns the core.
    ///
    /// # Errors
    /// [`SendError::Ended`] if a core has ended.
    ///
    /// # Panics
    /// If there is no core `first`.
    pub async fn send_any(&self, first: u16, letter: L) -> Result<u16, SendError> {
        let (before, from) = self.0.split_at(usize::from(first));
        // The futures are polled in this order.
        let reserve = from.iter().chain(before).map(|mailbox| Box::pin(mailbox.letters.reserve()));
        let (permit, place, _) = select_all(reserve).await;
        let core = ((usize::from(first) + place) % self.0.len()) as u16;
        permit.map_err(|_| SendError::Ended(core))?.send(letter);
        Ok(core)
    }

    /// Sends letters to cores. Waits no longer than `time`, for all full mailboxes at once: a core that hangs delays no
    /// other letter. For threads without an event loop. Returns the cores that did not get their letters.
    ///
    /// # Panics
    /// If there is no such core.
    pub fn send_each_within(&self, time: Duration, letters: impl IntoIterator<Item = (u16, L)>) -> Vec<u16> {
        let (mut waiting, mut sending) = (Vec::new(), FuturesUnordered::new());
        for (core, letter) in letters {
            waiting.push(core);
            sending.push(async move { self.send(core, letter).await.map(|()| core) });
        }
        let all = async {
            while let Some(sent) = sending.next().await {
                waiting.retain(|waiting| sent != Ok(*waiting));
            }
        };
        // Letters that are not sent by then are dropped.
        let _ = wait_until(deadline_in(time), all);
        waiting
    }

    /// Asks every core and waits for their answers, which are returned in order; cores that have ended, or that drop
    /// the question, are left out.
    pub async fn ask_all<R>(&self, letter: impl Fn(oneshot::Sender<R>) -> L) -> Vec<R> {
        let letter = &letter;
        let ask = |core| async move {
            let (answer, answered) = oneshot::channel();
            self.send(core, letter(answer)).await.ok()?;
            answered.await.ok()
        };
        join_all((0..self.len()).map(ask)).await.into_iter().flatten().collect()
    }

    /// The same for a thread without an event loop.
    ///
    /// # Panics
    /// Inside a tokio runtime.
    pub fn ask_all_blocking<R>(&self, letter: impl Fn(oneshot::Sender<R>) -> L) -> Vec<R> {
        let send = |mailbox: &Senders<L>| {
            let (answer, answered) = oneshot::channel();
            mailbox.letters.blocking_send(letter(answer)).ok().map(|()| answered)
        };
        // Ask all before waiting for the first answer.
        let waiting: Vec<_> = self.0.iter().filter_map(send).collect();
        waiting.into_iter().filter_map(|answered| answered.blocking_recv().ok()).collect()
    }

    /// Sends every core the same command, and waits no longer than `patience` until all that run, and were not given
    /// up, have answered. Returns the cores that did not answer.
    pub(crate) fn command_all(
        &self,
        patience: Duration,
        is_given_up: impl Fn(u16) -> bool,
        control: impl Fn(Answer) -> Control,
    ) -> Vec<u16> {
        let deadline = deadline_in(patience);
        let (answer, answers) = blocking::channel();
        let is_there = |core: &u16| {
            let answer = answer.clone();
            // The waiting thread may have stopped waiting for the answer.
            self.command(*core, control(Box::new(move |core| _ = answer.send(core)))).is_ok()
        };
        let mut waiting: Vec<u16> = (0..self.len()).filter(is_there).collect();
        drop(answer);
        loop {
            waiting.retain(|core| !self.has_ended(*core) && !is_given_up(*core));
            let left = deadline.saturating_duration_since(Instant::now());
            if waiting.is_empty() || left.is_zero() {
                return waiting;
            }
            match answers.recv_timeout(left.min(GIVEN_UP_LOOK)) {
                Ok(core) => waiting.retain(|waited| *waited != core),
                Err(blocking::RecvTimeoutError::Timeout) => {}
                // The threads of the cores still awaited have ended.
                Err(blocking::RecvTimeoutError::Disconnected) => return Vec::new(),
            }
        }
    }

    fn has_ended(&self, core: u16) -> bool {
        self.of(core).control.is_closed()
    }
}
