//! Servers that are members of a cluster manager, which the test plays.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dunlin_coord::{
    Changes, Compare, Condition, CoordError, Coordinator, Entry, Epochs, Health, Heartbeat, Holder, Lease, Leases,
    Listing, Member, MemberId, Members, Membership, Revision, Scope, Transaction, View, Write,
};
use dunlin_kv::KvCluster;
use dunlin_kv::cluster::{
    AttendError, Attendance, ClusterError, Description, MemberDirectory, MemberEvent, MemberFence, ServerError,
    member_about,
};
use dunlin_kv::service::Fence;
use dunlin_kv::wire::ReplicaState;
use dunlin_net::fault::Faults;
use futures::FutureExt as _;
use futures::future::{Either, LocalBoxFuture, join_all, select};

use crate::world::{Client, End, World, config, mute, until};

/// A cluster manager with whom each epoch is settled at once.
struct Office {
    end: End,
    state: RefCell<Members>,
    entries: RefCell<Vec<Entry>>,
    /// So many transactions are done, but their answers are lost.
    loses_answers: Cell<u32>,
    /// Answers heartbeats only.
    is_away: Cell<bool>,
}

impl Office {
    fn new(end: End) -> Rc<Office> {
        let state = RefCell::new(Members { epoch: 1, revision: 1, members: Vec::new() });
        Rc::new(Office {
            end,
            state,
            entries: RefCell::default(),
            loses_answers: Cell::new(0),
            is_away: Cell::new(false),
        })
    }

    /// Marks members as failed.
    fn fail(&self, is_lost: impl Fn(MemberId) -> bool) {
        let mut state = self.state.borrow_mut();
        state.epoch += 1;
        let epoch = state.epoch;
        for member in state.members.iter_mut().filter(|member| is_lost(member.id)) {
            (member.health, member.epoch) = (Health::Failed, epoch);
        }
    }
}

/// Operations that a member never calls.
macro_rules! unused {
    ($($name:ident($($argument:ty),*) -> $output:ty;)*) => {
        $( async fn $name(&self, $(_: $argument),*) -> Result<$output, CoordError> {
            unreachable!("a member does not ask for it")
        } )*
    };
}

impl Coordinator for Office {
    async fn join(&self, id: MemberId, about: &[u8]) -> Result<Membership, CoordError> {
        let mut state = self.state.borrow_mut();
        if state.members.iter().any(|member| member.id == id && member.health == Health::Live) {
            return Err(CoordError::Live { member: id });
        }
        state.members.retain(|member| member.id != id);
        state.epoch += 1;
        let epoch = state.epoch;
        state.members.push(Member { id, incarnation: epoch, health: Health::Live, epoch, about: about.to_vec() });
        Ok(Membership { member: id, incarnation: epoch, epoch, failure_timeout_ms: 5000, safe_until: u64::MAX })
    }

    async fn heartbeat(&self, of: &Membership) -> Result<Heartbeat, CoordError> {
        let state = self.state.borrow();
        let is_own = |member: &&Member| member.id == of.member && member.incarnation == of.incarnation;
        match state.members.iter().find(is_own).is_some_and(|member| member.health == Health::Live) {
            true => {
                let (epoch, safe_until) = (state.epoch, u64::MAX);
                Ok(Heartbeat { epoch, is_settled: true, failure_timeout_ms: 5000, safe_until })
            }
            false => Err(CoordError::NotLive { member: of.member, incarnation: of.incarnation }),
        }
    }

    async fn leave(&self, of: &Membership) -> Result<(), CoordError> {
        self.fail(|id| id == of.member);
        Ok(())
    }

    async fn members(&self) -> Result<Members, CoordError> {
        if self.is_away.get() {
            return Err(CoordError::TimedOut { may_have_run: false });
        }
        Ok(self.state.borrow().clone())
    }

    async fn get(&self, path: &str) -> Result<Option<Entry>, CoordError> {
        Ok(self.entries.borrow().iter().find(|entry| entry.path == path).cloned())
    }

