//! The CPU cost of packets.

use serde::{Deserialize, Serialize};

/// CPU time that a thread is charged for handling packets. A program charges all other work itself through
/// [`ThreadClock::charge`](super::ThreadClock::charge).
///
/// The defaults model a core of the paper's CX4 cluster, where an RPC of 32 B costs 100 ns at each end (10 M a second
/// and thread, half of them as client and half as server, section 6.2): one packet sent and one received, including all
/// work of the RPC library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CostModel {
    /// Cost of an empty receive burst, in nanoseconds.
    pub poll_ns: u64,
    /// Cost of a receive burst that finds packets, besides the packets.
    pub rx_burst_ns: u64,
    /// Cost of each packet received.
    pub rx_packet_ns: u64,
    /// Cost of each byte received, in picoseconds: the copy to the application's buffer.
    pub rx_byte_ps: u64,
    /// Cost of a transmit burst, besides its packets: the doorbell.
    pub tx_burst_ns: u64,
    /// Cost of each packet sent.
    pub tx_packet_ns: u64,
    /// Cost of each byte sent, in picoseconds: zero where the NIC fetches it.
    pub tx_byte_ps: u64,
}

impl Default for CostModel {
    fn default() -> Self {
        CostModel {
            poll_ns: 10,
            rx_burst_ns: 10,
            rx_packet_ns: 45,
            rx_byte_ps: 60,
            tx_burst_ns: 20,
            tx_packet_ns: 40,
            tx_byte_ps: 0,
        }
    }
}

impl CostModel {
    /// A CPU that costs no time, to study the network alone.
    pub fn free() -> Self {
        CostModel {
            poll_ns: 0,
            rx_burst_ns: 0,
            rx_packet_ns: 0,
            rx_byte_ps: 0,
            tx_burst_ns: 0,
            tx_packet_ns: 0,
            tx_byte_ps: 0,
        }
    }
}
