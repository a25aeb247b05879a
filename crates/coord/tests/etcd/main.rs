//! The back end on a real etcd, which each test starts. If no etcd is installed, the tests pass and report that they
//! tested nothing, unless `DUNLIN_ETCD` names the program: then it must exist.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use dunlin_coord::etcd::local::{self, LocalEtcd, Scratch};
use dunlin_coord::etcd::{Etcd, EtcdConfig, Watchman};
use dunlin_coord::{
    Condition, CoordError, Coordinator, Event, Happening, Health, Membership, Scope, Watch, WatchmanConfig, attend,
    conformance,
};
use dunlin_net::AnyTransport;
use dunlin_rpc::{Endpoint, EndpointConfig};
use futures::future::{Either, select};

/// Real time: long compared with how far a busy machine may delay one thread.
const WATCHMEN: WatchmanConfig =
    WatchmanConfig { failure_timeout: Duration::from_secs(1), look_every: Duration::from_millis(50) };
/// One late look restarts all waiting.
const DELAY_MAX: Duration = Duration::from_millis(1500);

/// The program to test with.
fn program() -> Option<PathBuf> {
    let named = std::env::var_os("DUNLIN_ETCD").map(PathBuf::from);
    let program = named.clone().unwrap_or_else(|| local::PROGRAM.into());
    match local::installed_version(&program) {
        Some(version) => {
            println!("{version}");
            Some(program)
        }
        None => {
            assert_eq!(named, None, "DUNLIN_ETCD names no etcd that runs");
            println!("SKIPPED: there is no etcd here; install Debian's etcd-server, or name one in DUNLIN_ETCD");
            None
        }
    }
}

/// A fresh etcd, with its data in memory where possible: disk speed is not tested.
fn start(purpose: &str, members: usize) -> Option<(LocalEtcd, Scratch)> {
    let program = program()?;
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let scratch = Scratch::make(&parent, purpose).unwrap();
    let etcd = LocalEtcd::start(&program, members, scratch.path()).unwrap();
    Some((etcd, scratch))
}

fn client(etcd: &LocalEtcd) -> Etcd {
    Etcd::new(&etcd.endpoints(), EtcdConfig::default()).unwrap()
}

struct Site {
    endpoints: Vec<String>,
    clock: Etcd,
}

impl conformance::Site for Site {
    type Coordinator = Etcd;

    fn coordinator(&self) -> Etcd {
        Etcd::new(&self.endpoints, EtcdConfig::default()).unwrap()
    }

    async fn pass(&self, time: Duration) {
        self.clock.sleep_until(self.clock.now() + time.as_nanos() as u64).await;
    }

    fn failure_timeout(&self) -> Duration {
        WATCHMEN.failure_timeout
    }

    fn delay_max(&self) -> Duration {
        DELAY_MAX
    }

    async fn forget_history(&self) {
        let noise = "/conformance/noise";
        for condition in [Condition::Absent, Condition::Always] {
            self.clock.set(noise, b"", condition).await.unwrap();
        }
        let last = self.clock.delete(noise, Condition::Always).await.unwrap();
        self.clock.compact(last).await.unwrap();
    }
}

/// Runs the conformance suite on an etcd with this many watchmen.
fn conforms(etcd: &LocalEtcd, watchmen: usize) {
    let site = Site { endpoints: etcd.endpoints(), clock: client(etcd) };
    let watchmen: Vec<_> = (0..watchmen).map(|_| Watchman::start(&client(etcd), WATCHMEN).unwrap()).collect();
    site.clock.block_on(conformance::check(&site));
    let counters: Vec<_> = watchmen.iter().map(Watchman::counters).collect();
    println!("{counters:?}");
    assert!(counters.iter().any(|counters| counters.failures > 0 && counters.lapses > 0));
    assert!(counters.iter().any(|counters| counters.reigns > 0));
}

#[test]
fn one_member_conforms() {
    let Some((etcd, _scratch)) = start("etcd-one", 1) else { return };
    conforms(&etcd, 2);
}

