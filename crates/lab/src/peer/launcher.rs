//! Starts peers.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use dunlin_serve::Interrupt;
use indicatif::ProgressBar;

use super::message::Assignment;
use super::parent::Peer;
use super::{ARGUMENT, Role};
use crate::LabError;
use crate::report::Process;

/// A process that was started, and whether it still has an owner.
type Started = (Process, Weak<()>);

/// Starts peers, all from one program and stopped by one interrupt.
#[derive(Debug, Clone)]
pub struct Launcher {
    program: PathBuf,
    interrupt: Interrupt,
    live: ProgressBar,
    started: Arc<Mutex<Vec<Started>>>,
}

impl Launcher {
    /// Peers run this program, with [`ARGUMENT`].
    pub fn new(interrupt: Interrupt) -> Self {
        // Not by name: after a rebuild that may be another program.
        Launcher::of_program("/proc/self/exe", interrupt)
    }

    /// Peers run another program that understands [`ARGUMENT`].
    pub fn of_program(program: impl Into<PathBuf>, interrupt: Interrupt) -> Self {
        Launcher { program: program.into(), interrupt, live: ProgressBar::hidden(), started: Arc::default() }
    }

    /// The interrupt that stops its peers.
    pub fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// Shows the live figures of peers as the message of this bar.
    pub fn show_live(&mut self, bar: ProgressBar) {
        self.live = bar;
    }

    /// Forgets the processes that have ended.
    pub(crate) fn forget_ended(&self) {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        started.retain(|(_, alive)| alive.strong_count() > 0);
    }

    /// The processes that run, and those that have run since the ended ones were forgotten.
    pub(crate) fn running(&self) -> Vec<Process> {
        let started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        started.iter().map(|(process, _)| process.clone()).collect()
    }

    /// Starts a process with `role` on `core`, with time limit `limit`.
    ///
    /// # Errors
    /// [`LabError::Io`] if it cannot be started, [`LabError::Interrupted`].
    pub fn start<R: Role>(&self, role: R, core: Option<usize>, limit: Duration) -> Result<Peer<R>, LabError> {
        let doing = || LabError::io(format!("start a process for {}", R::NAME));
        let environment = role.environment();
        let task = serde_json::to_value(role).map_err(|e| doing()(e.into()))?;
        let process = Process { role: R::NAME.into(), core, task: task.clone() };
        let mut assignment =
            serde_json::to_string(&Assignment { role: R::NAME.into(), core, task }).map_err(|e| doing()(e.into()))?;
        assignment.push('\n');
        let mut child = Command::new(&self.program)
            .arg0("dunlin")
            .arg(ARGUMENT)
            .envs(environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // In its own process group: ctrl-C on the terminal is for the parent, which then stops its peers
            // gracefully.
            .process_group(0)
            .spawn()
            .map_err(doing())?;
        let mut stdin = child.stdin.take().expect("it was asked for as a pipe above");
        let stdout = child.stdout.take().expect("it was asked for as a pipe above");
        let sent = stdin.write_all(assignment.as_bytes());
        let peer = Peer::new(child, stdin, stdout, (Instant::now(), limit), self.interrupt.clone(), self.live.clone());
        self.started.lock().unwrap_or_else(PoisonError::into_inner).push((process, peer.alive()));
        // Only now: from here on, dropping the peer ends the process.
        match sent {
            Ok(()) => Ok(peer),
            // Until a process has its own group, ctrl-C reaches it.
            Err(_) if self.interrupt.is_set() => Err(LabError::Interrupted),
            Err(error) => Err(doing()(error)),
        }
    }
}
