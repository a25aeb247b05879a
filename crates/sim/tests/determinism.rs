//! The same seed gives the same bytes.

mod lab;

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Write};
use std::rc::Rc;

use dunlin_sim::fault::RandomFaults;
use dunlin_sim::topology::{Ecn, Layout, TwoTier};
use dunlin_sim::trace::CapturePoint;
use dunlin_sim::{CostModel, Counters, Datacenter, Topology};
use lab::{echo, flood, listen, ping};

/// Hashes all output. (`DefaultHasher::new` has no random keys.)
#[derive(Clone, Default)]
struct HashOf(Rc<RefCell<DefaultHasher>>, Rc<RefCell<usize>>);

impl Write for HashOf {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes);
        *self.1.borrow_mut() += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A busy datacenter under random faults: hashes of its packets and of its time series.
fn run(seed: u64, point: CapturePoint) -> (u64, u64, Counters) {
    let mut layout = TwoTier { tors: 3, hosts_per_tor: 4, ..TwoTier::default() };
    layout.tor.ecn = Some(Ecn { kmin_bytes: 5000, kmax_bytes: 100_000, pmax: 0.5 });
    let topology = Topology { layout: Layout::TwoTier(layout), ..Topology::default() };
    let mut datacenter = Datacenter::new(&topology, CostModel::default(), seed).unwrap();
    let (packets, rows) = (HashOf::default(), HashOf::default());
    datacenter.capture(point, packets.clone());
    datacenter.watch(10_000, datacenter.ports()).unwrap();
    listen(&mut datacenter, 0, 0);
    for host in 1..6 {
        flood(&mut datacenter, host, 0);
    }
    for host in 6..12 {
        echo(&mut datacenter, host, 0);
        ping(&mut datacenter, host, 1, 6 + (host + 1) % 6, 100);
    }
    let faults = RandomFaults {
        count: 20,
        until_ns: 2_000_000,
        longest_ns: 500_000,
        corrupt_max: 0.05,
        ..RandomFaults::default()
    };
    datacenter.schedule(&faults.plan(&topology, seed)).unwrap();
    datacenter.run_until(2_000_000);
    datacenter.finish_capture().unwrap();
    datacenter.take_series().write_csv(rows.clone()).unwrap();
    assert!(*packets.1.borrow() > 100_000 && *rows.1.borrow() > 10_000);
    (packets.0.borrow().finish(), rows.0.borrow().finish(), datacenter.counters())
}

#[test]
fn a_seed_names_a_run() {
    for point in [CapturePoint::Sent, CapturePoint::Received] {
        let (one, two) = (run(1, point), run(2, point));
        assert_eq!(run(1, point), one);
        assert_eq!(run(2, point), two);
        assert_ne!((one.0, one.1), (two.0, two.1));
        let Counters { sent, received, in_flight, dropped_buffer, dropped_descriptors, dropped_nobody, lost, .. } =
            one.2;
        assert_eq!(
            sent,
            received + in_flight + dropped_buffer + dropped_descriptors + dropped_nobody + lost,
            "{:?}",
            one.2
        );
        assert!(lost > 0 && one.2.marked > 0, "{:?}", one.2);
    }
}