#[test]
fn two_members_of_three_conform() {
    let Some((mut etcd, _scratch)) = start("etcd-three", 3) else { return };
    let before = client(&etcd);
    before.block_on(settled(&before));
    etcd.kill(0).unwrap();
    // The client that was connected to all members recovers by itself.
    before.block_on(settled(&before));
    conforms(&etcd, 1);
}

/// Retries until a change succeeds: the members of an etcd must elect a leader first.
async fn settled(etcd: &Etcd) {
    for _ in 0..20 {
        match etcd.set("/settled", b"", Condition::Always).await {
            Ok(_) => return,
            Err(error) => println!("{error}"),
        }
    }
    panic!("nobody leads");
}

#[test]
fn a_watchman_that_ends_is_followed_by_the_next() {
    // Who stands by takes over after a silence of this length, and a busy machine may delay signs.
    let config = WatchmanConfig { failure_timeout: Duration::from_secs(3), ..WATCHMEN };
    let Some((etcd, _scratch)) = start("etcd-watchmen", 1) else { return };
    let user = client(&etcd);
    user.block_on(async {
        let mut watchmen: Vec<_> = (0..3).map(|_| Watchman::start(&client(&etcd), config).unwrap()).collect();
        for round in 0..2 {
            let membership = user.join(round, b"").await.unwrap();
            let mut watch = Watch::new(&user, Scope::Members, membership.incarnation);
            let event = watch.next().await.unwrap();
            let epoch = membership.epoch + 1;
            assert_eq!(event.happening, Happening::Failed { member: round, epoch });
            let reigned = |watchman: &Watchman| watchman.counters().reigns > 0;
            assert_eq!(watchmen.iter().filter(|watchman| reigned(watchman)).count(), 1, "one reigns at a time");
            watchmen.retain(|watchman| !reigned(watchman));
        }
    });
}

/// Members join and take leases before any watchman runs, so the first watchman begins to wait for all of them at the
/// same look.
fn fail_together(etcd: &LocalEtcd, members: u64, leases: usize) -> (u64, Vec<Event>, u64) {
    let user = client(etcd);
    user.block_on(async {
        let holder = user.join(1, b"").await.unwrap();
        let name = |number: usize| format!("/together/{number}");
        for number in 0..leases {
            user.acquire(&holder, &name(number), WATCHMEN.failure_timeout).await.unwrap();
        }
        for member in 2..=members {
            user.join(member, b"").await.unwrap();
        }
        let began = user.members().await.unwrap();
        let watchman = Watchman::start(&client(etcd), WATCHMEN).unwrap();
        let mut watch = Watch::new(&user, Scope::All, began.revision);
        let mut events = Vec::new();
        while events.len() < members as usize + leases {
            events.push(watch.next().await.unwrap());
        }
        let ended = user.members().await.unwrap();
        assert!(ended.members.iter().all(|member| member.health == Health::Failed));
        assert_eq!(user.leases(None).await.unwrap().leases, []);
        // It counts when it is answered, which may be after others have seen the events.
        let mut counters = watchman.counters();
        for _ in 0..400 {
            if counters.failures + counters.lapses >= members + leases as u64 {
                break;
            }
            user.sleep_until(user.now() + 50_000_000).await;
            counters = watchman.counters();
        }
        assert_eq!((counters.failures, counters.lapses, counters.refused), (members, leases as u64, 0));
        (ended.epoch - began.epoch, events, counters.steps)
    })
}

/// All epochs in which members failed.
fn epochs(events: &[Event]) -> Vec<u64> {
    let epoch = |event: &Event| match event.happening {
        Happening::Failed { epoch, .. } => Some(epoch),
        _ => None,
    };
    let mut epochs: Vec<u64> = events.iter().filter_map(epoch).collect();
    epochs.dedup();
    epochs
}

#[test]
fn failures_noticed_together_are_one_epoch() {
    let Some((etcd, _scratch)) = start("etcd-together", 1) else { return };
    let (rise, events, steps) = fail_together(&etcd, 30, 40);
    assert_eq!((rise, steps, epochs(&events).len()), (1, 1, 1));
    assert!(events.iter().all(|event| event.revision == events[0].revision), "{events:?}");
}

