//! Replicas with their logs on simulated disks that hang, fill up, and take time.

mod forged;
mod hangs;
mod pieces;
mod room;
mod snapshots;

use dunlin_smr::NodeConfig;
use dunlin_smr::wal::{Disk as _, WalConfig};

use super::harness::{ClusterOf, config};
use super::storage::OnDisks;

type Cluster = ClusterOf<OnDisks>;

impl Cluster {
    fn new(members: u64, config: NodeConfig, wal: WalConfig) -> Cluster {
        ClusterOf::of(OnDisks { wal }, members, config)
    }

    /// Makes the disk of a replica hang until it is [healed](Cluster::heal).
    fn hang(&self, id: u64) {
        self.places[&id].device.disk.hang_until(u64::MAX);
    }

    fn heal(&self, id: u64) {
        self.places[&id].device.disk.hang_until(0);
    }

    /// Returns the number of snapshot files of a replica.
    fn snapshot_files(&self, id: u64) -> usize {
        let names = self.places[&id].device.disk.list().unwrap();
        names.iter().filter(|name| name.starts_with("snapshot-")).count()
    }
}
