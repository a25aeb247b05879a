//! Shared memory in a directory of the test's own, and the child processes that join it there.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dunlin_net::shm::{ShmConfig, ShmTransport};
use dunlin_net::{Addr, Route, ShmName, Transport};

/// Tells a child the directory of its test.
pub const DIRECTORY: &str = "DUNLIN_TEST_DIRECTORY";
/// Longest wait. Reached only when something is broken.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A directory of its own for each test, removed at the end.
pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/dunlin-test-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Dir(path)
    }

    pub fn config(&self, name: &str) -> ShmConfig {
        config(&self.0, name)
    }

    pub fn endpoint(&self, name: &str) -> ShmTransport {
        endpoint(&self.0, name)
    }

    /// Starts this test binary again, as a process that runs its test `child`.
    pub fn child(&self, variables: &[(&str, &str)]) -> Killed {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .env(DIRECTORY, &self.0)
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Killed(child)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A child process that gets SIGKILL when dropped.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

pub fn config(directory: &Path, name: &str) -> ShmConfig {
    let mut config = ShmConfig::named(ShmName::new(name).unwrap());
    config.directory = directory.to_owned();
    config
}

pub fn endpoint(directory: &Path, name: &str) -> ShmTransport {
    ShmTransport::new(&config(directory, name)).unwrap()
}

pub fn addr(name: &str) -> Addr {
    Addr::Shm(ShmName::new(name).unwrap())
}

/// Retries until it works: the other process may still be starting.
pub fn resolve(endpoint: &mut ShmTransport, name: &str) -> Route {
    let end = Instant::now() + PATIENCE;
    loop {
        match endpoint.resolve(&addr(name)) {
            Ok(route) => return route,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        std::thread::yield_now();
    }
}
