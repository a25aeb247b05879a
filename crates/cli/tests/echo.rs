//! `dunlin echo` between two processes, and its errors when the peer is absent.

mod program;

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{CallError, CallFailure, Endpoint, EndpointConfig};
use program::{Server, dunlin};

/// The request type of `dunlin echo`.
const ECHO: u8 = 1;

fn serve(address: &str) -> Server {
    Server::start(dunlin(&["echo", "serve", "--at", address]))
}

fn call(address: &str, more: &[&str]) -> Output {
    dunlin(&["echo", "call", "--at", address]).args(more).output().unwrap()
}

fn calls_are_answered(address: &str) {
    let server = serve(address);
    let output = call(&server.addresses[0], &["--size", "32", "--window", "60", "--for", "200ms", "--stats"]);
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{errors}");
    assert!(text.contains("RPC/s with 60 of 32 B outstanding; round trip p50"), "{text}");
    assert!(text.contains("calls_completed") && text.contains("first session"), "{text}");
    let last_words = server.stop("-INT");
    let answered: u64 = last_words.split(' ').next().unwrap().parse().unwrap();
    assert!(answered > 0, "{last_words}");
}

#[test]
fn udp_calls_are_answered() {
    calls_are_answered("udp://127.0.0.1:0");
    calls_are_answered("udp://[::1]:0");
}

/// Runs a server with these limits of open files; returns its soft limit, and what it says.
fn limited(limits: &str) -> (u64, String) {
    let name = format!("shm:test-files-{}", std::process::id());
    let echo = format!("ulimit {limits}; exec {} echo serve --at {name}", env!("CARGO_BIN_EXE_dunlin"));
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &echo]);
    let mut server = Server::start(shell);
    let text = std::fs::read_to_string(format!("/proc/{}/limits", server.process.id())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let soft = line.split_whitespace().next().unwrap().parse().unwrap();
    server.kill();
    let mut said = String::new();
    server.process.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (soft, said)
}

/// Each peer in shared memory takes a file: a soft limit of 1,024 would end before the places for peers do.
#[test]
fn a_server_may_open_as_many_files_as_it_needs_or_says_what_to_change() {
    let (soft, said) = limited("-S -n 300");
    assert_eq!(soft, 1536, "{said}");
    assert!(!said.contains("LimitNOFILE"), "{said}");
    let (soft, said) = limited("-n 300");
    assert_eq!(soft, 300, "{said}");
    assert!(said.contains("1536 may be needed and 300 are allowed") && said.contains("LimitNOFILE=1536"), "{said}");
}

#[test]
fn shm_calls_are_answered() {
    calls_are_answered(&format!("shm:test-echo-{}", std::process::id()));
}

