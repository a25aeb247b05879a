//! What happens at a point of virtual time.

use crate::fabric::packet::Transit;
use crate::fault::FaultId;

/// Small and `Copy`: with its time, 24 bytes.
///
/// Events cannot be taken out of the queue. Where one may have been overtaken by another (a thread is woken before its timer), the table
/// holds the time that counts, and an event of another time is stale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The last bit of a packet reaches the far end of a link.
    Arrive(Transit),
    /// A host's NIC may put its next packet on the wire.
    Transmit { host: u16 },
    /// A thread runs.
    Run { thread: u32 },
    /// A fault begins or ends.
    Fault { id: FaultId, begins: bool },
}
