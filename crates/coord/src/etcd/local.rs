//! An etcd on this machine, as child processes, for tests and experiments. It is not a service: dropping its value ends
//! it.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// The program, as Debian's package `etcd-server` installs it.
pub const PROGRAM: &str = "etcd";
/// Time limit until all members listen.
const START_MAX: Duration = Duration::from_secs(30);
/// Interval at which that is checked.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How often other ports are tried, if another process took the free ones.
const PORTS_TRIED: usize = 3;

/// Members of an etcd. Their data is in the directory that they were given, which stays.
#[derive(Debug)]
pub struct LocalEtcd {
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    endpoint: String,
    process: Child,
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The first line of `program --version`. `None` if there is no such program.
pub fn installed_version(program: &Path) -> Option<String> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned())
}

/// Loopback ports that were free a moment ago.
fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let listeners = (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<io::Result<Vec<_>>>()?;
    listeners.iter().map(|listener| listener.local_addr().map(|address| address.port())).collect()
}

impl LocalEtcd {
    /// Starts an etcd of this many members, and waits until all listen. They inherit the CPU affinity of this thread.
    /// Their output goes to `etcd-N.log` in the directory.
    ///
    /// # Errors
    /// If there is no such program, it exits at once, or it does not listen in time.
    pub fn start(program: &Path, members: usize, directory: &Path) -> io::Result<LocalEtcd> {
        let mut tries = 1;
        loop {
            match Self::try_start(program, members, directory) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries < PORTS_TRIED => tries += 1,
                other => return other,
            }
        }
    }

    fn try_start(program: &Path, members: usize, directory: &Path) -> io::Result<LocalEtcd> {
        let ports = free_ports(2 * members)?;
        let (clients, peers) = ports.split_at(members);
        let url = |port: &u16| format!("http://127.0.0.1:{port}");
        let cluster: Vec<String> =
            peers.iter().enumerate().map(|(place, port)| format!("n{place}={}", url(port))).collect();
        let mut started = LocalEtcd { members: Vec::new() };
        for (place, (client, peer)) in clients.iter().zip(peers).enumerate() {
            let data = directory.join(format!("n{place}"));
            if data.exists() {
                // Left by an attempt whose ports were taken.
                std::fs::remove_dir_all(&data)?;
            }
            let log = File::create(directory.join(format!("etcd-{place}.log")))?;
            let mut command = Command::new(program);
            command.args(["--name", &format!("n{place}")]).arg("--data-dir").arg(data);
            command.args(["--listen-client-urls", &url(client), "--advertise-client-urls", &url(client)]);
            command.args(["--listen-peer-urls", &url(peer), "--initial-advertise-peer-urls", &url(peer)]);
            command.args(["--initial-cluster", &cluster.join(",")]);
            let process = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
            started.members.push(Member { endpoint: url(client), process });
        }
        let begun = Instant::now();
        for (place, port) in clients.iter().enumerate() {
            while TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).is_err() {
                started.check(place, directory)?;
                if begun.elapsed() > START_MAX {
                    let why = format!(
                        "it does not listen after {START_MAX:?}: see etcd-{place}.log in {}",
                        directory.display()
                    );
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
                thread::sleep(LOOK_EVERY);
            }
        }
        Ok(started)
    }

    /// Checks that a member is still running.
    fn check(&mut self, place: usize, directory: &Path) -> io::Result<()> {
        let Some(status) = self.members[place].process.try_wait()? else { return Ok(()) };
        let said = std::fs::read_to_string(directory.join(format!("etcd-{place}.log"))).unwrap_or_default();
        let kind =
            if said.contains("address already in use") { io::ErrorKind::AddrInUse } else { io::ErrorKind::Other };
        let last = said.lines().last().unwrap_or_default();
        Err(io::Error::new(kind, format!("etcd ended with {status}: {last}")))
    }

    /// The addresses of all members that were started.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| member.endpoint.clone()).collect()
    }

    /// Their process ids.
    pub fn processes(&self) -> Vec<u32> {
        self.members.iter().map(|member| member.process.id()).collect()
    }

    /// Kills a member with SIGKILL.
    ///
    /// # Errors
    /// If the system refuses.
    ///
    /// # Panics
    /// If there is no such member.
    pub fn kill(&mut self, place: usize) -> io::Result<()> {
        let process = &mut self.members[place].process;
        process.kill()?;
        process.wait().map(|_| ())
    }
}

/// An empty directory that is removed when this value is dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes a directory in `parent`, named after `purpose` and this process.
    ///
    /// # Errors
    /// If the system refuses, or the directory exists.
    pub fn make(parent: &Path, purpose: &str) -> io::Result<Scratch> {
        let path = parent.join(format!("dunlin-{purpose}-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Scratch(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