/// The content of a server's page.
fn page(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

#[test]
fn a_server_of_two_cores_listens_at_both_kinds_of_address_and_tells_its_metrics() {
    let name = format!("shm:test-cores-{}", std::process::id());
    let arguments =
        ["echo", "serve", "--at", &name, "--at", "udp://127.0.0.1:0", "--cores", "2", "--metrics", "127.0.0.1:0"];
    let server = Server::start(dunlin(&arguments));
    assert_eq!(server.addresses.len(), 2, "{}", server.ready);
    for address in server.addresses.iter().map(String::as_str).chain([&*format!("{name}.1")]) {
        assert!(call(address, &["--window", "1", "--for", "50ms"]).status.success(), "{address}");
    }
    let metrics = server.ready.split("metrics at http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap();
    assert!(page(metrics, "/healthz").starts_with("HTTP/1.1 200"));
    let text = page(metrics, "/metrics");
    for core in ["0", "1"] {
        let handled = format!("dunlin_echo_endpoint_events_total{{core=\"{core}\",event=\"requests_handled\"}} ");
        let count = text.lines().find_map(|line| line.strip_prefix(&*handled));
        assert!(count.is_some_and(|count| count.parse::<u64>().unwrap() > 0), "{text}");
    }
    assert!(server.stop("-TERM").contains(" requests answered"));
}

/// Asserts that a server that gets `signal` notifies its peers, shuts down gracefully and leaves nothing behind.
fn ends_in_order(address: &str, signal: &str) {
    let mut server = serve(address);
    let address: Addr = server.addresses[0].parse().unwrap();
    let region = if let Addr::Shm(name) = &address { Some(region(name.as_str())) } else { None };
    assert!(region.as_ref().is_none_or(|path| path.exists()));
    let client = Endpoint::new(AnyTransport::for_peer(&address).unwrap(), EndpointConfig::default()).unwrap();
    let error = client.block_on(async {
        let session = client.connect(&address).await.unwrap();
        let echo = session.call(ECHO, b"here I am".to_vec()).await.unwrap();
        assert_eq!(&echo.response[..], b"here I am");
        server.signal(signal);
        loop {
            match session.call(ECHO, Vec::new()).await {
                // Until all calls in progress are answered, it accepts no more.
                Ok(_) | Err(CallFailure { error: CallError::Busy | CallError::ShuttingDown, .. }) => {}
                Err(failure) => break failure.error,
            }
        }
    });
    assert_eq!(error, CallError::Closed, "{address} {signal}: a peer that died in order says so");
    assert!(server.process.wait().unwrap().success());
    assert!(region.is_none_or(|path| !path.exists()), "{address} {signal}");
}

/// The file of an endpoint in shared memory.
fn region(name: &str) -> PathBuf {
    let uid = std::fs::metadata("/proc/self").unwrap().uid();
    PathBuf::from(format!("/dev/shm/dunlin-{uid}-{name}"))
}

#[test]
fn signalled_servers_end_in_order() {
    for signal in ["-INT", "-TERM"] {
        ends_in_order(&format!("shm:test-end-{}", std::process::id()), signal);
        ends_in_order("udp://127.0.0.1:0", signal);
    }
}

#[test]
fn the_region_of_a_killed_server_is_removed_by_the_next_program() {
    let name = format!("test-killed-{}", std::process::id());
    let killed = serve(&format!("shm:{name}"));
    assert!(region(&name).exists());
    drop(killed);
    let next = serve(&format!("shm:{name}-next"));
    // A program of another test may be about to remove it, and then this one leaves that to it.
    let begun = Instant::now();
    while region(&name).exists() {
        assert!(begun.elapsed() < Duration::from_secs(10), "the region stays");
        thread::yield_now();
    }
    next.stop("-INT");
}

#[test]
fn packets_are_recorded() {
    let server = serve(&format!("shm:test-pcap-{}", std::process::id()));
    let file = std::env::temp_dir().join(format!("dunlin-test-{}.pcap", std::process::id()));
    let output = call(&server.addresses[0], &["--window", "1", "--for", "10ms", "--pcap", file.to_str().unwrap()]);
    let capture = std::fs::read(&file);
    let _ = std::fs::remove_file(&file);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let capture = capture.unwrap();
    let magic = u32::from_le_bytes(capture[..4].try_into().unwrap());
    assert!(matches!(magic, 0xa1b2_c3d4 | 0xa1b2_3c4d), "{magic:#x} does not begin a pcap file");
    assert!(capture.len() > 1000, "{} bytes", capture.len());
    fails(&call(&server.addresses[0], &["--pcap", "/nowhere/x.pcap"]), &["cannot write", "/nowhere/x.pcap"]);
    fails(&call(&server.addresses[0], &["--for", "10ms", "--pcap", "/dev/full"]), &["cannot write", "/dev/full"]);
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
    fails(&dunlin(&["echo", "serve", "--at", &address]).output().unwrap(), &[&address, "in use"]);
}

#[test]
fn the_cause_of_an_error_is_said_once() {
    // An address for documentation: no interface has it.
    let output = dunlin(&["echo", "serve", "--at", "udp://192.0.2.1:0"]).output().unwrap();
    fails(&output, &["udp://192.0.2.1:0", "os error 99"]);
    assert_eq!(String::from_utf8_lossy(&output.stderr).matches("os error").count(), 1, "{output:?}");
}

#[test]
fn a_missing_server_is_said() {
    // Bound and closed again: nothing listens there.
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("udp://127.0.0.1:{port}");
    fails(&call(&address, &["--for", "100ms"]), &[&address]);
    fails(&call("shm:test-nobody-is-here", &["--for", "100ms"]), &["shm:test-nobody-is-here"]);
}

/// A server that opens sessions and answers no call.
#[test]
fn silence_is_said() {
    let address: Addr = format!("shm:test-silent-{}", std::process::id()).parse().unwrap();
    let (stop, at) = (Arc::new(AtomicBool::new(false)), address.clone());
    let (stopping, (ready, is_ready)) = (stop.clone(), mpsc::channel());
    let server = thread::spawn(move || {
        let endpoint = Endpoint::new(AnyTransport::bind(&at).unwrap(), EndpointConfig::default()).unwrap();
        let mut kept = Vec::new();
        endpoint.register(ECHO, move |request| kept.extend(request.defer())).unwrap();
        ready.send(()).unwrap();
        endpoint.run_until(|| stopping.load(Relaxed));
    });
    is_ready.recv().unwrap();
    let output = call(&address.to_string(), &["--window", "8", "--size", "32", "--for", "300ms"]);
    stop.store(true, Relaxed);
    server.join().unwrap();
    fails(&output, &[&address.to_string(), "no call was answered", "8 calls of 32 B", "packets were sent"]);
    assert!(output.stdout.is_empty(), "{output:?}");
}

#[test]
fn bad_addresses_are_said() {
    for address in ["echo", "shm:", "udp://", "udp://127.0.0.1", "tcp://127.0.0.1:1"] {
        fails(&call(address, &[]), &["address"]);
        fails(&dunlin(&["echo", "serve", "--at", address]).output().unwrap(), &["bad address"]);
    }
    fails(&call("shm:x", &["--window", "0"]), &["--window"]);
    fails(&call("shm:x", &["--size", "9000000"]), &["--size"]);
}
