//! Settings from a file, and logs: of the program as a process.

mod program;

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use program::{Server, dunlin};

/// A file that is removed at the end of its test.
struct TestFile(PathBuf);

impl TestFile {
    fn new(name: &str, text: &str) -> TestFile {
        let path = std::env::temp_dir().join(format!("dunlin-test-settings-{name}-{}.toml", std::process::id()));
        fs::write(&path, text).unwrap();
        TestFile(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn run(arguments: &[&str]) -> Output {
    dunlin(arguments).output().unwrap()
}

/// The output of a command that succeeds.
fn printed(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_server_prints_its_settings_and_reads_them_back() {
    for (server, line) in [
        ("echo", "cores = 1"),
        ("kv", "memory = \"1GiB\""),
        ("raft", "election = \"500ms\""),
        ("coord", "failure-timeout = \"5s\""),
    ] {
        let defaults = printed(&[server, "serve", "--print-config"]);
        assert!(defaults.lines().any(|found| found == line), "{line} is not in\n{defaults}");
        let file = TestFile::new(server, &defaults);
        assert_eq!(printed(&[server, "serve", "--config", file.path(), "--print-config"]), defaults);
    }
}

#[test]
fn a_server_serves_as_its_file_says_and_the_command_line_wins() {
    let (ours, other) =
        (format!("shm:test-file-{}", std::process::id()), format!("shm:test-flag-{}", std::process::id()));
    let file = TestFile::new("kv-file", &format!("at = [\"{ours}\"]\nmemory = \"8MiB\"\nmode = \"store\"\n"));
    let server = Server::start(dunlin(&["kv", "serve", "--config", file.path()]));
    assert_eq!(server.addresses, [ours]);
    assert!(server.ready.contains("1 core, 8 MiB, store"), "{}", server.ready);
    server.stop("-TERM");
    let server = Server::start(dunlin(&["kv", "serve", "--at", &other, "--config", file.path(), "--mode=cache"]));
    assert_eq!(server.addresses, [other]);
    assert!(server.ready.contains("1 core, 8 MiB, cache"), "{}", server.ready);
    server.stop("-TERM");
}

#[test]
fn a_wrong_file_is_refused_in_one_line() {
    for (text, why) in [
        ("memmory = \"8MiB\"", "`dunlin kv serve` has no setting \"memmory\"; did you mean \"memory\"?"),
        ("memory = \"lots\"", "memory: invalid value 'lots'"),
        ("memory = ", "is not TOML: line 1"),
    ] {
        let file = TestFile::new("wrong", text);
        let output = run(&["kv", "serve", "--config", file.path()]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
        assert!(said.contains(file.path()) && said.contains(why), "{said}");
    }
    let file = TestFile::new("incomplete", "election = \"1s\"");
    let said = String::from_utf8(run(&["raft", "serve", "--config", file.path()]).stderr).unwrap();
    assert!(said.contains("required") && said.contains(file.path()), "{said}");
}

#[test]
fn servers_log_as_much_as_they_are_asked_to() {
    let logged = |more: &[&str]| {
        let listen = format!("shm:test-log-{}", std::process::id());
        let mut command = dunlin(&["echo", "serve", "--at", &listen]);
        command.args(more).env("NO_COLOR", "1");
        let mut server = Server::start(command);
        let mut errors = server.process.stderr.take().unwrap();
        server.stop("-TERM");
        std::io::read_to_string(&mut errors).unwrap()
    };
    assert_eq!(logged(&[]), "");
    for more in [&["-v"][..], &["--log", "info"], &["--log", "error,dunlin_serve=info"]] {
        let said = logged(more);
        assert!(said.contains("INFO") && said.contains("a server serves"), "{more:?}: {said}");
    }
    assert_eq!(logged(&["--log", "info,dunlin_serve=error"]), "");
    let refused = run(&["echo", "serve", "--at", "shm:x", "--log", "dunlin_serve=loud"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--log"));
    assert!(!refused.status.success());
}
