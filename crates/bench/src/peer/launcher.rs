//! Starts peers.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dunlin_serve::Interrupt;
use indicatif::ProgressBar;

use super::message::Assignment;
use super::parent::Peer;
use super::{ARGUMENT, Role};
use crate::BenchError;

/// Starts peers, all from one program, that are stopped by one interrupt.
#[derive(Debug, Clone)]
pub struct Launcher {
    program: PathBuf,
    interrupt: Interrupt,
    live: ProgressBar,
}

impl Launcher {
    /// Peers are the running program, with [`ARGUMENT`].
    pub fn new(interrupt: Interrupt) -> Self {
        // Not its name: that may be another program by now, if it was built again.
        Launcher::of_program("/proc/self/exe", interrupt)
    }

    /// Peers are another program that understands [`ARGUMENT`].
    pub fn of_program(program: impl Into<PathBuf>, interrupt: Interrupt) -> Self {
        Launcher { program: program.into(), interrupt, live: ProgressBar::hidden() }
    }

    /// What stops its peers.
    pub fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// Shows the live figures of peers as the message of this bar.
    pub fn show_live(&mut self, bar: ProgressBar) {
        self.live = bar;
    }

    /// Starts a process that does `role` on `core`, and has `limit` for all of it.
    ///
    /// # Errors
    /// [`BenchError::Io`] if it cannot be started, [`BenchError::Interrupted`].
    pub fn start<R: Role>(&self, role: R, core: Option<usize>, limit: Duration) -> Result<Peer<R>, BenchError> {
        let doing = || BenchError::io(format!("start a process for {}", R::NAME));
        let task = serde_json::to_value(role).map_err(|e| doing()(e.into()))?;
        let mut assignment =
            serde_json::to_string(&Assignment { role: R::NAME.into(), core, task }).map_err(|e| doing()(e.into()))?;
        assignment.push('\n');
        let mut child = Command::new(&self.program)
            .arg0("dunlin")
            .arg(ARGUMENT)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A group of its own: ctrl-C on the terminal is for the parent, which then stops its peers in order.
            .process_group(0)
            .spawn()
            .map_err(doing())?;
        let mut stdin = child.stdin.take().expect("it was asked for as a pipe above");
        let stdout = child.stdout.take().expect("it was asked for as a pipe above");
        let sent = stdin.write_all(assignment.as_bytes());
        let peer = Peer::new(child, stdin, stdout, (Instant::now(), limit), self.interrupt.clone(), self.live.clone());
        // Only now: from here on dropping the peer ends the process.
        match sent {
            Ok(()) => Ok(peer),
            // A ctrl-C reaches a process that has no group of its own yet.
            Err(_) if self.interrupt.is_set() => Err(BenchError::Interrupted),
            Err(error) => Err(doing()(error)),
        }
    }
}
