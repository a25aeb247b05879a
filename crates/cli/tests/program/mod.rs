//! The `dunlin` program as processes: commands, and servers that do not outlive their test.
#![allow(dead_code, reason = "each test file uses some of it")]

pub mod raft;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

/// The program with these arguments.
pub fn dunlin(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dunlin"));
    command.args(arguments);
    command
}

/// A server that is killed at the end of its test, if it still runs.
pub struct Server {
    pub process: Child,
    output: BufReader<ChildStdout>,
    /// The line that reports its addresses.
    pub ready: String,
    /// Its addresses for Dunlin clients.
    pub addresses: Vec<String>,
}

impl Server {
    /// Starts a server by a command, and waits until it serves.
    pub fn start(mut command: Command) -> Server {
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut ready = String::new();
        output.read_line(&mut ready).unwrap();
        if ready.is_empty() {
            let mut errors = String::new();
            process.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
            panic!("the server did not start: {errors}");
        }
        assert!(ready.starts_with("serving "), "{ready}");
        let places = ready.split(" at ").nth(1).and_then(|rest| rest.split(';').next()).unwrap();
        let addresses = places
            .split(", ")
            .filter(|place| place.starts_with("shm:") || place.starts_with("udp://"))
            .map(str::to_owned)
            .collect();
        Server { process, output, ready, addresses }
    }

    pub fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.process.id().to_string()]).status().unwrap().success());
    }

    /// Stops it with a signal, and returns its output.
    pub fn stop(mut self, signal: &str) -> String {
        self.signal(signal);
        assert!(self.process.wait().unwrap().success());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        rest
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
