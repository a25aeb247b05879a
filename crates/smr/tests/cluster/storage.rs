//! The storage of a cluster's logs.

use std::rc::Rc;

use dunlin_smr::wal::sim::{Crash, SimDisk, SimDiskConfig};
use dunlin_smr::wal::{Stepper, WalConfig, open_stepped};
use dunlin_smr::{DurableLog, LogStore, MemoryLog};

/// A kind of storage.
pub trait Storage {
    type Log: LogStore + 'static;
    /// What remains of a log when a replica stops, and what it is started with again.
    type Left;
    /// The device below a log in use.
    type Device: 'static;

    /// An empty log.
    fn empty(&self, id: u64) -> Self::Left;

    fn open(&self, id: u64, left: Self::Left) -> (Self::Log, Self::Device);

    /// Runs a device until this time.
    fn step(_device: &Self::Device, _now: u64) {}

    fn leave(log: &Self::Log, device: &Self::Device) -> Self::Left;
}

/// Logs in memory.
#[derive(Clone, Copy)]
pub struct InMemory;

impl Storage for InMemory {
    type Log = MemoryLog;
    type Left = MemoryLog;
    type Device = ();

    fn empty(&self, _id: u64) -> MemoryLog {
        MemoryLog::new()
    }

    fn open(&self, _id: u64, left: MemoryLog) -> (MemoryLog, ()) {
        (left, ())
    }

    fn leave(log: &MemoryLog, _device: &()) -> MemoryLog {
        log.clone()
    }
}

/// Logs on simulated disks.
#[derive(Clone, Copy)]
pub struct OnDisks {
    pub wal: WalConfig,
}

/// A disk, and the stepper that flushes it in place of a thread.
pub struct Drive {
    pub disk: SimDisk,
    flusher: Rc<Stepper<SimDisk>>,
}

impl Storage for OnDisks {
    type Log = DurableLog<SimDisk>;
    type Left = SimDisk;
    type Device = Drive;

    fn empty(&self, id: u64) -> SimDisk {
        SimDisk::new(id, SimDiskConfig { capacity_bytes: 64 << 30, ..SimDiskConfig::default() })
    }

    fn open(&self, id: u64, disk: SimDisk) -> (DurableLog<SimDisk>, Drive) {
        let (wal, _) = open_stepped(disk.clone(), WalConfig { owner: id, ..self.wal }).unwrap();
        let flusher = Rc::new(wal.stepper().unwrap());
        (DurableLog::new(wal).unwrap(), Drive { disk, flusher })
    }

    fn step(device: &Drive, now: u64) {
        device.flusher.step(now);
    }

    /// Leaves the log as a killed process does.
    fn leave(_log: &DurableLog<SimDisk>, device: &Drive) -> SimDisk {
        device.disk.crash(Crash::Process)
    }
}