    async fn transact(&self, transaction: &Transaction) -> Result<Revision, CoordError> {
        let mut entries = self.entries.borrow_mut();
        for compare in &transaction.compares {
            let Compare::Entry { path, condition } = compare else { unreachable!("{compare:?}") };
            let version = entries.iter().find(|entry| entry.path == *path).map(|entry| entry.version);
            match (*condition, version) {
                (Condition::Absent, Some(version)) => return Err(CoordError::Exists { path: path.clone(), version }),
                (Condition::Version { version: expected }, Some(version)) if version != expected => {
                    return Err(CoordError::Changed { path: path.clone(), version });
                }
                (Condition::Version { .. }, None) => return Err(CoordError::NotFound { what: path.clone() }),
                _ => {}
            }
        }
        let version = entries.iter().map(|entry| entry.version).max().unwrap_or(0) + 1;
        for write in &transaction.writes {
            let Write::Set { path, value } = write else { unreachable!("{write:?}") };
            entries.retain(|entry| entry.path != *path);
            entries.push(Entry { path: path.clone(), version, value: value.clone() });
        }
        match self.loses_answers.get() {
            0 => Ok(version),
            lost => {
                self.loses_answers.set(lost - 1);
                Err(CoordError::TimedOut { may_have_run: true })
            }
        }
    }

    /// In pages of one entry.
    async fn list(&self, root: &str, after: Option<&str>) -> Result<Listing, CoordError> {
        let mut entries = self.entries.borrow().clone();
        entries.retain(|entry| {
            entry.path.starts_with(&format!("{root}/")) && after.is_none_or(|after| entry.path.as_str() > after)
        });
        entries.sort_by(|one, other| one.path.cmp(&other.path));
        entries.truncate(1);
        let more_after = entries.first().map(|entry| entry.path.clone());
        Ok(Listing { revision: 1, entries, more_after })
    }

    unused! {
        forget(MemberId) -> ();
        epochs(u64) -> Epochs;
        cut_epochs(u64) -> ();
        acquire(&Membership, &str, Duration) -> Lease;
        renew(&mut Lease) -> ();
        release(&Lease) -> ();
        holder(&str) -> Option<Holder>;
        leases(Option<&str>) -> Leases;
        view(&str) -> View;
        changes(&Scope, Revision) -> Changes;
    }

    fn now(&self) -> u64 {
        self.end.now()
    }

    async fn sleep_until(&self, time: u64) {
        self.end.timers().sleep_until(time).await;
    }
}

struct Managed {
    world: World,
    office: Rc<Office>,
    fences: Vec<MemberFence>,
    client: Client,
}

impl Managed {
    /// Servers that have just started, and are no members.
    fn new(servers: u32, replicas: usize) -> Managed {
        let fences: Vec<MemberFence> = (0..servers).map(|_| MemberFence::new()).collect();
        let of_cores = fences.iter().map(|fence| Some(Arc::new(fence.clone()) as Arc<dyn Fence>)).collect();
        let mut world = World::with_faults(servers, replicas, 1, 3, Faults::default(), of_cores);
        (0..servers).for_each(|server| world.start(server, ReplicaState::Closed));
        let office = Office::new(world.client.clone());
        let client = client(&world, &office, world.client.clone());
        Managed { world, office, fences, client }
    }

