//! The child's side: runs its role and listens for the end.

use std::fmt::Display;
use std::io::{self, BufRead, Write};
use std::marker::PhantomData;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::message::{Assignment, Message, STOP};
use crate::LabError;
use crate::measure::pin;
use crate::report::Metric;

/// Time for an orphan to end by itself.
const ORPHAN_GRACE: Duration = Duration::from_secs(1);
/// Exit code of an orphan that did not.
const ORPHAN_EXIT: i32 = 3;

/// The work of a process in an experiment. The value holds its parameters and is sent to the process as JSON.
pub trait Role: Serialize + DeserializeOwned {
    /// Names the role, for the parent and in errors.
    const NAME: &'static str;
    /// The message when other processes may connect.
    type Ready: Serialize + DeserializeOwned;
    /// The result at the end.
    type Output: Serialize + DeserializeOwned;
    /// Why there is no result. The parent gets the text.
    type Error: Display + From<LabError>;

    /// Variables of its process's environment beside those of this one.
    fn environment(&self) -> Vec<(&'static str, &'static str)> {
        Vec::new()
    }

    /// Runs the role, in the process made for it. A server runs until [`Control::stopping`].
    ///
    /// # Errors
    /// If there is no result.
    fn run(self, control: &Control<Self>) -> Result<Self::Output, Self::Error>;
}

/// The channel from a role to its parent.
#[derive(Debug)]
pub struct Control<R> {
    stop: Arc<AtomicBool>,
    role: PhantomData<R>,
}

impl<R: Role> Control<R> {
    /// Reports that other processes may connect.
    pub fn ready(&self, ready: R::Ready) {
        send(&Message::Ready(value(&ready)));
    }

    /// Reports a figure of the run so far, for display. A few times a second is enough.
    pub fn live(&self, metric: Metric, figure: f64) {
        send(&Message::Live(metric, figure));
    }

    /// Whether the parent wants the result now, or is gone.
    #[inline]
    pub fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// A role by its name.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    name: &'static str,
    run: fn(Value, Arc<AtomicBool>) -> Result<Value, String>,
}

impl Entry {
    /// The entry of a role.
    pub const fn of<R: Role>() -> Self {
        Entry { name: R::NAME, run: run::<R> }
    }

    /// The name, which no other role of the program may have.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

/// Runs as a peer: reads the assignment, runs the role, and reports the result. This is the whole life of the process.
pub fn serve(entries: &[Entry]) -> ExitCode {
    let (message, code) = match assigned(entries) {
        Ok(result) => (Message::Result(result), ExitCode::SUCCESS),
        Err(why) => (Message::Error(why), ExitCode::FAILURE),
    };
    send(&message);
    code
}

/// The result, or why there is none.
fn assigned(entries: &[Entry]) -> Result<Value, String> {
    let Assignment { role, core, task } = assignment().map_err(|e| e.to_string())?;
    let Some(entry) = entries.iter().find(|entry| entry.name == role) else {
        let why = format!("there is no role {role:?}");
        return Err(LabError::BadMessage { role: super::ARGUMENT.into(), why }.to_string());
    };
    let stop = Arc::new(AtomicBool::new(false));
    let listener = Arc::clone(&stop);
    // Before pinning: the listener must not wait for a core that the role keeps busy.
    thread::spawn(move || listen(&listener));
    if let Some(core) = core {
        pin(core).map_err(|e| e.to_string())?;
    }
    (entry.run)(task, stop)
}

fn assignment() -> Result<Assignment, LabError> {
    let mut line = String::new();
    io::stdin().read_line(&mut line).map_err(LabError::io("read what to be from standard input"))?;
    serde_json::from_str(&line).map_err(|e| LabError::BadMessage { role: super::ARGUMENT.into(), why: e.to_string() })
}

fn run<R: Role>(task: Value, stop: Arc<AtomicBool>) -> Result<Value, String> {
    let bad = |e: serde_json::Error| LabError::BadMessage { role: R::NAME.into(), why: e.to_string() }.to_string();
    let role: R = serde_json::from_value(task).map_err(bad)?;
    let output = role.run(&Control { stop, role: PhantomData }).map_err(|e| e.to_string())?;
    Ok(value(&output))
}

/// Waits for the parent to send stop, or to die.
fn listen(stop: &AtomicBool) {
    for line in io::stdin().lock().lines() {
        match line {
            Ok(line) if line == STOP => stop.store(true, Ordering::Relaxed),
            Ok(_) => {}
            Err(_) => break,
        }
    }
    stop.store(true, Ordering::Relaxed);
    thread::sleep(ORPHAN_GRACE);
    std::process::exit(ORPHAN_EXIT);
}

/// Writes a line. If the parent is gone, the line is lost, and [`listen`] ends the process.
fn send(message: &Message) {
    let line = value(message).to_string();
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn value(what: &impl Serialize) -> Value {
    serde_json::to_value(what).expect("messages are structs of numbers and text, which JSON can hold")
}
