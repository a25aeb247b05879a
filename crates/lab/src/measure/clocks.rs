//! Clocks shared by processes, and detection whether another process sleeps or is stopped.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::time::{ClockId, clock_gettime};

use crate::LabError;

/// Nanoseconds on the clock that all processes of this machine share.
#[inline]
pub fn shared_nanos() -> u64 {
    nanos(ClockId::Monotonic)
}

/// CPU time of the threads of this process, in nanoseconds.
pub fn cpu_nanos() -> u64 {
    nanos(ClockId::ProcessCPUTime)
}

/// CPU time of the calling thread, in nanoseconds.
pub fn thread_cpu_nanos() -> u64 {
    nanos(ClockId::ThreadCPUTime)
}

/// CPU time of the main thread of another process, in nanoseconds.
///
/// # Errors
/// [`LabError::Io`] if there is no such process, or the kernel does not account for its threads.
pub fn main_thread_cpu_nanos_of(process: u32) -> Result<u64, LabError> {
    let path = format!("/proc/{process}/schedstat");
    let doing = || LabError::io(format!("read {path}"));
    let text = std::fs::read_to_string(&path).map_err(doing())?;
    let first = text.split_whitespace().next().and_then(|first| first.parse().ok());
    first.ok_or_else(|| doing()(io::ErrorKind::InvalidData.into()))
}

fn nanos(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Detects whether the main thread of a process sleeps, or is stopped.
#[derive(Debug)]
pub struct StateWatch(File);

impl StateWatch {
    /// For the process with this id.
    ///
    /// # Errors
    /// [`LabError::Io`] if there is none.
    pub fn of(process: u32) -> Result<Self, LabError> {
        let path = format!("/proc/{process}/stat");
        let file = File::open(&path).map_err(LabError::io(format!("open {path}")))?;
        Ok(StateWatch(file))
    }

    /// Whether it sleeps now, as opposed to waiting for a core.
    ///
    /// # Errors
    /// [`LabError::Io`] if it has ended.
    pub fn sleeps(&self) -> Result<bool, LabError> {
        Ok(self.state()? == b'S')
    }

    /// Whether a signal has stopped it.
    ///
    /// # Errors
    /// [`LabError::Io`] if it has ended.
    pub fn is_stopped(&self) -> Result<bool, LabError> {
        Ok(self.state()? == b'T')
    }

    fn state(&self) -> Result<u8, LabError> {
        let mut line = [0; 256];
        let doing = || LabError::io("read the state of a process from /proc");
        let len = self.0.read_at(&mut line, 0).map_err(doing())?;
        state(&line[..len]).ok_or_else(|| doing()(io::ErrorKind::InvalidData.into()))
    }
}

/// The letter after the name, which is in parentheses and may contain anything.
fn state(line: &[u8]) -> Option<u8> {
    let name_end = line.iter().rposition(|byte| *byte == b')')?;
    line.get(name_end + 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_run() {
        let (wall, cpu) = (shared_nanos(), cpu_nanos());
        while cpu_nanos() == cpu {}
        assert!(shared_nanos() > wall);
    }

    #[test]
    fn time_of_another_process_is_that_of_its_main_thread() {
        let before = main_thread_cpu_nanos_of(std::process::id()).unwrap();
        assert!(main_thread_cpu_nanos_of(std::process::id()).unwrap() >= before);
        assert!(main_thread_cpu_nanos_of(u32::MAX).is_err());
    }

    #[test]
    fn who_looks_does_not_sleep() {
        assert_eq!(state(b"7 (a) b) S 1 7"), Some(b'S'));
        assert_eq!(state(b"7 (a"), None);
        // The main thread of a test waits for the others.
        let watch = StateWatch::of(std::process::id()).unwrap();
        while !watch.sleeps().unwrap() {
            std::thread::yield_now();
        }
        assert!(!watch.is_stopped().unwrap());
    }
}
