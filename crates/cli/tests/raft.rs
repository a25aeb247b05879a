//! `dunlin raft` as processes: replicas and their clients.

mod program;

use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Output, Stdio};

use program::{Server, dunlin};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Addresses over UDP whose ports were free a moment ago, from 1 on.
fn free_addresses(count: usize) -> Vec<String> {
    let sockets: Vec<UdpSocket> = (0..count).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    let address = |(at, socket): (usize, &UdpSocket)| format!("{}=udp://{}", at + 1, socket.local_addr().unwrap());
    sockets.iter().enumerate().map(address).collect()
}

/// A directory that goes with its test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("dunlin-test-raft-{}-{name}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Directory(path)
    }

    fn of(&self, id: u64) -> String {
        self.0.join(id.to_string()).to_str().unwrap().to_owned()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn serve(directory: &Directory, peers: &str, id: u64, more: &[&str]) -> Server {
    let (id_text, data) = (id.to_string(), directory.of(id));
    let arguments = ["raft", "serve", "--id", &id_text, "--peers", peers, "--data", &data];
    Server::start(dunlin(&[&arguments, more].concat()))
}

/// A client, with its exit code and what it prints.
fn ask(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = dunlin(&[&["raft"], arguments].concat()).stdin(Stdio::null()).output().unwrap();
    (status.code().unwrap(), text(&stdout), text(&stderr))
}

/// The lines of the status: an id and a role.
fn status(replicas: &str) -> serde_json::Value {
    let (_, out, err) = ask(&["status", replicas, "--json"]);
    serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"))
}

#[test]
fn three_replicas_serve_and_leave_in_order() {
    let directory = Directory::new("three");
    let replicas = free_addresses(3).join(",");
    let mut servers: Vec<Option<Server>> = (1..=3).map(|id| Some(serve(&directory, &replicas, id, &[]))).collect();
    let (code, out, err) = ask(&["put", &replicas, "bird", "dunlin", "--timeout", "20"]);
    assert!(code == 0 && out.starts_with("version "), "{out}{err}");
    assert_eq!(ask(&["get", &replicas, "bird"]), (0, "dunlin".into(), String::new()));
    assert_eq!(ask(&["get", &replicas, "fish"]).0, 1);
    let (code, _, err) = ask(&["put", &replicas, "bird", "knot", "--if", "absent"]);
    assert!(code == 3 && err.contains("there is an item \"bird\""), "{code} {err}");
    let (code, _, err) = ask(&["put", &replicas, "fish", "cod", "--if", "present"]);
    assert!(code == 1 && err.contains("there is no item \"fish\""), "{code} {err}");
    let (_, facts, _) = ask(&["get", &replicas, "bird", "--facts"]);
    assert_eq!(facts, out.replace("version ", "version  ") + "length   6 B\n");

    let before = status(&replicas);
    let leader = before["leader"].as_u64().unwrap();
    assert_eq!(before["members"], serde_json::json!([1, 2, 3]));
    assert!(before["replicas"].as_array().unwrap().iter().all(|replica| replica["vote"] == "yes"), "{before}");
    // It hands over before it ends, and its directory is free then.
    let said = servers[leader as usize - 1].take().unwrap().stop("-TERM");
    assert_eq!(said, "ended\n");
    assert_eq!(ask(&["put", &replicas, "bird", "knot", "--timeout", "20"]).0, 0);
    let after = status(&replicas);
    assert_ne!(after["leader"], before["leader"]);
    assert_eq!(after["replicas"][leader as usize - 1]["role"], "unreachable");
    servers[leader as usize - 1] = Some(serve(&directory, &replicas, leader, &[]));
    assert_eq!(ask(&["get", &replicas, "bird"]), (0, "knot".into(), String::new()));

    // One that was killed has what it said.
    for server in &mut servers {
        server.as_mut().unwrap().kill();
    }
    let (code, _, err) = ask(&["get", &replicas, "bird", "--timeout", "0.2"]);
    assert!(code == 2 && err.contains("no leader answered in time"), "{code} {err}");
    let _servers: Vec<Server> = (1..=3).map(|id| serve(&directory, &replicas, id, &[])).collect();
    assert_eq!(ask(&["get", &replicas, "bird", "--timeout", "20"]), (0, "knot".into(), String::new()));
}
