//! Processes of experiments end when they should, and report why when they fail.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dunlin_lab::LabError;
use dunlin_lab::measure::BusyNeighbour;
use dunlin_lab::peer::{ARGUMENT, Launcher, Peer};
use dunlin_serve::Interrupt;

const PROGRAM: &str = env!("CARGO_BIN_EXE_dunlin");
/// Far longer than anything here takes, even on a busy machine.
const LONG: Duration = Duration::from_secs(60);

fn launcher() -> Launcher {
    Launcher::of_program(PROGRAM, Interrupt::default())
}

fn ready(launcher: &Launcher, limit: Duration) -> Peer<BusyNeighbour> {
    let mut peer = launcher.start(BusyNeighbour, None, limit).unwrap();
    peer.ready().unwrap();
    peer
}

fn lives(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

#[test]
fn stops_when_asked() {
    ready(&launcher(), LONG).stop().unwrap();
}

#[test]
fn ends_when_dropped() {
    let peer = ready(&launcher(), LONG);
    let process = peer.id();
    assert!(lives(process));
    drop(peer);
    assert!(!lives(process));
}

#[test]
fn is_killed_past_its_time() {
    let peer = ready(&launcher(), Duration::from_secs(2));
    let process = peer.id();
    let error = peer.result().unwrap_err();
    assert!(matches!(error, LabError::TimedOut { .. }), "{error}");
    assert!(!lives(process));
}

#[test]
fn ends_when_the_user_interrupts() {
    let interrupt = Interrupt::default();
    let peer = ready(&Launcher::of_program(PROGRAM, interrupt.clone()), LONG);
    let process = peer.id();
    interrupt.flag().store(true, Ordering::Relaxed);
    assert!(matches!(peer.result(), Err(LabError::Interrupted)));
    assert!(!lives(process));
}

#[test]
fn says_that_it_was_killed() {
    let peer = ready(&launcher(), LONG);
    Command::new("kill").args(["-KILL", &peer.id().to_string()]).status().unwrap();
    let error = peer.result().unwrap_err();
    assert!(matches!(error, LabError::PeerDied { .. }), "{error}");
    assert!(error.to_string().contains("signal: 9"), "{error}");
}

#[test]
fn reports_its_error() {
    let mut peer = launcher().start(BusyNeighbour, Some(1023), LONG).unwrap();
    let error = peer.ready().unwrap_err();
    assert!(matches!(error, LabError::PeerFailed { .. }), "{error}");
    assert!(error.to_string().contains("core 1023 cannot be used"), "{error}");
}

#[test]
fn says_that_its_program_is_missing() {
    let error =
        Launcher::of_program("/nowhere/dunlin", Interrupt::default()).start(BusyNeighbour, None, LONG).unwrap_err();
    assert!(error.to_string().contains("start a process for busy neighbour"), "{error}");
}

#[test]
fn ends_when_its_parent_dies() {
    let mut peer = Command::new(PROGRAM).arg(ARGUMENT).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = peer.stdin.take().unwrap();
    writeln!(stdin, r#"{{"role": "busy neighbour", "core": null, "task": null}}"#).unwrap();
    // What the system does to the pipe when a parent dies.
    drop(stdin);
    let deadline = Instant::now() + LONG;
    while peer.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "the orphan lives on");
        std::thread::yield_now();
    }
}

#[test]
fn refuses_an_unknown_role() {
    let mut peer = Command::new(PROGRAM).arg(ARGUMENT).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    writeln!(peer.stdin.as_mut().unwrap(), r#"{{"role": "juggler", "core": null, "task": null}}"#).unwrap();
    let output = peer.wait_with_output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("there is no role"));
}
