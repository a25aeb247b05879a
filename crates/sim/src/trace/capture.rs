//! Recording every packet.

use std::fmt;
use std::io::Write;

use dunlin_net::pcap::{PcapFile, socket_addr};
use dunlin_net::{Addr, NetError};

use crate::engine::time::{Picos, to_nanos};

/// Where packets are captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapturePoint {
    /// As they leave their sender's NIC, whatever their fate; copies made by faults are not included.
    Sent,
    /// As they join a receive queue.
    Received,
}

/// A capture file being written. Its times are virtual: the run begins in 1970.
pub(crate) struct Capture {
    pub point: CapturePoint,
    file: PcapFile<Box<dyn Write>>,
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture").field("point", &self.point).finish_non_exhaustive()
    }
}

impl Capture {
    pub fn new(point: CapturePoint, output: Box<dyn Write>) -> Self {
        Capture { point, file: PcapFile::new(output) }
    }

    pub fn record(&mut self, now: Picos, from: (u16, u16), to: (u16, u16), bytes: &[u8]) {
        let addr = |(host, thread): (u16, u16)| socket_addr(&Addr::Sim { host: host.into(), thread });
        self.file.record(to_nanos(now), addr(from), addr(to), bytes);
    }

    pub fn finish(self) -> Result<(), NetError> {
        self.file.finish().map(drop)
    }
}