    /// Is the agent of a server, as a member with this id.
    fn attends<'a>(
        &'a self,
        server: u32,
        member: MemberId,
        is_new: bool,
        events: &'a RefCell<Vec<MemberEvent>>,
    ) -> LocalBoxFuture<'a, AttendError> {
        let cluster = client(&self.world, &self.office, self.world.another_end());
        async move {
            let name = format!("s{server}");
            let attendance = Attendance {
                coordinator: &*self.office,
                cluster: &cluster,
                path: "/kv",
                server: &name,
                incarnation: self.world.incarnation(server),
                member,
                is_new,
                fence: &self.fences[server as usize],
            };
            attendance.serve(|event| events.borrow_mut().push(event)).await
        }
        .boxed_local()
    }

    /// Runs `work` while agents attend.
    fn run<R>(&self, agents: Vec<LocalBoxFuture<'_, AttendError>>, work: impl Future<Output = R>) -> R {
        let work = std::pin::pin!(work);
        match self.world.run(select(join_all(agents), work)) {
            Either::Left((ended, _)) => panic!("{ended:?}"),
            Either::Right((done, _)) => done,
        }
    }

    /// The same within what runs already.
    async fn run_besides(&self, agent: LocalBoxFuture<'_, AttendError>, work: impl Future<Output = ()>) {
        match select(agent, std::pin::pin!(work)).await {
            Either::Left((ended, _)) => panic!("{ended}"),
            Either::Right(_) => {}
        }
    }

    async fn sleep(&self, time: Duration) {
        self.world.client.timers().sleep(time).await;
    }

    async fn until_open(&self, servers: &[&str]) {
        for server in servers {
            while !self.client.is_open(server).await.unwrap_or(false) {
                self.sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

fn client(world: &World, office: &Rc<Office>, end: End) -> Client {
    let directory = Rc::new(MemberDirectory::new(office.clone(), &world.cluster));
    KvCluster::with_directory(&end, world.cluster.clone(), config(), directory).unwrap()
}

const KEYS: u8 = 40;

async fn write_all(client: &Client, value: &[u8]) {
    for key in 0..KEYS {
        client.set(&[key], value).await.unwrap().everywhere().unwrap();
    }
}

async fn read_all(client: &Client, expected: &[u8]) {
    for key in 0..KEYS {
        assert_eq!(client.get(&[key]).await.unwrap().as_deref(), Some(expected), "{key}");
    }
}

/// Both are started for the first time, one of them later: the other one holds acknowledged writes by then.
#[test]
fn a_server_that_is_started_for_the_first_time_gets_what_others_hold() {
    let managed = Managed::new(3, 2);
    let events: Vec<RefCell<Vec<MemberEvent>>> = (0..3).map(|_| RefCell::default()).collect();
    let first = vec![managed.attends(0, 100, true, &events[0]), managed.attends(2, 102, true, &events[2])];
    let later = async {
        managed.until_open(&["s0", "s2"]).await;
        write_all(&managed.client, b"v").await;
        let last = managed.attends(1, 101, true, &events[1]);
        let work = async {
            managed.until_open(&["s1"]).await;
            for key in 0..KEYS {
                assert_eq!(managed.world.holders(&[key]), managed.world.replicas(&[key]), "{key}");
            }
            read_all(&managed.client, b"v").await;
        };
        managed.run_besides(last, work).await;
    };
    managed.run(first, later);
}

/// Between the cluster manager and all servers, for so long that all are marked as failed.
#[test]
fn a_cut_of_all_servers_loses_nothing() {
    let managed = Managed::new(2, 2);
    let events: Vec<RefCell<Vec<MemberEvent>>> = (0..2).map(|_| RefCell::default()).collect();
    let agents = vec![managed.attends(0, 100, true, &events[0]), managed.attends(1, 101, true, &events[1])];
    let work = async {
        managed.until_open(&["s0", "s1"]).await;
        write_all(&managed.client, b"v").await;
        managed.office.fail(|_| true);
        managed.sleep(Duration::from_secs(5)).await;
        for events in &events {
            let events = events.borrow();
            let last = events.last();
            assert!(matches!(last, Some(MemberEvent::Waits(ClusterError::NoSource { .. }))), "{last:?}");
        }
        managed.client.get(&[0]).await.unwrap_err();
        assert_eq!(managed.world.holders(&[0]), [0, 1]);
        // An operator knows that nothing is missing.
        managed.client.open("s1").await.unwrap();
        managed.until_open(&["s0"]).await;
        read_all(&managed.client, b"v").await;
        write_all(&managed.client, b"w").await;
    };
    managed.run(agents, work);
}

#[test]
fn a_member_whose_fill_an_operator_gave_up_fills_itself() {
    let managed = Managed::new(2, 2);
    let events: Vec<RefCell<Vec<MemberEvent>>> = (0..2).map(|_| RefCell::default()).collect();
    let agents = vec![managed.attends(0, 100, true, &events[0]), managed.attends(1, 101, true, &events[1])];
    let work = async {
        managed.until_open(&["s0", "s1"]).await;
        write_all(&managed.client, b"v").await;
        managed.client.begin_fill("s0").await.unwrap();
        assert!(!managed.client.is_open("s0").await.unwrap());
        managed.until_open(&["s0"]).await;
        read_all(&managed.client, b"v").await;
    };
    managed.run(agents, work);
}

#[test]
fn one_process_at_a_time_is_a_server() {
    let managed = Managed::new(2, 2);
    let events: Vec<RefCell<Vec<MemberEvent>>> = (0..2).map(|_| RefCell::default()).collect();
    let agents = vec![managed.attends(0, 100, true, &events[0])];
    let work = async {
        managed.until_open(&["s0"]).await;
        let twice = managed.attends(0, 200, false, &events[1]).await;
        assert!(matches!(twice, AttendError::Twice { member: 100, .. }), "{twice}");
    };
    managed.run(agents, work);
    // Another process answers at the address of this one.
    let events: RefCell<Vec<MemberEvent>> = RefCell::default();
    let cluster = client(&managed.world, &managed.office, managed.world.another_end());
    let attendance = Attendance {
        coordinator: &*managed.office,
        cluster: &cluster,
        path: "/kv",
        server: "s1",
        incarnation: managed.world.incarnation(1) + 1,
        member: 101,
        is_new: false,
        fence: &managed.fences[1],
    };
    let serving = attendance.serve(|event| events.borrow_mut().push(event));
    managed.world.run(select(std::pin::pin!(serving), std::pin::pin!(managed.sleep(Duration::from_secs(3)))));
    let events: &Vec<MemberEvent> = &events.borrow();
    let is_other = |event: &MemberEvent| matches!(event, MemberEvent::Waits(ClusterError::Server(missed)) if matches!(missed.error, ServerError::OtherProcess));
    assert!(!events.is_empty() && events.iter().all(is_other), "{events:?}");
}

/// The one that has the items has failed when the other one starts for the first time.
#[test]
fn a_new_server_waits_for_one_that_was_started_before_and_has_failed() {
    let managed = Managed::new(2, 2);
    let events: Vec<RefCell<Vec<MemberEvent>>> = (0..3).map(|_| RefCell::default()).collect();
    managed.run(vec![managed.attends(0, 100, true, &events[0])], async {
        managed.until_open(&["s0"]).await;
        write_all(&managed.client, b"v").await;
    });
    // Its process stands still.
    managed.office.fail(|_| true);
    managed.run(vec![managed.attends(1, 101, true, &events[1])], async {
        managed.sleep(Duration::from_secs(5)).await;
        assert!(!managed.client.is_open("s1").await.unwrap(), "it is empty");
        let events = events[1].borrow();
        let last = events.last();
        assert!(matches!(last, Some(MemberEvent::Waits(ClusterError::NoSource { .. }))), "{last:?}");
    });
    managed.office.fail(|_| true);
    let agents = vec![managed.attends(0, 100, false, &events[0]), managed.attends(1, 101, false, &events[2])];
    managed.run(agents, async {
        managed.sleep(Duration::from_secs(1)).await;
        managed.client.open("s0").await.unwrap();
        managed.until_open(&["s1"]).await;
        read_all(&managed.client, b"v").await;
    });
}

#[test]
fn members_of_two_clusters_of_one_name_do_not_mix() {
    let managed = Managed::new(2, 2);
    let servers = managed.world.cluster.servers().to_vec();
    let other = Description::new(managed.world.cluster.name(), 2, servers, 2, 32).unwrap();
    let about = member_about(&other, "s0");
    managed.world.run(managed.office.join(500, about.as_bytes())).unwrap();
    assert_eq!(managed.world.run(managed.client.live()).unwrap().live, [false, false]);
    let events = RefCell::default();
    managed.run(vec![managed.attends(0, 100, true, &events)], managed.until_open(&["s0"]));
    assert_eq!(managed.world.run(managed.client.live()).unwrap().live, [true, false]);
}

#[test]
fn an_operator_has_a_member_filled() {
    let managed = Managed::new(2, 2);
    let events: Vec<RefCell<Vec<MemberEvent>>> = (0..2).map(|_| RefCell::default()).collect();
    let agents = vec![managed.attends(0, 100, true, &events[0]), managed.attends(1, 101, true, &events[1])];
    managed.run(agents, async {
        managed.until_open(&["s0", "s1"]).await;
        write_all(&managed.client, b"v").await;
        let before = events[0].borrow().len();
        assert_eq!(managed.client.refill("s0").await.unwrap(), None, "it fills itself");
        managed.client.until_open("s0", Duration::from_secs(30)).await.unwrap();
        let filled =
            |event: &MemberEvent| matches!(event, MemberEvent::Filled(filled) if filled.items == u64::from(KEYS));
        assert!(events[0].borrow()[before..].iter().all(filled), "{events:?}");
        read_all(&managed.client, b"v").await;
    });
}

/// Its source is gone when an operator has had it filled.
#[test]
fn the_wait_for_a_member_that_is_filled_has_an_end() {
    let managed = Managed::new(2, 2);
    let events: Vec<RefCell<Vec<MemberEvent>>> = (0..2).map(|_| RefCell::default()).collect();
    let agents = vec![managed.attends(0, 100, true, &events[0]), managed.attends(1, 101, true, &events[1])];
    let source = &managed.world.servers[1][0].endpoint;
    managed.run(agents, async {
        managed.until_open(&["s0", "s1"]).await;
        assert_eq!(managed.client.refill("s0").await.unwrap(), None);
        mute(source, true);
        let begun = managed.world.client.now();
        let error = managed.client.until_open("s0", Duration::from_millis(12_500)).await.unwrap_err();
        assert!(matches!(error, ClusterError::NotOpenYet { .. }), "{error}");
        let took = Duration::from_nanos(managed.world.client.now() - begun);
        assert!((12_500..15_000).contains(&took.as_millis()), "{took:?}");
        assert!(no_source(&events[0]), "{events:?}");
        mute(source, false);
        managed.client.until_open("s0", Duration::from_secs(30)).await.unwrap();
    });
}

/// Another fill would wait until writes under way have ended.
#[test]
fn what_fails_before_a_server_drops_anything_needs_no_other_fill() {
    let managed = Managed::new(2, 2);
    let events: Vec<RefCell<Vec<MemberEvent>>> = (0..2).map(|_| RefCell::default()).collect();
    let agents = vec![managed.attends(0, 100, true, &events[0]), managed.attends(1, 101, true, &events[1])];
    let server = &managed.world.servers[0][0].endpoint;
    let cut_manager = |is_cut| managed.office.is_away.set(is_cut);
    let cut_server = |is_cut| mute(server, is_cut);
    let cuts: [&dyn Fn(bool); 2] = [&cut_manager, &cut_server];
    managed.run(agents, async {
        managed.until_open(&["s0", "s1"]).await;
        write_all(&managed.client, b"v").await;
        for cut in cuts {
            let before = events[0].borrow().len();
            let was_told = |is_it: fn(&MemberEvent) -> bool| events[0].borrow()[before..].iter().any(is_it);
            managed.office.fail(|id| id == 100);
            until(|| was_told(|event| matches!(event, MemberEvent::Joined { .. }))).await;
            cut(true);
            until(|| was_told(|event| matches!(event, MemberEvent::Waits(_)))).await;
            cut(false);
            let begun = managed.world.client.now();
            managed.until_open(&["s0"]).await;
            let took = Duration::from_nanos(managed.world.client.now() - begun);
            assert!(took < Duration::from_secs(5), "{took:?}: {events:?}");
        }
        read_all(&managed.client, b"v").await;
    });
}

fn no_source(events: &RefCell<Vec<MemberEvent>>) -> bool {
    matches!(events.borrow().last(), Some(MemberEvent::Waits(ClusterError::NoSource { .. })))
}

fn has_joined(events: &RefCell<Vec<MemberEvent>>) -> bool {
    matches!(events.borrow().last(), Some(MemberEvent::Joined { .. }))
}

/// The first start of two servers is interrupted: one has been recorded, and ends before it opens.
#[test]
fn a_server_that_never_opened_is_new_again_and_nobody_waits_for_it() {
    let mut managed = Managed::new(2, 2);
    let events: Vec<RefCell<Vec<MemberEvent>>> = (0..4).map(|_| RefCell::default()).collect();
    managed.run(vec![managed.attends(0, 100, true, &events[0])], until(|| has_joined(&events[0])));
    managed.world.start(0, ReplicaState::Closed);
    managed.office.fail(|_| true);
    managed.run(vec![managed.attends(1, 101, true, &events[1])], async {
        managed.until_open(&["s1"]).await;
        write_all(&managed.client, b"v").await;
        managed
            .run_besides(managed.attends(0, 100, true, &events[2]), async {
                managed.until_open(&["s0"]).await;
                assert!((0..KEYS).all(|key| managed.world.holders(&[key]) == [0, 1]));
                read_all(&managed.client, b"v").await;
            })
            .await;
    });
    // It has opened, and does not go by the item that it lost.
    managed.world.start(0, ReplicaState::Closed);
    managed.office.fail(|_| true);
    let again = managed.world.run(managed.attends(0, 100, true, &events[3]));
    assert!(matches!(&again, AttendError::StartedBefore { server } if server == "s0"), "{again}");
}

/// It restarts while another new server is live, which may have taken writes meanwhile: that one is first now.
#[test]
fn a_new_server_that_restarts_waits_for_those_that_began_before() {
    let mut managed = Managed::new(2, 2);
    let events: Vec<RefCell<Vec<MemberEvent>>> = (0..3).map(|_| RefCell::default()).collect();
    let both = vec![managed.attends(0, 100, true, &events[0]), managed.attends(1, 101, true, &events[1])];
    managed.run(both, until(|| has_joined(&events[0]) && has_joined(&events[1])));
    managed.world.start(0, ReplicaState::Closed);
    managed.office.fail(|id| id == 100);
    managed.run(vec![managed.attends(0, 100, true, &events[2])], async {
        managed.sleep(Duration::from_secs(5)).await;
        assert!(no_source(&events[2]) && !managed.client.is_open("s0").await.unwrap());
    });
}

#[test]
fn a_first_start_survives_lost_answers_of_the_cluster_manager() {
    for lost in 1..4 {
        let managed = Managed::new(2, 2);
        managed.office.loses_answers.set(lost);
        let events: Vec<RefCell<Vec<MemberEvent>>> = (0..2).map(|_| RefCell::default()).collect();
        let both = vec![managed.attends(0, 100, true, &events[0]), managed.attends(1, 101, true, &events[1])];
        managed.run(both, managed.until_open(&["s0", "s1"]));
        assert_eq!(managed.office.loses_answers.get(), 0);
    }
}

/// Whose servers hold nothing of the cluster before.
#[test]
fn a_new_description_at_the_same_entry_begins_anew() {
    let mut managed = Managed::new(2, 2);
    let events: Vec<RefCell<Vec<MemberEvent>>> = (0..3).map(|_| RefCell::default()).collect();
    managed.run(vec![managed.attends(0, 100, true, &events[0])], managed.until_open(&["s0"]));
    managed.office.fail(|_| true);
    let world = &mut managed.world;
    let servers = world.cluster.servers().to_vec();
    world.cluster = Description::new(world.cluster.name(), 2, servers, 2, 32).unwrap();
    (0..2).for_each(|server| world.start(server, ReplicaState::Closed));
    managed.client = client(&managed.world, &managed.office, managed.world.client.clone());
    let both = vec![managed.attends(0, 100, true, &events[1]), managed.attends(1, 101, true, &events[2])];
    managed.run(both, managed.until_open(&["s0", "s1"]));
}