/// etcd accepts 128 operations in a transaction.
#[test]
fn more_failures_than_a_transaction_holds_are_as_few_epochs_as_can_be() {
    let Some((etcd, _scratch)) = start("etcd-many", 1) else { return };
    let (rise, events, steps) = fail_together(&etcd, 300, 10);
    assert_eq!((rise, steps, epochs(&events).len()), (3, 3, 3));
    let mut failed: Vec<u64> = events
        .iter()
        .filter_map(|event| match event.happening {
            Happening::Failed { member, .. } => Some(member),
            _ => None,
        })
        .collect();
    failed.sort_unstable();
    assert_eq!(failed, (1..=300).collect::<Vec<u64>>());
}

#[test]
fn it_is_used_from_an_endpoint_and_from_tokio() {
    let Some((etcd, _scratch)) = start("etcd-users", 1) else { return };
    let coordinator = Rc::new(client(&etcd));
    let _watchman = Watchman::start(&coordinator, WATCHMEN).unwrap();
    let transport = AnyTransport::bind(&"udp://127.0.0.1:0".parse().unwrap()).unwrap();
    let endpoint = Endpoint::new(transport, EndpointConfig::default()).unwrap();
    let left = endpoint.block_on(stays_and_leaves(&coordinator, 1));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let later = runtime.block_on(stays_and_leaves(&coordinator, 2));
    assert!(later.incarnation > left.incarnation && later.epoch == left.epoch + 2);
}

/// Sends heartbeats until it has left.
async fn stays_and_leaves(coordinator: &Etcd, member: u64) -> Membership {
    let membership = coordinator.join(member, b"here").await.unwrap();
    let (mut heard, other) = (0, coordinator.clone());
    let leaver = async {
        coordinator.sleep_until(coordinator.now() + 2 * WATCHMEN.failure_timeout.as_nanos() as u64).await;
        let members = other.members().await.unwrap();
        assert_eq!(members.members.iter().map(|member| member.health).collect::<Vec<_>>(), [Health::Live]);
        other.leave(&membership).await.unwrap();
    };
    let attending = attend(coordinator, &membership, WATCHMEN.failure_timeout / 10, |heartbeat| {
        assert_eq!(heartbeat.epoch, membership.epoch);
        heard += 1;
    });
    let (why, ()) = futures::join!(attending, leaver);
    assert!(matches!(why, CoordError::NotLive { .. }), "{why}");
    assert!(heard > 1);
    membership
}

#[test]
fn what_cannot_be_reached_is_said_to_be_out_of_reach() {
    // Nothing listens at the discard port.
    let config = EtcdConfig { timeout: Duration::from_secs(2), ..EtcdConfig::default() };
    let etcd = Etcd::new(&["http://127.0.0.1:9".into()], config.clone()).unwrap();
    let why = etcd.block_on(etcd.members()).unwrap_err();
    assert!(matches!(&why, CoordError::Backend { may_have_run: false, why } if why.contains("refused")), "{why}");
    let why = etcd.block_on(etcd.join(1, b"")).unwrap_err();
    assert!(!why.may_have_run(), "it looked first: {why}");
    for bad in [vec![], vec!["http://".into()]] {
        assert!(matches!(Etcd::new(&bad, config.clone()), Err(CoordError::Backend { .. })), "{bad:?}");
    }
    let bad = Etcd::new(&["http://127.0.0.1:9".into()], EtcdConfig { prefix: "dunlin".into(), ..config });
    assert!(matches!(bad, Err(CoordError::BadPath { .. })));
}

