//! Questions that are kept until there is an answer.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::Addr;
use dunlin_rpc::MsgBuf;
use dunlin_smr::wire::CLIENT;
use dunlin_smr::wire::request::{Request, set_cluster};
use dunlin_smr::wire::response::Response;
use dunlin_smr::{NodeConfig, Waited};
use futures::future::join_all;

use super::world::{InMemory, World, config};

const KEPT_MAX: u64 = 50;
const WATCHERS: usize = 100;

/// The maximum number of kept questions, and as many more, each of which is retried again and again.
fn watched() -> (World<InMemory>, Rc<Cell<usize>>) {
    let world = World::new(InMemory, 1, NodeConfig { kept_questions_max: KEPT_MAX as usize, ..config() });
    world.all_lead();
    world.add(0, 1).unwrap();
    let client = Rc::new(world.client(0));
    let told = Rc::new(Cell::new(0));
    for _ in 0..WATCHERS {
        let (client, told) = (client.clone(), told.clone());
        world.endpoint.spawn(async move {
            while !matches!(client.wait_for(&1000_u64.to_le_bytes()).await, Ok(Waited::Answered(_))) {
                client.timers().sleep(Duration::from_micros(300)).await;
            }
            told.set(told.get() + 1);
        });
    }
    world.turns(Duration::from_millis(50));
    (world, told)
}

fn counters(world: &World<InMemory>) -> dunlin_smr::Counters {
    let (_, leader) = world.leader(0).unwrap();
    world.processes[&leader].host.node(0).unwrap().counters()
}

#[test]
fn refused_questions_cost_little() {
    let (world, told) = watched();
    let before = counters(&world);
    assert_eq!(before.kept_questions, KEPT_MAX);
    let ticks = 200;
    world.turns(ticks * Duration::from_millis(1));
    let after = counters(&world);
    let refused = after.pushed_back - before.pushed_back;
    assert!(refused > 10 * u64::from(ticks), "{refused} were refused");
    let swept = after.kept_swept - before.kept_swept;
    assert!(
        swept <= KEPT_MAX * u64::from(ticks + 1),
        "{swept} kept questions were looked at for {refused} that were refused"
    );
    assert_eq!(told.get(), 0);
    world.add(0, 1000).unwrap();
    world.until("all are told", |_| told.get() == WATCHERS);
}

/// A kept question holds its credit. If no credit is left, the next one uses another session.
#[test]
fn as_many_questions_are_kept_as_are_asked_however_few_credits_a_session_has() {
    let mut world = World::new(InMemory, 1, config());
    world.all_lead();
    world.change_client(2);
    world.add(0, 1).unwrap();
    let client = Rc::new(world.client(0));
    let told = Rc::new(Cell::new(0));
    for _ in 0..WATCHERS {
        let (client, told) = (client.clone(), told.clone());
        world.endpoint.spawn(async move {
            while !matches!(client.wait_for(&1000_u64.to_le_bytes()).await, Ok(Waited::Answered(_))) {}
            told.set(told.get() + 1);
        });
    }
    world.turns(Duration::from_secs(1));
    assert_eq!(counters(&world).kept_questions, WATCHERS as u64);
    let sessions = world.endpoint.stats().sessions as usize;
    assert!(sessions <= WATCHERS / 2 + 5, "{sessions} sessions with two credits each");
    world.add(0, 1000).unwrap();
    world.turns(Duration::from_millis(20));
    assert_eq!(told.get(), WATCHERS);
}

/// Questions that are given up and asked again reuse the sessions of earlier ones.
#[test]
fn questions_that_come_again_open_no_more_sessions() {
    const AT_ONCE: usize = 30;
    let mut world = World::new(InMemory, 1, config());
    world.all_lead();
    world.change_client(4);
    let mut sum = world.add(0, 1).unwrap();
    let client = world.client(0);
    let mut first = None;
    for round in 0..8 {
        let asked = (sum + 1).to_le_bytes();
        for is_recalled in [true, false] {
            let ask = async || while !matches!(client.wait_for(&asked).await, Ok(Waited::Answered(_))) {};
            let mut all = Box::pin(join_all((0..AT_ONCE).map(|_| ask())));
            let turns = if is_recalled { 20 } else { 2000 };
            for _ in 0..turns {
                world.turn();
                assert!(world.endpoint.poll_once(all.as_mut()).is_none());
            }
            if !is_recalled {
                sum = world.add(0, 1).unwrap();
                world.drive(all);
            }
        }
        let sessions = world.endpoint.stats().sessions;
        let known = *first.get_or_insert(sessions);
        assert!(sessions <= known + 2, "{sessions} sessions in round {round}, {known} in the first");
    }
}

/// Anybody may ask for the commit index, as followers do.
#[test]
fn who_asks_how_much_is_committed_takes_no_places_of_urgent_questions() {
    let mut world = World::new(InMemory, 1, NodeConfig { reads_max: 2, ..config() });
    world.all_lead();
    world.add(0, 1).unwrap();
    let (_, leader) = world.leader(0).unwrap();
    let cluster = world.processes[&leader].host.node(0).unwrap().status().cluster.unwrap();
    let encoded = move |request: Request<'_>| {
        let mut buffer = MsgBuf::with_len(request.encoded_len()).unwrap();
        request.encode(&mut buffer);
        set_cluster(&mut buffer, cluster);
        buffer
    };
    let session = || world.drive(world.endpoint.connect(&Addr::Node(leader as u32))).unwrap();
    for _ in 0..40 {
        let session = session();
        world.endpoint.spawn(async move { while session.call(CLIENT, encoded(Request::Index)).await.is_ok() {} });
    }
    let session = session();
    // None of these questions is answered now.
    world.paused = (1..=3).filter(|id| *id != leader).collect();
    world.turns(Duration::from_millis(3));
    let mut urgent = Box::pin(session.call(CLIENT, encoded(Request::Read(b"!"))));
    for _ in 0..20 {
        world.turn();
        assert!(world.endpoint.poll_once(urgent.as_mut()).is_none(), "it waits as they do");
    }
    world.paused.clear();
    let answer = world.drive(urgent).unwrap().response;
    assert!(matches!(Response::parse(&answer), Ok(Response::Ok(_))), "{:?}", Response::parse(&answer));
    let refused = counters(&world).pushed_back;
    assert!(refused > 100, "{refused} were refused");
}
