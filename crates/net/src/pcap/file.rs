//! A capture file that is being written.

use std::io::{self, Write};
use std::net::SocketAddr;

use super::format::{PACKET_BYTES_MAX, file_header, write_record};
use crate::error::NetError;

/// A capture file, for programs that have packets and times but no transport to wrap in a
/// [`PcapWriter`](super::PcapWriter).
///
/// The first error ends the recording and is kept.
#[derive(Debug)]
pub struct PcapFile<W> {
    output: W,
    error: Option<NetError>,
    record: Vec<u8>,
}

impl<W: Write> PcapFile<W> {
    /// Begins the file. Each packet is one write to `output`: make it buffered.
    pub fn new(output: W) -> Self {
        let mut file = PcapFile { output, error: None, record: Vec::new() };
        file.write(|output, _| output.write_all(&file_header()));
        file
    }

    /// Records a packet, truncated to its first 65,505 bytes. `time` is in nanoseconds since 1970;
    /// [`socket_addr`](super::socket_addr) gives the addresses of endpoints.
    pub fn record(&mut self, time: u64, from: SocketAddr, to: SocketAddr, packet: &[u8]) {
        let packet = &packet[..packet.len().min(PACKET_BYTES_MAX)];
        write_record(&mut self.record, time, from, to, packet);
        self.write(|output, record| output.write_all(record));
    }

    /// The error that ended the recording, if one did.
    pub fn error(&self) -> Option<&NetError> {
        self.error.as_ref()
    }

    /// Ends the recording, flushes the output and returns it.
    ///
    /// # Errors
    /// [`NetError::Io`], the first error of writing the file.
    pub fn finish(mut self) -> Result<W, NetError> {
        self.write(|output, _| output.flush());
        self.error.map_or(Ok(self.output), Err)
    }

    /// Writes to the file unless that failed before.
    fn write(&mut self, write: impl FnOnce(&mut W, &[u8]) -> io::Result<()>) {
        if self.error.is_none()
            && let Err(cause) = write(&mut self.output, &self.record)
        {
            self.error = Some(NetError::Io { doing: "cannot write the packet capture".into(), cause });
        }
    }
}
