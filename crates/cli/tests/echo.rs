//! `dunlin echo` between two processes, and what it says when the other is not there.

use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::process::{Child, Command, Output, Stdio};

fn dunlin(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dunlin"));
    command.args(arguments);
    command
}

/// A server that is killed at the end of its test, if it is still there.
struct Server {
    process: Child,
    output: BufReader<std::process::ChildStdout>,
    address: String,
}

impl Server {
    fn start(address: &str) -> Server {
        let mut process = dunlin(&["echo", "serve", address]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let address = line.strip_prefix("serving echoes at ").and_then(|rest| rest.split(';').next()).unwrap().to_owned();
        Server { process, output, address }
    }

    /// Stops it as ctrl-C does, and gives what it says.
    fn interrupt(mut self) -> String {
        Command::new("kill").args(["-INT", &self.process.id().to_string()]).status().unwrap();
        assert!(self.process.wait().unwrap().success());
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        rest
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn call(address: &str, more: &[&str]) -> Output {
    dunlin(&["echo", "call", address]).args(more).output().unwrap()
}

fn calls_are_answered(address: &str) {
    let server = Server::start(address);
    let output = call(&server.address, &["--size", "32", "--window", "60", "--seconds", "0.2", "--stats"]);
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{errors}");
    assert!(text.contains("RPC/s with 60 of 32 B outstanding; round trip p50"), "{text}");
    assert!(text.contains("calls_completed") && text.contains("first session"), "{text}");
    let last_words = server.interrupt();
    let answered: u64 = last_words.split(' ').next().unwrap().parse().unwrap();
    assert!(answered > 0, "{last_words}");
}

#[test]
fn udp_calls_are_answered() {
    calls_are_answered("udp://127.0.0.1:0");
    calls_are_answered("udp://[::1]:0");
}

#[test]
fn shm_calls_are_answered() {
    calls_are_answered(&format!("shm:test-echo-{}", std::process::id()));
}

/// Asserts that a command fails with one line that contains each of `words`.
fn fails(output: &Output, words: &[&str]) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert_eq!(message.trim_end().lines().count(), 1, "{message}");
    for word in words {
        assert!(message.contains(word), "{word} is not in {message}");
    }
}

#[test]
fn a_port_in_use_is_said() {
    let holder = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = format!("udp://{}", holder.local_addr().unwrap());
    fails(&dunlin(&["echo", "serve", &address]).output().unwrap(), &[&address, "in use"]);
}

#[test]
fn a_missing_server_is_said() {
    // Bound and closed again: nobody listens there.
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("udp://127.0.0.1:{port}");
    fails(&call(&address, &["--seconds", "0.1"]), &[&address]);
    fails(&call("shm:test-nobody-is-here", &["--seconds", "0.1"]), &["shm:test-nobody-is-here"]);
}

#[test]
fn bad_addresses_are_said() {
    for address in ["echo", "shm:", "udp://", "udp://127.0.0.1", "tcp://127.0.0.1:1"] {
        fails(&call(address, &[]), &["bad address"]);
        fails(&dunlin(&["echo", "serve", address]).output().unwrap(), &["bad address"]);
    }
    fails(&call("shm:x", &["--window", "0"]), &["--window"]);
    fails(&call("shm:x", &["--size", "9000000"]), &["--size"]);
}
