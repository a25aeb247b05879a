//! The simulated transport keeps the promises of the trait.

#[path = "../../net/tests/contract/suite.rs"]
mod suite;

use dunlin_sim::{CostModel, Datacenter, Topology};
use suite::transport_keeps_its_promises;

/// Long enough for a packet to arrive.
const STEP_NS: u64 = 20_000;

#[test]
fn simulated_network() {
    let mut topology = Topology::cx4();
    topology.nic.rx_descriptors = 1000;
    for (cost, to) in [(CostModel::default(), 1), (CostModel::free(), 199)] {
        let mut datacenter = Datacenter::new(&topology, cost, 1).unwrap();
        let (a, b) = (datacenter.bind(0, 0).unwrap(), datacenter.bind(to, 3).unwrap());
        transport_keeps_its_promises(a, b, || datacenter.run_until(datacenter.now() + STEP_NS));
    }
}
