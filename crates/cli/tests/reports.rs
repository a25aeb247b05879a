//! The demo and the experiments run, keep their reports, and can be interrupted.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dunlin_lab::report::{Metric, Report};

/// Far longer than anything here takes, even on a busy machine.
const LONG: Duration = Duration::from_secs(60);

fn dunlin() -> Command {
    Command::new(env!("CARGO_BIN_EXE_dunlin"))
}

fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("dunlin-test-{}-{name}", std::process::id()))
}

#[test]
fn demo_keeps_its_report() {
    let (json, html) = (temporary("demo.json"), temporary("demo.html"));
    let data = temporary("demo.tsv");
    std::fs::write(&data, (0..500).map(|number| format!("key-{number}\tvalue {number}\n")).collect::<String>())
        .unwrap();
    let mut demo = dunlin();
    demo.args(["demo", "--for", "1s", "--save"]).arg(&json).arg("--save").arg(&html).arg("--records").arg(&data);
    let output = demo.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).contains("raw floor"));

    let report: Report = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(report.experiment, "demo");
    for carrier in ["shm", "udp"] {
        for metric in [Metric::LatencyP50, Metric::LatencyP99, Metric::Rate, Metric::Bandwidth] {
            let row = report.rows.iter().find(|row| row.case.starts_with(carrier) && row.metric == metric).unwrap();
            assert!(row.value > 0.0 && row.floor.is_some_and(|floor| floor > 0.0), "{row:?}");
        }
    }
    for case in [
        "kv: load 500 records",
        "kv: shm",
        "kv: udp",
        "kv: memcached library",
        "kv: verify all 500 records after kill and restart",
    ] {
        let row = report.rows.iter().find(|row| row.case.starts_with(case)).unwrap();
        assert!(row.metric == Metric::Operations && row.value > 0.0, "{row:?}");
    }
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("<svg"));
    for file in [json, html, data] {
        std::fs::remove_file(file).unwrap();
    }
}

/// Processes whose parent is `parent`.
fn children(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.filter(|process| parent_of(*process) == Some(parent)).collect()
}

fn parent_of(process: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name is in parentheses and may contain anything; state and parent follow it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[test]
fn an_interrupt_ends_the_run_and_its_processes() {
    let mut run = dunlin()
        .args(["bench", "run", "rpc-latency", "--for", "30s"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + LONG;
    let started = loop {
        let children = children(run.id());
        if !children.is_empty() {
            break children;
        }
        assert!(run.try_wait().unwrap().is_none() && Instant::now() < deadline, "no process was started");
        std::thread::yield_now();
    };
    Command::new("kill").args(["-INT", &run.id().to_string()]).status().unwrap();
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(String::from_utf8_lossy(&output.stderr).contains("interrupted"));
    for process in started {
        assert!(parent_of(process).is_none(), "process {process} lives on");
    }
}