/// While others write elsewhere, a watch is told up to where it was quiet, so that it continues behind a compaction.
#[test]
fn a_quiet_watch_does_not_fall_behind_the_history() {
    const PATIENCE: u64 = 20_000_000_000;
    let Some((etcd, _scratch)) = start("etcd-quiet", 1) else { return };
    let config = EtcdConfig { quiet_max: Duration::from_millis(100), ..EtcdConfig::default() };
    let [watching, other] = [(); 2].map(|()| Etcd::new(&etcd.endpoints(), config.clone()).unwrap());
    let scope = Scope::Tree { root: "/watched".into() };
    watching.block_on(async {
        settled(&watching).await;
        let from = watching.set("/noise", b"", Condition::Always).await.unwrap();
        let mut noise = from;
        for _ in 0..10 {
            noise = watching.set("/noise", b"more", Condition::Always).await.unwrap();
        }
        let changes = pin!(watching.changes(&scope, from));
        let patience = pin!(watching.sleep_until(watching.now() + PATIENCE));
        let Either::Left((quiet, _)) = select(changes, patience).await else {
            panic!("a quiet watch is not told up to where it was quiet");
        };
        let quiet = quiet.unwrap();
        assert!(quiet.events.is_empty() && quiet.up_to >= noise, "{quiet:?} after noise up to {noise}");
        // One continues with the watch that it had, the other with a new one.
        watching.compact(quiet.up_to).await.unwrap();
        let write = watching.set("/watched/a", b"", Condition::Always);
        let (first, second, written) =
            futures::join!(watching.changes(&scope, quiet.up_to), other.changes(&scope, quiet.up_to), write);
        let written = written.unwrap();
        for changes in [first.unwrap(), second.unwrap()] {
            assert_eq!(changes.events.iter().map(|event| event.revision).collect::<Vec<_>>(), [written]);
        }
    });
}

/// The same while they never stop: what they write says how far it is, and etcd is not asked for each of them.
#[test]
fn a_quiet_watch_does_not_fall_behind_a_busy_history_and_asks_little() {
    const WRITES: usize = 400;
    let Some((etcd, _scratch)) = start("etcd-busy", 1) else { return };
    let config = EtcdConfig { quiet_max: Duration::from_millis(100), ..EtcdConfig::default() };
    let [watching, writing] = [(); 2].map(|()| Etcd::new(&etcd.endpoints(), config.clone()).unwrap());
    let scope = Scope::Tree { root: "/watched".into() };
    watching.block_on(async {
        settled(&watching).await;
        let from = writing.set("/noise", b"", Condition::Always).await.unwrap();
        let (before, begun) = (calls(&etcd, "Range") + calls(&etcd, "Txn"), std::time::Instant::now());
        let noise = async {
            for _ in 0..WRITES {
                writing.set("/noise", b"more", Condition::Always).await.unwrap();
            }
        };
        let (mut told, mut up_to) = (0, from);
        let watch = async {
            loop {
                let quiet = watching.changes(&scope, up_to).await.unwrap();
                assert!(quiet.events.is_empty() && quiet.up_to >= up_to, "{quiet:?}");
                told += usize::from(quiet.up_to > up_to);
                up_to = quiet.up_to;
            }
        };
        let Either::Right(_) = select(pin!(watch), pin!(noise)).await;
        assert!(told > 0, "it is told nothing while others write");
        let asked = calls(&etcd, "Range") + calls(&etcd, "Txn") - before;
        // Once in each time of quiet, should a write take as long as that.
        let quiet = (begun.elapsed().as_nanos() / config.quiet_max.as_nanos()) as u64;
        assert!(
            asked < WRITES as u64 * 9 / 4 + quiet,
            "{asked} calls for {WRITES} writes: one for each that it is told of"
        );
    });
}

/// Calls of this method that an etcd has begun to answer.
fn calls(etcd: &LocalEtcd, method: &str) -> u64 {
    counter(etcd, "grpc_server_started_total", &format!("grpc_method=\"{method}\""))
}

/// How many bytes an etcd has sent to its clients.
fn sent_bytes(etcd: &LocalEtcd) -> u64 {
    counter(etcd, "etcd_network_client_grpc_sent_bytes_total", "")
}

/// A counter of an etcd, of all lines with this label.
fn counter(etcd: &LocalEtcd, name: &str, label: &str) -> u64 {
    use std::io::{Read as _, Write as _};
    let address = etcd.endpoints()[0].trim_start_matches("http://").to_owned();
    let mut stream = std::net::TcpStream::connect(&address).unwrap();
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let lines = page.lines().filter(|line| line.starts_with(name) && line.contains(label));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64).sum()
}

