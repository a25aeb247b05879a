//! The processors of a measurement. A thread that migrates between them measures the scheduler.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use serde::{Deserialize, Serialize};

use crate::LabError;

/// The two processors of a pair of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cores {
    /// The server core.
    pub server: usize,
    /// The client core.
    pub client: usize,
}

impl Cores {
    /// The last two processors this process may use: the first ones handle most interrupts.
    ///
    /// # Errors
    /// [`LabError::TooFewCores`] if there are not two.
    pub fn choose() -> Result<Cores, LabError> {
        match allowed()?[..] {
            [.., client, server] => Ok(Cores { server, client }),
            ref few => Err(LabError::TooFewCores { needed: 2, found: few.len() }),
        }
    }
}

/// Pins the calling thread, and all threads it starts, to one processor.
///
/// # Errors
/// [`LabError::NoSuchCore`] if this process may not use it.
pub fn pin(core: usize) -> Result<(), LabError> {
    let allowed = allowed()?;
    if !allowed.contains(&core) {
        let allowed = allowed.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        return Err(LabError::NoSuchCore { core, allowed });
    }
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).map_err(|e| LabError::io(format!("pin to core {core}"))(e.into()))
}

/// The processors the calling thread may use, ascending.
fn allowed() -> Result<Vec<usize>, LabError> {
    let set = sched_getaffinity(None).map_err(|e| LabError::io("ask for the usable cores")(e.into()))?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_and_refuses() {
        // In a separate thread, because the test runner's threads must not be pinned.
        let pinned = std::thread::spawn(|| {
            let core = allowed().unwrap()[0];
            pin(core).unwrap();
            assert_eq!(allowed().unwrap(), [core]);
            assert!(matches!(Cores::choose(), Err(LabError::TooFewCores { found: 1, .. })));
            pin(CpuSet::MAX_CPU - 1).unwrap_err().to_string()
        });
        assert!(pinned.join().unwrap().contains("this process may run on"));
    }
}
