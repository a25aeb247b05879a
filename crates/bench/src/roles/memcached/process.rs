//! The memcached of the system, as a process on the core of servers.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::BenchError;
use crate::peer::{Control, Role};

/// The program, as Debian's package installs it.
const PROGRAM: &str = "memcached";
/// How long it may take until it listens.
const START_MAX: Duration = Duration::from_secs(10);
/// Between two looks whether it listens, or is to end.
const LOOK_AROUND: Duration = Duration::from_millis(5);

/// A server that others may talk to.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Serving {
    /// Where it listens for memcached's protocol.
    pub address: SocketAddr,
    /// Number of its process.
    pub process: u32,
}

/// memcached with one worker thread. Runs until it is stopped.
#[derive(Debug, Serialize, Deserialize)]
pub struct MemcachedProcess {
    /// Memory for items, in MiB.
    pub memory_mib: u64,
}

/// What `memcached --version` says. None if there is none.
pub fn installed_version() -> Option<String> {
    let output = Command::new(PROGRAM).arg("--version").stdin(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl Role for MemcachedProcess {
    const NAME: &'static str = "memcached";
    type Ready = Serving;
    type Output = ();

    fn run(self, control: &Control<Self>) -> Result<(), BenchError> {
        let address = free_address()?;
        let mut process = Process(self.start(address).map_err(BenchError::io("start memcached"))?);
        let started = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Ok(Some(status)) = process.0.try_wait() {
                return Err(BenchError::OtherSystem { system: PROGRAM, why: format!("it ended at once with {status}") });
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
    /// It inherits the core of this process, with all its threads.
    fn start(&self, address: SocketAddr) -> std::io::Result<Child> {
        let mut command = Command::new(PROGRAM);
        command.args(["-t", "1", "-U", "0", "-l", &address.ip().to_string(), "-p", &address.port().to_string()]);
        command.args(["-m", &self.memory_mib.to_string()]);
        if rustix::process::geteuid().is_root() {
            // It refuses to run as root unless it is told so.
            command.args(["-u", "root"]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    }
}

/// A port of loopback that nobody had a moment ago.
fn free_address() -> Result<SocketAddr, BenchError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    listener.map_err(BenchError::io("find a free port"))
}

/// Ends with this value.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
