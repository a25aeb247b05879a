//! The installed memcached, as a process on the server core.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use dunlin_lab::peer::{Control, Role};
use serde::{Deserialize, Serialize};

use crate::BenchError;

/// The program, as Debian's package installs it.
const PROGRAM: &str = "memcached";
/// Time limit until it listens.
const START_MAX: Duration = Duration::from_secs(10);
/// Interval of checks whether it listens, or is to stop.
const LOOK_AROUND: Duration = Duration::from_millis(5);

/// A server that accepts connections.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Serving {
    /// Its address for memcached's protocol.
    pub address: SocketAddr,
    /// Its process id.
    pub process: u32,
}

/// memcached with one worker thread. Runs until it is stopped.
#[derive(Debug, Serialize, Deserialize)]
pub struct MemcachedProcess {
    /// Memory for items, in MiB.
    pub memory_mib: u64,
}

/// The output of `memcached --version`. `None` if it is not installed.
pub fn installed_version() -> Option<String> {
    let output = Command::new(PROGRAM).arg("--version").stdin(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl Role for MemcachedProcess {
    const NAME: &'static str = "memcached";
    type Ready = Serving;
    type Output = ();
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<(), BenchError> {
        let address = free_address()?;
        let mut process = Process(self.start(address).map_err(BenchError::io("start memcached"))?);
        let started = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Ok(Some(status)) = process.0.try_wait() {
                return Err(BenchError::OtherSystem {
                    system: PROGRAM,
                    why: format!("it ended at once with {status}"),
                });
            }
            if started.elapsed() > START_MAX {
                return Err(BenchError::OtherSystem {
                    system: PROGRAM,
                    why: format!("it did not listen within {START_MAX:?}"),
                });
            }
            thread::sleep(LOOK_AROUND);
        }
        control.ready(Serving { address, process: process.0.id() });
        while !control.stopping() {
            thread::sleep(LOOK_AROUND);
        }
        Ok(())
    }
}

impl MemcachedProcess {
    /// The process inherits the CPU affinity of this one, with all its threads.
    fn start(&self, address: SocketAddr) -> std::io::Result<Child> {
        let mut command = Command::new(PROGRAM);
        command.args(["-t", "1", "-U", "0", "-l", &address.ip().to_string(), "-p", &address.port().to_string()]);
        command.args(["-m", &self.memory_mib.to_string()]);
        if rustix::process::geteuid().is_root() {
            // It refuses to run as root without this option.
            command.args(["-u", "root"]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    }
}

/// A loopback port that was free a moment ago.
fn free_address() -> Result<SocketAddr, BenchError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    listener.map_err(BenchError::io("find a free port"))
}

/// Killed when this value is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
