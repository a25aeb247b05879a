//! A server of several cores answers like one of one core, whatever core a connection is on.

use std::cell::{Cell, RefCell};
use std::future::{Future, ready};
use std::io::Write as _;
use std::rc::Rc;
use std::time::Duration;

use dunlin_kv::memcached::{
    Backend, Batch, Conversation, CoreState, FlushTime, Inquiry, Ran, Report, Single, Unavailable,
};
use dunlin_kv::metrics::{CoreMetrics, Operation, Outcome};
use dunlin_kv::routing::{Core, Routing};
use dunlin_store::{Model, Put, Store};
use tokio::sync::Notify;
use tokio::task::LocalSet;

use super::script::{START, core, said, settings};
use super::sockets::{TestCore, expect_no_answer, start_here};

/// Several cores on one thread, as seen from the first.
pub struct Cores {
    routing: Routing,
    cores: Vec<Single<Model>>,
    /// A core that does not answer.
    dead: Option<Core>,
    /// How often any batch was run.
    runs: Cell<usize>,
    /// What the other cores wait for before they return a batch that they ran.
    gate: Option<Gate>,
}

#[derive(Default)]
struct Gate {
    has_run: Notify,
    opened: Notify,
}

impl Cores {
    pub fn new(cores: u16) -> Cores {
        Cores {
            routing: Routing::new([3; 16], cores).expect("a number of cores"),
            cores: (0..cores).map(|_| core()).collect(),
            dead: None,
            runs: Cell::new(0),
            gate: None,
        }
    }

    /// Returns the same cores with another limit of each core's connection memory.
    pub fn with_connection_bytes(self, bytes: usize) -> Cores {
        let cores = self.cores.into_iter().map(|core| core.with_connection_bytes(bytes)).collect();
        Cores { cores, ..self }
    }

    pub fn is_elsewhere(&self, key: &str) -> bool {
        self.elsewhere(key.as_bytes()).is_some()
    }

    pub fn runs(&self) -> usize {
        self.runs.get()
    }

    pub fn said(&self, pieces: &[&[u8]]) -> (Vec<u8>, usize) {
        said_by(self, pieces)
    }

    fn run(&self, core: Core, batch: &mut Batch) -> Ran {
        self.runs.set(self.runs.get() + 1);
        batch.run(&self.cores[usize::from(core)])
    }
}

impl TestCore for Cores {
    fn set_now(&self, now: u32) {
        self.cores.iter().for_each(|core| core.set_now(now));
    }
}

impl Backend for Cores {
    type Store = Model;

    fn elsewhere(&self, key: &[u8]) -> Option<Core> {
        Some(self.routing.owner(key)).filter(|&core| core != 0)
    }

    fn cores(&self) -> Core {
        self.cores.len() as Core
    }

    fn with_store<R>(&self, run: impl FnOnce(&mut Model) -> R) -> R {
        self.cores[0].with_store(run)
    }

    fn now(&self) -> u32 {
        self.cores[0].now()
    }

    fn state(&self) -> &CoreState {
        self.cores[0].state()
    }

    fn metrics(&self) -> &RefCell<CoreMetrics> {
        self.cores[0].metrics()
    }

    async fn forward(&self, core: Core, mut batch: Box<Batch>) -> Result<Box<Batch>, Unavailable> {
        if self.dead == Some(core) {
            return Err(Unavailable);
        }
        while self.run(core, &mut batch) != Ran::Over {}
        if let Some(gate) = &self.gate {
            gate.has_run.notify_one();
            gate.opened.notified().await;
        }
        Ok(batch)
    }

    fn flush(&self, _at: FlushTime) -> impl Future<Output = Result<(), Unavailable>> {
        self.cores.iter().for_each(|core| core.with_store(Store::flush));
        ready(Ok(()))
    }

    fn ask(&self, inquiry: Inquiry) -> impl Future<Output = Vec<Report>> {
        let report = |core: &Single<Model>| core.with_store(|store| core.state().report(inquiry, store, START));
        ready(self.cores.iter().map(report).collect())
    }
}

pub fn said_by(cores: &Cores, pieces: &[&[u8]]) -> (Vec<u8>, usize) {
    let settings = settings();
    let mut client = Conversation::new(cores, &settings);
    let mut answer = Vec::new();
    let most = pieces.iter().map(|piece| client.say(piece, &mut answer)).max();
    (answer, most.unwrap_or(0))
}

/// Returns many commands with many keys, but none that returns a CAS token: each core has its own tokens.
fn long_request() -> Vec<u8> {
    let mut request = Vec::new();
    for i in 0..300 {
        request.extend(format!("set key{i} {i} 0 6\r\nval{:03}\r\n", i % 100).bytes());
        match i % 10 {
            0 => request.extend(b"get key0 nothing key1 key2 key3 key4 key5 key6 key7 key8\r\n"),
            1 => request.extend(format!("append key{} 0 0 1 noreply\r\n!\r\n", i / 2).bytes()),
            2 => request.extend(format!("mg key{} v k f Oo{i}\r\n", i / 3).bytes()),
            3 => request.extend(format!("delete key{}\r\n", i / 2).bytes()),
            4 => request.extend(format!("gat 100 key{} key{} key{}\r\n", i, i / 2, i / 3).bytes()),
            5 => request.extend(b"nonsense\r\nmn\r\n"),
            6 => request.extend(format!("ma n{} N0 J{i} v\r\n", i % 3).bytes()),
            7 => request.extend(b"get \r\nget k k k\r\nms Zm9v 2 b\r\nhi\r\nmg Zm9v b v k\r\n"),
            8 if i == 158 => request.extend(b"flush_all\r\n"),
            _ => request.extend(format!("gat x key{i}\r\nset key{i} 0 0 2\r\nabc\r\n").bytes()),
        }
    }
    request
}

