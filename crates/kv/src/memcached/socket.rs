//! Sockets: listening for connections, and the connections before a core adopts them.

use std::fmt;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket as RawSocket, TcpKeepalive, Type};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::hosts::HostName;

/// Maximum number of connections that wait to be accepted: memcached's default.
const BACKLOG: i32 = 1024;
/// How long to accept nothing after the system failed to provide a connection (for lack of file descriptors, for
/// example).
const PAUSE: Duration = Duration::from_millis(10);
/// Detects clients whose machine is gone: after a minute of silence, a probe is sent every ten seconds, as many as the
/// system's default (nine on Linux).
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(10));
/// The permissions of a Unix socket: only its owner may connect.
const UNIX_MODE: u32 = 0o700;

/// Where to listen: `tcp://127.0.0.1:11211` or `unix:/run/user/1000/kv.sock`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

/// A text that is not an address to listen at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address for memcached clients: give tcp://127.0.0.1:11211 or unix:/path/of/socket")]
pub struct ListenError(String);

impl FromStr for Listen {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Listen, ListenError> {
        let error = || ListenError(text.to_owned());
        if let Some(addr) = text.strip_prefix("tcp://") {
            addr.parse().map(Listen::Tcp).map_err(|_| error())
        } else if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            // The form unix:///path is a path as well.
            Ok(Listen::Unix(PathBuf::from(path.strip_prefix("//").unwrap_or(path))))
        } else {
            Err(error())
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(addr) => write!(f, "tcp://{addr}"),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The number of a server's connections, and their limit. Shared by its acceptors.
#[derive(Debug, Clone)]
pub struct ConnectionLimit {
    places: Arc<Semaphore>,
    rejected: Arc<AtomicU64>,
    max: usize,
}

impl ConnectionLimit {
    /// Creates a limit of `max` connections.
    pub fn new(max: usize) -> ConnectionLimit {
        let max = max.min(Semaphore::MAX_PERMITS);
        ConnectionLimit { places: Arc::new(Semaphore::new(max)), rejected: Arc::new(AtomicU64::new(0)), max }
    }

    /// Returns the limit.
    pub fn max(&self) -> usize {
        self.max
    }

    /// Returns the number of connections rejected since the start.
    pub fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }
}

/// A connection that no core has adopted yet. It counts against the limit until it is dropped.
#[derive(Debug)]
pub struct Socket {
    pub(super) stream: RawSocket,
    pub(super) is_unix: bool,
    pub(super) peer: String,
    pub(super) host: HostName,
    pub(super) permit: OwnedSemaphorePermit,
}

#[derive(Debug)]
enum Listener {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl Listener {
    /// Accepts the next connection, not bound to any runtime.
    async fn accept(&self) -> io::Result<(RawSocket, Option<SocketAddr>)> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok((stream.into_std()?.into(), Some(peer)))
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((stream.into_std()?.into(), None))
            }
        }
    }
}

/// A listening socket.
#[derive(Debug)]
pub struct Acceptor {
    listener: Listener,
    listen: Listen,
    /// The socket file, if it created one.
    file: Option<FileId>,
    limit: ConnectionLimit,
}

