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
    for none in ["txn: acknowledged transfers that were lost, of ", "txn: money of 100 accounts that is missing"] {
        let row = report.rows.iter().find(|row| row.case.starts_with(none)).unwrap();
        assert_eq!(row.value, 0.0, "{row:?}");
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

/// Runs a command, and returns its exit code, standard output and standard error.
fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = dunlin().args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// A run in virtual time, which is quick and exact.
const SHORT: [&str; 5] = ["bench", "run", "sim-latency", "--for", "10ms"];

#[test]
fn one_case_is_measured_captured_and_compared() {
    let (json, pcap) = (temporary("case.json"), temporary("case.pcap"));
    let (json_text, pcap_text) = (json.to_str().unwrap(), pcap.to_str().unwrap());
    let only = [&SHORT[..], &["--case", "CX4*", "--save", json_text, "--pcap", pcap_text]].concat();
    let (code, shown, error) = run(&only);
    assert_eq!(code, Some(0), "{error}");
    assert!(shown.contains("CX4 32 B, same switch") && !shown.contains("CX5 32 B"), "{shown}");

    let report: Report = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(report.rows.len(), 2);
    for row in &report.rows {
        let how = row.provenance.as_ref().unwrap();
        assert_eq!((how.runs, how.seeds.map(|seeds| (seeds.first, seeds.count))), (1, Some((1, 1))));
        assert!(how.cost.is_some() && how.commit == report.commit);
    }
    assert!(std::fs::metadata(&pcap).unwrap().len() > 1000, "the packets of the run are in the file");

    let again = [&SHORT[..], &["--compare", json_text, "--check"]].concat();
    let (code, shown, error) = run(&again);
    assert_eq!(code, Some(0), "{error}");
    assert!(shown.contains("0 worse, 0 better, 2 within the spread, 0 unknown. 2 rows have no old one."), "{shown}");
    // Another cost model takes longer, which is worse than before, whatever the targets say.
    let faster: Vec<_> =
        report.rows.iter().cloned().map(|row| dunlin_lab::report::Row { value: row.value / 2.0, ..row }).collect();
    let faster = Report { rows: faster, ..report };
    std::fs::write(&json, serde_json::to_string(&faster).unwrap()).unwrap();
    let (code, shown, error) = run(&again);
    assert_eq!(code, Some(1), "{error}");
    assert!(shown.contains("2 worse, 0 better") && error.contains("rows worse than before: 2"), "{shown}{error}");
    for file in [json, pcap] {
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn what_an_experiment_cannot_honour_is_an_error() {
    let unused = temporary("unused.pcap");
    let (code, _, error) = run(&["bench", "run", "rpc-latency", "--pcap", unused.to_str().unwrap()]);
    assert_eq!(code, Some(2));
    assert!(error.contains("rpc-latency cannot honour --pcap: it measures processes, not simulations"), "{error}");
    assert!(!unused.exists());
    let (code, _, error) = run(&[&SHORT[..], &["--case", "tcp*"]].concat());
    assert_eq!(code, Some(2));
    assert!(error.contains("no case has a name like tcp*; there are:"), "{error}");
    assert!(error.contains("sim-latency: CX4 32 B, same switch"), "{error}");
    let (code, _, error) = run(&["bench", "run", "sim-*", "--pcap", "x.pcap"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("name only one"), "{error}");
}

#[test]
fn another_network_is_simulated_without_papers() {
    let file = temporary("topology.toml");
    let (_, topology, _) = run(&["sim", "topology", "cx4"]);
    assert!(topology.contains("name = \"CX4\""), "{topology}");
    std::fs::write(&file, topology.replace("name = \"CX4\"", "name = \"mine\"")).unwrap();
    let (code, shown, error) = run(&[&SHORT[..], &["--json", "--topology", file.to_str().unwrap()]].concat());
    assert_eq!(code, Some(0), "{error}");
    let report: Report = serde_json::from_str(&shown).unwrap();
    assert_eq!(report.rows[0].case, "mine 32 B, same switch");
    assert!(report.rows.iter().all(|row| row.paper.is_none() && row.target.is_none()));
    std::fs::remove_file(file).unwrap();
}

#[test]
fn saved_figures_become_pages() {
    let (first, second, root) = (temporary("first.json"), temporary("second.json"), temporary("root"));
    let [first_text, second_text, root_text] = [&first, &second, &root].map(|path| path.to_str().unwrap());
    let (code, _, error) = run(&[&SHORT[..], &["--save", first_text]].concat());
    assert_eq!(code, Some(0), "{error}");
    let report: Report = serde_json::from_str(&std::fs::read_to_string(&first).unwrap()).unwrap();
    let other = Report { experiment: "sim-loss".into(), commit: "0123456789ab".into(), ..report };
    std::fs::write(&second, serde_json::to_string(&[other]).unwrap()).unwrap();

    let both = ["bench", "report", first_text, second_text];
    let (code, _, error) = run(&both);
    assert_eq!(code, Some(2));
    assert!(error.contains("of several commits") && error.contains("--mixed"), "{error}");
    let (code, shown, error) = run(&[&both[..], &["--mixed"]].concat());
    assert_eq!(code, Some(0), "{error}");
    assert!(shown.contains("sim-latency · ") && shown.contains("sim-loss · "), "{shown}");

    let (code, shown, error) = run(&[&both[..], &["--mixed", "--write-docs", root_text]].concat());
    assert_eq!(code, Some(0), "{error}");
    assert!(shown.trim_end().ends_with("docs/results/sim.md") && error.contains("README.md is left as it is"));
    let page = std::fs::read_to_string(root.join("docs/results/sim.md")).unwrap();
    assert!(page.starts_with("# Results: sim\n") && page.contains("0123456789ab (sim-loss)"), "{page}");
    assert!(page.contains("## sim-latency") && page.contains("| CX5 32 B, same switch | latency p50 | **"), "{page}");
    assert!(page.contains("Not measured this time: ") && page.contains("sim-incast"), "{page}");
    std::fs::remove_dir_all(root).unwrap();
    for file in [first, second] {
        std::fs::remove_file(file).unwrap();
    }
}