#[test]
fn several_cores_answer_as_one() {
    let request = long_request();
    let expected = said(&[&request]);
    for cores in [1, 2, 3, 8] {
        for cut in [usize::MAX, 1000, 77, 1] {
            let pieces: Vec<&[u8]> = request.chunks(cut).collect();
            let (answer, _) = said_by(&Cores::new(cores), &pieces);
            assert_eq!(
                String::from_utf8_lossy(&answer),
                String::from_utf8_lossy(&expected),
                "{cores} cores, {cut} bytes at a time"
            );
        }
    }
}

/// Returns the cores' counters together, and the number of timed operations.
fn counted(cores: &Cores) -> Vec<(Operation, Outcome, u64)> {
    let all = Operation::ALL.into_iter().flat_map(|operation| Outcome::ALL.map(|outcome| (operation, outcome)));
    all.map(|(operation, outcome)| {
        let counts = cores.cores.iter().map(|core| core.metrics().borrow().counted(operation, outcome));
        (operation, outcome, counts.sum())
    })
    .collect()
}

#[test]
fn each_operation_is_counted_by_the_core_that_owns_its_key() {
    let request = long_request();
    let one = Cores::new(1);
    said_by(&one, &[&request]);
    let expected = counted(&one);
    let hits = |operation| expected.iter().find(|counted| counted.0 == operation && counted.1 == Outcome::Hit);
    assert!([Operation::Get, Operation::Append].iter().all(|&kind| hits(kind).is_some_and(|(.., hits)| *hits > 0)));
    let several = Cores::new(3);
    said_by(&several, &[&request]);
    assert_eq!(counted(&several), expected);
    for core in &several.cores {
        let metrics = core.metrics().borrow();
        let stats: Vec<_> = metrics.operations().collect();
        assert!(stats.iter().all(|(_, stats)| stats.total() < 500), "it has counted those of others");
        let timed: u64 = stats.iter().map(|(_, stats)| stats.latency.count()).sum();
        assert!(timed > 0, "of each core some bursts are timed");
    }
}

#[test]
fn many_long_answers_of_other_cores_come_in_parts() {
    let value = vec![b'v'; 1 << 20];
    let mut request = Vec::new();
    for i in 0..8 {
        request.extend(format!("set {i} 0 0 {}\r\n", value.len()).bytes());
        request.extend(&value);
        request.extend(b"\r\n");
    }
    request.extend([&b"get"[..], &b" 0 1 2 3 4 5 6 7".repeat(4), b"\r\n"].concat());
    let (answer, most) = said_by(&Cores::new(4), &[&request]);
    assert!(answer == said(&[&request]));
    assert!(most < 2 * value.len(), "{most} bytes waited to be written at once");
}

/// An error in the middle of a retrieval, or one that nobody expects, would put client and server out of step.
#[test]
fn a_connection_that_needs_a_core_that_is_gone_is_closed_after_the_answers_before() {
    let mut cores = Cores::new(2);
    cores.dead = Some(1);
    let (here, there): (Vec<String>, Vec<String>) =
        (0..20).map(|i| format!("key{i}")).partition(|key| cores.elsewhere(key.as_bytes()).is_none());
    let (here, there, settings) = (&here[0], &there[0], settings());
    for (commands, expected) in [
        (format!("get {there} {here}\r\n"), String::new()),
        (format!("get {here} {there}\r\n"), format!("VALUE {here} 0 1\r\nx\r\n")),
        (format!("set {there} 0 0 1 noreply\r\nx\r\n"), String::new()),
        (format!("mg {there} v q\r\n"), String::new()),
    ] {
        let (mut client, mut answer) = (Conversation::new(&cores, &settings), Vec::new());
        client.say(format!("set {here} 0 0 1\r\nx\r\n{commands}mn\r\n").as_bytes(), &mut answer);
        assert_eq!(String::from_utf8_lossy(&answer), format!("STORED\r\n{expected}"), "{commands}");
        assert!(client.is_closed(), "{commands}");
    }
}

/// The last snapshot may have been saved before the other core ran the command.
#[tokio::test]
async fn nothing_is_acknowledged_after_the_time_to_stop_is_over() {
    let work = async {
        let mut cores = Cores::new(2);
        cores.gate = Some(Gate::default());
        let mut keys = (0..).map(|number| format!("key{number}")).filter(|key| cores.is_elsewhere(key));
        let (key, long) = (keys.next().unwrap(), keys.next().unwrap());
        cores.cores[1].with_store(|store| {
            let key = store.key(long.as_bytes()).unwrap();
            store.put(&key, &[b'v'; 200_000], Put::default()).unwrap();
        });
        let cores = Rc::new(cores);
        let (service, socket, mut client) = start_here(cores.clone()).await;
        service.adopt(socket);
        // The long value is asked for again, after the first answer was written.
        client.write_all(format!("set {key} 0 0 1\r\nx\r\nget {long}\r\n").as_bytes()).unwrap();
        let gate = cores.gate.as_ref().unwrap();
        gate.has_run.notified().await;
        service.stop(Duration::ZERO).await;
        gate.opened.notify_one();
        expect_no_answer(client).await;
    };
    LocalSet::new().run_until(work).await;
}
