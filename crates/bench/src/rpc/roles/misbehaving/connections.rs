//! Connections to a memcached port that make the server hold memory: commands that never end, and answers that are
//! never read.

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::thread;
use std::time::Duration;

use dunlin_lab::peer::{Control, Role};
use rustix::io::ioctl_fionread;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};

use super::raw::HOST;
use crate::BenchError;

/// Bytes of a value that is announced but sent only in part.
pub const UNREAD_BYTES: usize = 1 << 20;
/// Maximum share of a value that an unfinished command sends: the server stops reading earlier if it has no memory for
/// it.
const SENT_SHARE: usize = 2;
/// Bytes of the answers requested on a connection that reads nothing: more than the system buffers.
const ASKED_BYTES: usize = 4 << 20;
/// Approximate bytes that the system buffers for a client that reads nothing.
const RECEIVED_BYTES: usize = 4 << 10;
/// Approximate bytes that the system buffers of a client's data.
const SENDING_BYTES: usize = 16 << 10;
/// Bytes of a segment, as on Ethernet. With the 64 KiB of loopback, the system would buffer 2.8 MB of answers for each
/// connection that reads nothing.
const SEGMENT_BYTES: u32 = 1_448;
/// Bytes offered to a socket at a time.
const WRITE_BYTES: usize = 64 << 10;
/// Pause before data that did not fit is offered again: short for the server, long enough to cost nothing.
const PAUSE: Duration = Duration::from_millis(50);
/// The same during the working load, when nothing needs to settle: each time has over a thousand attempts.
const PAUSE_MEANWHILE: Duration = Duration::from_millis(500);
/// Rounds without progress after which no more is expected; and the maximum number of rounds.
const ROUNDS_QUIET: u32 = 5;
const ROUNDS_MAX: u32 = 200;
/// Time limit for storing the value that is read later.
const PATIENCE: Duration = Duration::from_secs(10);
/// File descriptors that a process needs besides its connections.
const FILES_BESIDE: u64 = 64;

/// Holds connections to a memcached port in the middle of an operation.
#[derive(Debug, Serialize, Deserialize)]
pub struct Connections {
    /// Address of the server.
    pub server: SocketAddr,
    /// Connections that begin to store a value and do not finish.
    pub unfinished: usize,
    /// Connections that request a value and do not read it.
    pub unread: usize,
    /// Bytes of that value.
    pub unread_bytes: usize,
}

impl Role for Connections {
    const NAME: &'static str = "connections that hold memory of a memcached server";
    type Ready = ();
    type Output = Holding;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<Holding, BenchError> {
        allow_files((self.unfinished + self.unread) as u64 + FILES_BESIDE)?;
        store_one(self.server, self.unread_bytes)?;
        let mut held = Vec::with_capacity(self.unfinished + self.unread);
        for number in 0..self.unfinished {
            let head = format!("set unfinished{number} 0 0 {UNREAD_BYTES}\r\n");
            held.push(Held::open(self.server, head.into_bytes(), UNREAD_BYTES / SENT_SHARE)?);
        }
        for _ in 0..self.unread {
            let requests = "get unread\r\n".repeat(ASKED_BYTES / self.unread_bytes);
            held.push(Held::open(self.server, requests.into_bytes(), 0)?);
        }
        settle(&mut held)?;
        control.ready(());
        while !control.stopping() {
            thread::sleep(PAUSE_MEANWHILE);
            // The server may close connections that hold memory for too long.
            held.retain_mut(Held::send);
        }
        Ok(Holding { connections: held.len() as u64, counted_bytes: counted_bytes(self.server)? })
    }
}

/// What was held in the end.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Holding {
    /// Connections that the server had not closed.
    pub connections: u64,
    /// Bytes that they held according to the server.
    pub counted_bytes: u64,
}

/// The bytes that connections hold according to the server.
fn counted_bytes(server: SocketAddr) -> Result<u64, BenchError> {
    const NAME: &str = "STAT conn_memory_bytes ";
    let doing = || BenchError::io("ask for `stats`");
    let mut stream = TcpStream::connect(server).map_err(doing())?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(doing())?;
    stream.write_all(b"stats\r\nquit\r\n").map_err(doing())?;
    let lines = BufReader::new(stream).lines().collect::<Result<Vec<_>, _>>().map_err(doing())?;
    let counted = lines.iter().find_map(|line| line.strip_prefix(NAME)?.parse().ok());
    counted.ok_or_else(|| BenchError::OtherSystem {
        system: "a memcached server",
        why: "it does not count conn_memory_bytes".into(),
    })
}

