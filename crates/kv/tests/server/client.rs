//! Servers in this process, and memcached clients for them.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use dunlin_kv::memcached::Listen;
use dunlin_kv::server::{Server, ServerConfig};
use dunlin_store::Sweep;

/// Long enough for a busy machine; anything longer counts as hung.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a path that no other test or test run uses.
pub fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("dunlin-kv-{name}-{}", std::process::id()))
}

/// Returns settings of a small server with this name, with a Unix socket for memcached clients.
pub fn config(name: &str, cores: u16) -> ServerConfig {
    let mut config = ServerConfig::default();
    config.listen = vec![format!("shm:test-kv-server-{name}-{}", std::process::id()).parse().unwrap()];
    config.memcached = vec![Listen::Unix(path(name).with_extension("sock"))];
    config.memory_bytes = usize::from(cores) * (16 << 20);
    config.cores = cores;
    config
}

/// Waits until a server reports that it no longer runs.
pub fn wait_for_the_end<P: Sweep>(server: &Server<P>) {
    let begun = Instant::now();
    while server.is_running() {
        assert!(begun.elapsed() < PATIENCE, "the server goes on as if nothing had happened");
        std::thread::yield_now();
    }
}

/// A memcached client.
pub struct Client(pub UnixStream);

impl Client {
    pub fn connect(config: &ServerConfig) -> Client {
        let Listen::Unix(path) = &config.memcached[0] else { panic!("no Unix socket") };
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client(stream)
    }

    pub fn say(&mut self, request: &[u8]) {
        self.0.write_all(request).unwrap();
    }

    pub fn expect(&mut self, answer: &[u8]) {
        let mut got = vec![0; answer.len()];
        self.0.read_exact(&mut got).unwrap();
        assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(answer));
    }

    pub fn ask(&mut self, request: &[u8], answer: &[u8]) {
        self.say(request);
        self.expect(answer);
    }

    /// Reads until an answer with this end has arrived.
    pub fn until(&mut self, end: &[u8]) -> Vec<u8> {
        let mut answer = Vec::new();
        while !answer.ends_with(end) {
            let mut bytes = [0; 256];
            let len = self.0.read(&mut bytes).unwrap();
            assert!(len > 0, "the server closed the connection");
            answer.extend(&bytes[..len]);
        }
        answer
    }

    /// Reads until the server closes the connection.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
        rest
    }

    /// Stores `count` items, `NAMEi` with the value `i`.
    pub fn fill(&mut self, name: &str, count: u32) {
        for i in 0..count {
            let value = i.to_string();
            self.ask(format!("set {name}{i} 0 0 {}\r\n{value}\r\n", value.len()).as_bytes(), b"STORED\r\n");
        }
    }

    /// Returns how many of them exist.
    pub fn count(&mut self, name: &str, count: u32) -> u32 {
        let mut found = 0;
        for i in 0..count {
            self.say(format!("mg {name}{i} v\r\nmn\r\n").as_bytes());
            let answer = self.until(b"MN\r\n");
            found += u32::from(answer.starts_with(b"VA "));
        }
        found
    }
}
