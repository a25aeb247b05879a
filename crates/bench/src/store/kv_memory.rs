//! `kv-memory`: the memory of an item of 16 B + 32 B beyond its key and value, as resident memory of a process that
//! holds a partition of them: as a store, as a cache with memory for all, and as a full cache.

use std::time::Duration;

use dunlin_lab::measure::{Spread, available_bytes};
use dunlin_lab::report::{Metric, RowBuilder};

use crate::store::roles::{CacheFill, Kind, StoreOps, System};
use crate::workload::item::{KEY_BYTES, VALUE_BYTES};
use crate::{BenchError, Lab};

const SIZES: [u64; 2] = [10_000_000, 50_000_000];
/// Maximum average time of storing one item, and of reading it.
const ITEM_MAX: Duration = Duration::from_micros(4);
/// Memory of the cache that fills up, per item; and how many items are stored.
const FULL_BYTES_PER_ITEM: u64 = 100;
const OFFERED: f64 = 1.5;
const FULL_MEMORY_MIN: u64 = 4 << 20;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let mut sizes = SIZES.map(|items| lab.items(items)).to_vec();
    sizes.dedup();
    for items in sizes {
        for system in [System::Partition(Kind::Store), System::Partition(Kind::Cache), System::Hashbrown] {
            let name = format!("{}, {items} items", system.name());
            if lab.wants(&name) && has_memory(lab, system.name(), items * system.bytes_per_item())? {
                // Memory does not vary: one run is enough.
                let ops = StoreOps { system, items, cases: Vec::new(), runs: 0, run: Duration::ZERO };
                let figures = lab.server(ops, ITEM_MAX * items as u32)?.result()?;
                push(lab, name, figures.bytes_per_item);
            }
        }
        let name = format!("Dunlin, cache of {FULL_BYTES_PER_ITEM} B for each of {items} items, full");
        let memory = (items * FULL_BYTES_PER_ITEM).max(FULL_MEMORY_MIN);
        if lab.wants(&name) && has_memory(lab, &name, memory)? {
            let fill = CacheFill { memory, items: (items as f64 * OFFERED) as u64 };
            let figures = lab.server(fill, ITEM_MAX * (2.0 * OFFERED * items as f64) as u32)?.result()?;
            push(lab, name, figures.bytes as f64 / figures.kept.max(1) as f64);
        }
    }
    Ok(())
}

fn has_memory(lab: &mut Lab, name: &str, needed: u64) -> Result<bool, BenchError> {
    let available = available_bytes()?;
    if needed > available {
        lab.note(super::too_little_memory(name, needed, available));
    }
    Ok(needed <= available)
}

fn push(lab: &mut Lab, name: String, bytes_per_item: f64) {
    lab.taken(&name, 1);
    let bare = (KEY_BYTES + VALUE_BYTES) as f64;
    lab.push(RowBuilder::new(name.clone(), Metric::ItemMemory, Spread::single(bytes_per_item)));
    lab.push(RowBuilder::new(name, Metric::ItemOverhead, Spread::single((bytes_per_item - bare).max(0.0))));
}