/// Opens a connection from another host address than that of honest clients, with small buffers on this side and
/// Ethernet-size segments. The buffers of a real client are on its own machine. Here they would be on the server's
/// machine, where allocating them slows down all other sockets for a while.
fn connected(server: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_recv_buffer_size(RECEIVED_BYTES)?;
    socket.set_send_buffer_size(SENDING_BYTES)?;
    socket.set_tcp_mss(SEGMENT_BYTES)?;
    socket.bind(&SocketAddrV4::new(HOST, 0).into())?;
    socket.connect(&server.into())?;
    Ok(socket.into())
}

/// A connection, with its unsent bytes.
struct Held {
    stream: TcpStream,
    head: Vec<u8>,
    body_left: usize,
}

impl Held {
    fn open(server: SocketAddr, head: Vec<u8>, body_left: usize) -> Result<Self, BenchError> {
        let doing = || BenchError::io(format!("connect to {server}"));
        let stream = connected(server).map_err(doing())?;
        stream.set_nonblocking(true).map_err(doing())?;
        Ok(Held { stream, head, body_left })
    }

    /// Sends as much as the system accepts. Returns whether the connection still exists.
    fn send(&mut self) -> bool {
        static BODY: [u8; WRITE_BYTES] = [b'x'; WRITE_BYTES];
        loop {
            let piece = match &self.head[..] {
                [] => &BODY[..self.body_left.min(WRITE_BYTES)],
                head => head,
            };
            if piece.is_empty() {
                return true;
            }
            match self.stream.write(piece) {
                Ok(0) => return false,
                Ok(sent) if self.head.is_empty() => self.body_left -= sent,
                Ok(sent) => drop(self.head.drain(..sent)),
                Err(error) => return matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
            }
        }
    }
}

/// Sends until there is no more progress: the server has accepted what it will, and the system's buffers are full of
/// unread data. Until then the server has real work to do.
fn settle(held: &mut Vec<Held>) -> Result<(), BenchError> {
    let (mut before, mut quiet) = (None, 0);
    for _ in 0..ROUNDS_MAX {
        held.retain_mut(Held::send);
        let to_send = held.iter().map(|held| (held.head.len() + held.body_left) as u64);
        let to_read = held.iter().map(|held| ioctl_fionread(&held.stream));
        let to_read: u64 =
            to_read.sum::<Result<_, _>>().map_err(|error| BenchError::io("look at a socket")(error.into()))?;
        let now = Some((to_send.sum::<u64>(), to_read));
        quiet = if now == before { quiet + 1 } else { 0 };
        if quiet == ROUNDS_QUIET {
            return Ok(());
        }
        before = now;
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// Stores the value that is read later.
fn store_one(server: SocketAddr, bytes: usize) -> Result<(), BenchError> {
    let doing = || BenchError::io(format!("store a value of {bytes} B"));
    let mut stream = TcpStream::connect(server).map_err(doing())?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(doing())?;
    let mut command = format!("set unread 0 0 {bytes}\r\n").into_bytes();
    command.resize(command.len() + bytes, b'x');
    command.extend_from_slice(b"\r\n");
    stream.write_all(&command).map_err(doing())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).map_err(doing())?;
    if answer.trim_end() != "STORED" {
        let why = format!("it answered {:?} to a value of {bytes} B", answer.trim_end());
        return Err(BenchError::OtherSystem { system: "a memcached server", why });
    }
    Ok(())
}

/// Raises this process's limit of file descriptors.
fn allow_files(wanted: u64) -> Result<(), BenchError> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let more = Rlimit { current: Some(wanted), maximum: limit.maximum };
    let doing = format!("allow {wanted} open files; raise the hard limit, as with `ulimit -Hn {wanted}`");
    setrlimit(Resource::Nofile, more).map_err(|error| BenchError::io(doing)(error.into()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Bytes that the system accepts until it accepts no more.
    fn taken(mut stream: TcpStream) -> usize {
        stream.set_nonblocking(true).unwrap();
        let piece = [0; WRITE_BYTES];
        let mut taken = 0;
        loop {
            match stream.write(&piece) {
                Ok(sent) => taken += sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return taken,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// If each connection used as much as loopback allows, 1,400 of them would hold 1.2 GB of the system's memory, and
    /// that would slow down the working client, not the server.
    #[test]
    fn what_nobody_reads_takes_little_memory_of_the_system() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = connected(listener.local_addr().unwrap()).unwrap();
        let (server, peer) = listener.accept().unwrap();
        assert_eq!(peer.ip(), HOST);
        let (sent, answered) = (taken(client.try_clone().unwrap()), taken(server.try_clone().unwrap()));
        assert!(sent < 256 << 10 && answered < 256 << 10, "{sent} B sent and {answered} B answered");
    }
}
