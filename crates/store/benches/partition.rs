//! A partition of 16 B keys and 32 B values: the cost of an operation in each layout, in bursts and one at a time, and
//! the cost of a hash.
//!
//!     cargo bench -p dunlin-store -- get

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use dunlin_store::{Layout, Mode, Partition, PartitionConfig, Prefault, Put, Store};

const ITEMS: [u64; 2] = [1 << 20, 1 << 22];
const LAYOUTS: [Layout; 2] = [Layout::Inline, Layout::Log];
const BURST: usize = 16;
/// Operations of a sample: few enough that the fastest sample was not interrupted.
const OPERATIONS: usize = 1 << 12;
const VALUE: [u8; 32] = [7; 32];

fn main() {
    divan::main();
}

fn mix(number: u64) -> u64 {
    let z = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn key(number: u64) -> [u8; 16] {
    let mut key = [b'k'; 16];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key
}

fn filled(layout: Layout, items: u64) -> Partition {
    let memory = items as usize * 160 + (64 << 20);
    let config = PartitionConfig { layout, prefault: Prefault::AtStart, ..PartitionConfig::new(Mode::Store, memory) };
    let mut partition = Partition::new(config).expect("memory for the benchmark");
    for number in 0..items {
        let key = key(number);
        let key = partition.key(&key).expect("16 bytes");
        partition.put(&key, &VALUE, Put::default()).expect("there is room");
    }
    let stats = partition.stats();
    eprintln!("{layout:?}, {items} items: {:.1} bytes an item", stats.memory_bytes as f64 / stats.items as f64);
    partition
}

struct Keys(u64);

impl Keys {
    fn burst(&mut self, items: u64) -> [[u8; 16]; BURST] {
        std::array::from_fn(|_| {
            self.0 += 1;
            key(mix(self.0) & (items - 1))
        })
    }
}

fn cases() -> impl Iterator<Item = (Layout, u64)> {
    ITEMS.into_iter().flat_map(|items| LAYOUTS.map(|layout| (layout, items)))
}

macro_rules! for_cases {
    ($name:ident, $body:expr) => {
        #[divan::bench(args = cases().map(|(layout, items)| format!("{layout:?} {items}")), sample_size = 1, sample_count = 500)]
        fn $name(bencher: Bencher<'_, '_>, case: &str) {
            let (layout, items) =
                cases().find(|(layout, items)| format!("{layout:?} {items}") == case).expect("one of the cases");
            let mut partition = filled(layout, items);
            let mut keys = Keys(1);
            let body: fn(&mut Partition, [[u8; 16]; BURST]) = $body;
            bencher.counter(ItemsCount::new(OPERATIONS)).bench_local(|| {
                for _ in 0..OPERATIONS / BURST {
                    let burst = keys.burst(items);
                    body(&mut partition, burst);
                }
            });
        }
    };
}

for_cases!(get_in_bursts, |partition, burst| {
    let keys = burst.each_ref().map(|key| partition.key(key).expect("16 bytes"));
    keys.iter().for_each(|key| partition.prefetch(key));
    keys.iter().for_each(|key| partition.prefetch_item(key));
    for key in &keys {
        black_box(partition.get(key).expect("it is there").value[0]);
    }
});

for_cases!(get_one_at_a_time, |partition, burst| {
    for key in &burst {
        let key = partition.key(key).expect("16 bytes");
        black_box(partition.get(&key).expect("it is there").value[0]);
    }
});

for_cases!(put_in_bursts, |partition, burst| {
    let keys = burst.each_ref().map(|key| partition.key(key).expect("16 bytes"));
    keys.iter().for_each(|key| partition.prefetch(key));
    keys.iter().for_each(|key| partition.prefetch_item(key));
    for key in &keys {
        black_box(partition.put(key, &VALUE, Put::default()).expect("there is room"));
    }
});

/// The cost of hashing 16 bytes, and the noise of making keys.
#[divan::bench]
fn hash(bencher: Bencher<'_, '_>) {
    let partition = Partition::new(PartitionConfig::new(Mode::Cache, 1 << 20)).expect("a MiB");
    let keys = Keys(1).burst(1 << 20);
    bencher.counter(ItemsCount::new(BURST)).bench_local(|| {
        for key in &keys {
            black_box(partition.key(black_box(key)).expect("16 bytes"));
        }
    });
}
