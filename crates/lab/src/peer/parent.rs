//! The parent's side of one peer.

use std::io::{BufRead, BufReader, Write};
use std::marker::PhantomData;
use std::process::{Child, ChildStdin, ChildStdout, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use dunlin_serve::Interrupt;
use indicatif::ProgressBar;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Role;
use super::message::{Message, STOP};
use crate::LabError;
use crate::report::human;

/// Interval at which a waiting parent checks its interrupt.
const LOOK_AROUND: Duration = Duration::from_millis(50);
/// Time limit for a child to exit once it has nothing more to do.
const EXIT_GRACE: Duration = Duration::from_secs(2);

/// A process with role `R`. Dropping it kills the process if it still runs.
#[derive(Debug)]
pub struct Peer<R> {
    child: Child,
    stdin: Option<ChildStdin>,
    messages: Receiver<Message>,
    started: Instant,
    limit: Duration,
    interrupt: Interrupt,
    live: ProgressBar,
    role: PhantomData<R>,
    /// Until it is dropped.
    alive: Arc<()>,
}

impl<R: Role> Peer<R> {
    pub(super) fn new(
        child: Child,
        stdin: ChildStdin,
        stdout: ChildStdout,
        (started, limit): (Instant, Duration),
        interrupt: Interrupt,
        live: ProgressBar,
    ) -> Self {
        let (sender, messages) = channel();
        thread::spawn(move || read(stdout, &sender));
        Peer {
            child,
            stdin: Some(stdin),
            messages,
            started,
            limit,
            interrupt,
            live,
            role: PhantomData,
            alive: Arc::default(),
        }
    }

    /// What tells whether it still has an owner.
    pub(super) fn alive(&self) -> Weak<()> {
        Arc::downgrade(&self.alive)
    }

    /// Waits until other processes may connect.
    ///
    /// # Errors
    /// As [`Peer::result`].
    pub fn ready(&mut self) -> Result<R::Ready, R::Error> {
        match self.next()? {
            Message::Ready(ready) => Ok(self.parse(ready)?),
            other => Err(self.bad(format!("it said {other:?} before it was ready")).into()),
        }
    }

    /// Waits until it ends by itself.
    ///
    /// # Errors
    /// [`LabError::PeerFailed`], [`LabError::PeerDied`], [`LabError::TimedOut`], [`LabError::Interrupted`].
    pub fn result(mut self) -> Result<R::Output, R::Error> {
        loop {
            match self.next()? {
                Message::Result(result) => return Ok(self.parse(result)?),
                Message::Ready(_) => {}
                other => return Err(self.bad(format!("it said {other:?} instead of a result")).into()),
            }
        }
    }

    /// Asks it to finish and waits until it has.
    ///
    /// # Errors
    /// As [`Peer::result`].
    pub fn stop(mut self) -> Result<R::Output, R::Error> {
        // If it is already dead, waiting for the result reports how it died.
        if let Some(stdin) = &mut self.stdin {
            let _ = writeln!(stdin, "{STOP}");
        }
        self.result()
    }

    /// Kills it with SIGKILL: it cannot clean up, and loses its memory. Returns when it has ended.
    ///
    /// # Errors
    /// [`LabError::Io`] if the system refuses.
    pub fn kill(mut self) -> Result<(), LabError> {
        let killed = self.child.kill().and_then(|()| self.child.wait());
        killed.map(drop).map_err(LabError::io(format!("kill the process for {}", R::NAME)))
    }

    /// Its process id, for tests that kill it.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next message that is not for the progress bar, or the error in it.
    fn next(&mut self) -> Result<Message, LabError> {
        loop {
            if self.interrupt.is_set() {
                return Err(LabError::Interrupted);
            }
            let left = self.limit.saturating_sub(self.started.elapsed());
            match self.messages.recv_timeout(left.min(LOOK_AROUND)) {
                Ok(Message::Live(metric, figure)) => self.live.set_message(human::figure(metric, figure)),
                Ok(Message::Error(why)) => return Err(LabError::PeerFailed { role: R::NAME, why }),
                Ok(message) => return Ok(message),
                Err(RecvTimeoutError::Disconnected) => return Err(self.died()),
                Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                    return Err(LabError::TimedOut { role: R::NAME, limit: self.limit });
                }
                Err(RecvTimeoutError::Timeout) => self.live.tick(),
            }
        }
    }

    /// Its output has ended: returns how the process ended.
    fn died(&mut self) -> LabError {
        match self.exited() {
            // Until a process has its own group, ctrl-C reaches it.
            Some(_) if self.interrupt.is_set() => LabError::Interrupted,
            Some(status) => LabError::PeerDied { role: R::NAME, status },
            None => self.bad("it closed its output but runs on".into()),
        }
    }

    fn parse<T: DeserializeOwned>(&self, value: Value) -> Result<T, LabError> {
        serde_json::from_value(value).map_err(|e| self.bad(e.to_string()))
    }

    fn bad(&self, why: String) -> LabError {
        LabError::BadMessage { role: R::NAME.into(), why }
    }
}

impl<R> Peer<R> {
    /// Waits briefly for it to exit.
    fn exited(&mut self) -> Option<ExitStatus> {
        let deadline = Instant::now() + EXIT_GRACE;
        loop {
            match self.child.try_wait() {
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(1)),
                Ok(status) => return status,
                Err(_) => return None,
            }
        }
    }
}

impl<R> Drop for Peer<R> {
    /// Closing its input asks it to end, so that it can clean up; it is killed if it does not.
    fn drop(&mut self) {
        drop(self.stdin.take());
        if self.exited().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Passes on the lines of a child until its output ends. Other output is for the user.
fn read(stdout: ChildStdout, messages: &Sender<Message>) {
    for line in BufReader::new(stdout).lines() {
        let Ok(line) = line else { return };
        let Ok(message) = serde_json::from_str(&line) else {
            eprintln!("{line}");
            continue;
        };
        if messages.send(message).is_err() {
            return;
        }
    }
}
