//! The floor of a memcached server: TCP alone, with the same number of bytes in both directions.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use dunlin_lab::peer::{Control, Role};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use super::connection::hit_bytes;
use super::load::TextOperation;
use super::process::Serving;
use crate::BenchError;
use crate::workload::item::KEY_BYTES;

/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;
/// Interval at which it checks whether to stop.
const LOOK_AROUND: Duration = Duration::from_millis(100);

/// Counts the bytes of fixed-length requests, and sends as many fixed-length answers, without reading either.
#[derive(Debug, Serialize, Deserialize)]
pub struct BareServer {
    /// The operation.
    pub operation: TextOperation,
    /// Bytes of values.
    pub value_bytes: usize,
}

impl Role for BareServer {
    const NAME: &'static str = "bare TCP server";
    type Ready = Serving;
    type Output = ();
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<(), BenchError> {
        let doing = || BenchError::io("listen on loopback");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(doing())?;
        listener.set_nonblocking(true).map_err(doing())?;
        control.ready(Serving { address: listener.local_addr().map_err(doing())?, process: std::process::id() });
        let (request, answer) = self.lengths();
        let answers: Vec<u8> = answer.iter().copied().cycle().take(answer.len() * (READ_BYTES / request + 1)).collect();
        let mut peers: Vec<Peer> = Vec::new();
        let mut buffer = vec![0; READ_BYTES];
        while !control.stopping() {
            let ready = wait(&listener, &peers)?;
            for (peer, _) in peers.iter_mut().zip(&ready[1..]).filter(|(_, ready)| **ready) {
                // A load that ends closes, or resets, its connections.
                let count = peer.stream.read(&mut buffer).unwrap_or(0);
                let bytes = peer.partial + count;
                peer.partial = bytes % request;
                peer.is_open = count > 0 && peer.stream.write_all(&answers[..bytes / request * answer.len()]).is_ok();
            }
            peers.retain(|peer| peer.is_open);
            if ready[0] {
                match listener.accept() {
                    Ok((stream, _)) => {
                        stream.set_nodelay(true).map_err(doing())?;
                        stream.set_nonblocking(false).map_err(doing())?;
                        peers.push(Peer { stream, partial: 0, is_open: true });
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(doing()(error)),
                }
            }
        }
        Ok(())
    }
}

impl BareServer {
    /// Bytes of a request, and an answer of the same length as a correct one.
    fn lengths(&self) -> (usize, Vec<u8>) {
        match self.operation {
            TextOperation::Get => {
                // The first letter marks a hit.
                ("get \r\n".len() + KEY_BYTES, vec![b'V'; hit_bytes(self.value_bytes)])
            }
            TextOperation::Set => {
                let head = format!("set  0 0 {}\r\n", self.value_bytes).len() + KEY_BYTES;
                (head + self.value_bytes + "\r\n".len(), b"STORED\r\n".to_vec())
            }
        }
    }
}

/// A connection.
struct Peer {
    stream: TcpStream,
    /// Bytes of an incomplete request.
    partial: usize,
    is_open: bool,
}

/// Sleeps until the listener (the first) or a connection is ready.
fn wait(listener: &TcpListener, peers: &[Peer]) -> Result<Vec<bool>, BenchError> {
    let mut ends = vec![PollFd::new(listener, PollFlags::IN)];
    ends.extend(peers.iter().map(|peer| PollFd::new(&peer.stream, PollFlags::IN)));
    let limit = Timespec { tv_sec: 0, tv_nsec: LOOK_AROUND.as_nanos() as i64 };
    match poll(&mut ends, Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(ends.iter().map(|end| !end.revents().is_empty()).collect()),
        Err(error) => Err(BenchError::io("wait for requests")(error.into())),
    }
}