impl Acceptor {
    /// Listens. Needs a tokio runtime, whose thread accepts.
    ///
    /// Replaces a socket left over from a dead server, but no other file. Only the owner may use a Unix socket.
    ///
    /// # Errors
    /// The system's error, for example that the address is in use; so also if another file has the path.
    pub fn bind(listen: &Listen, limit: ConnectionLimit) -> io::Result<Acceptor> {
        let (socket, listen, file) = match listen {
            Listen::Tcp(addr) => {
                let socket = RawSocket::new(Domain::for_address(*addr), Type::STREAM, Some(Protocol::TCP))?;
                socket.set_reuse_address(true)?;
                socket.bind(&SockAddr::from(*addr))?;
                let bound = socket.local_addr()?.as_socket().unwrap_or(*addr);
                (socket, Listen::Tcp(bound), None)
            }
            Listen::Unix(path) => {
                let addr = SockAddr::unix(path)?;
                if is_left_over(path, &addr)? {
                    std::fs::remove_file(path)?;
                }
                let socket = RawSocket::new(Domain::UNIX, Type::STREAM, None)?;
                socket.bind(&addr)?;
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(UNIX_MODE))?;
                (socket, Listen::Unix(path.clone()), FileId::of(path))
            }
        };
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let listener = match &listen {
            Listen::Tcp(_) => Listener::Tcp(tokio::net::TcpListener::from_std(socket.into())?),
            Listen::Unix(_) => Listener::Unix(tokio::net::UnixListener::from_std(socket.into())?),
        };
        Ok(Acceptor { listener, listen, file, limit })
    }

    /// Returns the address it listens at, with the port that the system chose.
    pub fn listen(&self) -> &Listen {
        &self.listen
    }

    /// Returns the next connection. Tells connections above the limit so and closes them, as memcached does; waits a
    /// little if the system has no more file descriptors.
    pub async fn accept(&self) -> Socket {
        loop {
            match self.listener.accept().await.and_then(|(stream, peer)| self.admit(stream, peer)) {
                Ok(Some(socket)) => return socket,
                Ok(None) => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => {
                }
                Err(error) => {
                    tracing::warn!(listen = %self.listen, %error, "cannot accept a memcached connection; trying again");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn admit(&self, stream: RawSocket, peer: Option<SocketAddr>) -> io::Result<Option<Socket>> {
        let Ok(permit) = self.limit.places.clone().try_acquire_owned() else {
            self.limit.rejected.fetch_add(1, Ordering::Relaxed);
            // A client that does not take these few bytes at once will see that the connection is closed.
            let _ = (&stream).write(b"ERROR Too many open connections\r\n");
            return Ok(None);
        };
        let (is_unix, host, peer) = match (&self.listen, peer) {
            (_, Some(peer)) => (false, HostName::from(peer.ip()), format!("tcp:{peer}")),
            (listen, None) => (true, HostName::Local, listen.to_string()),
        };
        if !is_unix {
            stream.set_tcp_nodelay(true)?;
            // Without this, a client whose machine is gone would not be detected.
            stream.set_tcp_keepalive(&KEEPALIVE)?;
        }
        Ok(Some(Socket { stream, is_unix, peer, host, permit }))
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        if let Listen::Unix(path) = &self.listen {
            // The file may have been removed already and replaced by another one.
            if self.file.is_some() && FileId::of(path) == self.file {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// Distinguishes a file from any other that is or was at its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// Returns the identity of the file at `path`, if there is one.
    fn of(path: &Path) -> Option<FileId> {
        let metadata = std::fs::symlink_metadata(path).ok()?;
        Some(FileId { device: metadata.dev(), inode: metadata.ino() })
    }
}

/// Whether `path` is a socket without a server. Connections to files that are not sockets are refused too.
fn is_left_over(path: &Path, addr: &SockAddr) -> io::Result<bool> {
    if !std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
        return Ok(false);
    }
    let connected = RawSocket::new(Domain::UNIX, Type::STREAM, None)?.connect(addr);
    Ok(connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused))
}

/// A connection's stream on the runtime of its core.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

impl Stream {
    pub fn new(stream: RawSocket, is_unix: bool) -> io::Result<Stream> {
        Ok(if is_unix {
            Stream::Unix(tokio::net::UnixStream::from_std(stream.into())?)
        } else {
            Stream::Tcp(tokio::net::TcpStream::from_std(stream.into())?)
        })
    }

    pub fn poll_read_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tcp(stream) => stream.poll_read_ready(context),
            Stream::Unix(stream) => stream.poll_read_ready(context),
        }
    }

    /// Reads. After a short read, the runtime knows that nothing is left, which saves the system call to find out.
    pub fn poll_read(&mut self, context: &mut Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut room = ReadBuf::new(room);
        let polled = match self {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(context, &mut room),
            Stream::Unix(stream) => Pin::new(stream).poll_read(context, &mut room),
        };
        polled.map_ok(|()| room.filled().len())
    }

    pub fn try_read(&self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.try_read(room),
            Stream::Unix(stream) => stream.try_read(room),
        }
    }

    pub fn poll_write_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tcp(stream) => stream.poll_write_ready(context),
            Stream::Unix(stream) => stream.poll_write_ready(context),
        }
    }

    pub fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.try_write(bytes),
            Stream::Unix(stream) => stream.try_write(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both are what ends a connection whose client is gone.
    #[tokio::test]
    async fn connections_are_probed_and_may_be_idle_for_an_hour() {
        let limit = ConnectionLimit::new(1);
        let acceptor = Acceptor::bind(&"tcp://127.0.0.1:0".parse().unwrap(), limit).unwrap();
        let Listen::Tcp(addr) = acceptor.listen() else { panic!("{}", acceptor.listen()) };
        let client = std::net::TcpStream::connect(addr).unwrap();
        let socket = acceptor.accept().await;
        assert!(socket.stream.keepalive().unwrap());
        assert_eq!(socket.stream.tcp_keepalive_time().unwrap(), Duration::from_secs(60));
        assert_eq!(socket.stream.tcp_keepalive_interval().unwrap(), Duration::from_secs(10));
        assert_eq!(crate::server::ServerConfig::default().idle_max, Some(Duration::from_secs(3600)));
        drop(client);
    }

    #[test]
    fn places_to_listen_are_read_and_written() {
        for text in ["tcp://127.0.0.1:11211", "tcp://[::1]:0", "unix:/run/kv.sock"] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
        assert_eq!("unix:///run/kv.sock".parse(), Ok(Listen::Unix("/run/kv.sock".into())));
        for text in ["", "tcp://", "127.0.0.1:11211", "tcp://localhost", "unix:", "udp://127.0.0.1:1"] {
            assert!(text.parse::<Listen>().is_err(), "{text:?}");
        }
    }
}