/// Its own scope is quiet most of the time, and everything else is busy.
#[test]
fn a_watch_keeps_its_stream() {
    let Some((etcd, _scratch)) = start("etcd-quiet", 1) else { return };
    let user = client(&etcd);
    user.block_on(async {
        let first = user.set("/noise", b"", Condition::Always).await.unwrap();
        let streams = calls(&etcd, "Watch");
        let mut watch = Watch::new(&user, Scope::Tree { root: "/watched".into() }, first);
        for round in 0..3_u8 {
            let changes = async {
                user.sleep_until(user.now() + 6_000_000_000).await;
                user.set("/noise", b"", Condition::Always).await.unwrap();
                user.set("/watched/a", &[round], Condition::Always).await.unwrap()
            };
            let (event, revision) = futures::join!(watch.next(), changes);
            assert_eq!(event.unwrap().revision, revision);
        }
        assert_eq!(calls(&etcd, "Watch") - streams, 1, "streams of a watch");
    });
}

#[test]
fn a_view_that_is_too_large_is_not_read_to_its_end() {
    const ENTRIES: usize = 400;
    let Some((etcd, _scratch)) = start("etcd-view", 1) else { return };
    let user = client(&etcd);
    user.block_on(async {
        for number in 0..ENTRIES {
            user.set(&format!("/large/{number:03}"), &[7; 60_000], Condition::Always).await.unwrap();
            user.set(&format!("/small/{number:03}"), b"", Condition::Always).await.unwrap();
        }
        let before = sent_bytes(&etcd);
        let refused = user.view("/large").await;
        assert!(matches!(refused, Err(CoordError::TooLarge { .. })), "{refused:?}");
        let sent = sent_bytes(&etcd) - before;
        assert!(sent < 10_000_000, "{sent} bytes of {}", ENTRIES * 60_000);
        let view = user.view("/small").await.unwrap();
        assert_eq!(view.entries.len(), ENTRIES, "in several pages");
        assert!(view.entries.is_sorted_by_key(|entry| entry.path.clone()));
    });
}

#[test]
fn a_join_looks_at_no_leases_of_others() {
    const LEASES: usize = 500;
    let Some((etcd, _scratch)) = start("etcd-joins", 1) else { return };
    let user = client(&etcd);
    user.block_on(async {
        let holder = user.join(1, b"").await.unwrap();
        let held = holder.incarnation;
        for number in 0..LEASES {
            user.acquire(&holder, &format!("/lease/{number}"), Duration::from_secs(60)).await.unwrap();
        }
        let before = sent_bytes(&etcd);
        let other = user.join(2, b"").await.unwrap();
        let sent = sent_bytes(&etcd) - before;
        assert!(sent < 10_000, "{sent} bytes");
        let refused = user.join(1, b"").await;
        assert!(matches!(refused, Err(CoordError::LeasesRun { member: 1, .. })), "{refused:?}");
        user.leave(&holder).await.unwrap();
        assert_eq!(user.leases(None).await.unwrap().leases, [], "who leaves holds nothing");
        assert!(user.join(1, b"").await.unwrap().incarnation > held);
        user.leave(&other).await.unwrap();
    });
}

/// Run side by side, programs of both versions would form two clusters that do not know of each other.
#[test]
fn a_cluster_of_an_earlier_version_is_not_founded_anew() {
    let Some((etcd, _scratch)) = start("etcd-earlier", 1) else { return };
    let user = client(&etcd);
    user.block_on(async {
        let mut raw = etcd_client::Client::connect(etcd.endpoints(), None).await.unwrap();
        raw.put("/dunlin/v1/epoch", "3", None).await.unwrap();
        let refused = user.join(1, b"").await;
        let Err(CoordError::Backend { why, may_have_run: false }) = refused else { panic!("{refused:?}") };
        assert!(why.contains("/dunlin/v1/epoch") && why.contains("prefix"), "{why}");
    });
}
