//! The fault hunt of the cluster manager: a [cluster](super::cluster) with its machine on durable logs, a watchman
//! beside each replica, and clients that are members, contend for leases, change a small tree and watch all of it.
//!
//! Clients' answers are judged twice. The history of each path and of each lease must be linearizable, whatever the
//! machine did. And an independent specification (`book`) processes all executed commands again; its answers and events
//! must equal those of the replicas and the watchers.
//!
//! | File | What it holds |
//! |---|---|
//! | `settings` | the meaning of a seed beyond the cluster |
//! | `caller` | random operations of clients |
//! | `attendance` | the life of a client as a member |
//! | `stamped` | when a heartbeat was sent |
//! | `watcher` | the watches of clients |
//! | `subject` | a path of the tree, or a lease, as the judge needs it |
//! | `reliance` | who relies on which lease, by its own clock |
//! | `testimony` | what clients were told that stands in no history |
//! | `witness` | what each replica executed, and who works as a member |
//! | `book` | what must come of that |
//! | `ending` | what must come true when faults have ended |

mod attendance;
mod book;
mod caller;
mod ending;
mod reliance;
mod settings;
mod stamped;
mod subject;
mod testimony;
mod watcher;
mod witness;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use dunlin_coord::Incarnation;
use dunlin_coord::embedded::Watchman;
use dunlin_coord::model::{Hearing, Machine};
use dunlin_rpc::{CongestionControl, Endpoint};
use dunlin_sim::{Datacenter, SimTransport, ThreadClock};
use dunlin_smr::{Client, Node};

use self::book::Book;
use self::caller::Work;
use self::reliance::Reliance;
use self::settings::Settings;
use self::subject::{Input, Subject};
use self::testimony::Testimony;
use self::witness::{Witness, Witnessed};
use super::clients::driver::Driver;
use super::cluster::replica::Log;
use super::cluster::run;
use super::cluster::{Clocks, Load, SNAPSHOT_PIECES_MAX, Scenario, Service};

const MILLISECOND: u64 = 1_000_000;
/// Minimum number of client commands that a replica queues: with fewer, one client starves among others that retry.
const QUEUE_MIN: usize = 64;

/// Minimum number of appends in flight.
const APPENDS_MIN: usize = 8;

/// Minimum number of entries kept behind a snapshot. Heartbeats never end: with fewer entries, a replica whose snapshot
/// came in small pieces always needs another.
const KEPT_MIN: u64 = 200;

/// Maximum average time that a replica takes to write a snapshot, in nanoseconds. In the end all replicas must catch up
/// within the time that [`ending`] allows. A learner then waits for up to three snapshots: the one that its leader is
/// writing, the leader's next one, and its own.
const SNAPSHOT_NS_MAX: u64 = 2_000 * MILLISECOND;

/// If values are long, a page of an answer has 256 kB, which is a thousand packets. With a shorter attempt timeout than
/// this, a client might never receive one, and would retry forever: with few credits it takes many round trips, and
/// congestion control may pace packets at several milliseconds each.
const LONG_ATTEMPT_MIN: Duration = Duration::from_millis(50);
const LONG_CREDITS_MIN: u16 = 8;

/// In a healthy network a command is executed within this many flushes, plus some time.
const FLUSHES: u64 = 4;
const ATTEMPT_MIN: Duration = Duration::from_millis(4);

/// State shared by all programs of a run.
type Shared = run::Shared<Manager>;

/// The cluster manager.
pub struct Manager {
    settings: Settings,
    witness: Rc<Witness>,
    /// By replica: the hearing of its present machine.
    hearings: RefCell<HashMap<u64, Hearing>>,
    testimony: Testimony,
    reliance: Reliance,
    /// By client: the incarnation as which it sends heartbeats and was heard.
    attendance: RefCell<Vec<Option<Incarnation>>>,
    rounds: Rounds,
    book: RefCell<Book>,
}

/// Events at the end of a run, one at a time.
#[derive(Default)]
struct Rounds {
    /// How many are requested, and how many there were.
    wanted: Cell<u64>,
    done: Cell<u64>,
}

impl Service for Manager {
    const LOAD: Load = Load {
        tag: 0x0063_6f6f_7264,
        gaps_ns: &[3 * MILLISECOND, 10 * MILLISECOND, 30 * MILLISECOND, 80 * MILLISECOND],
        clocks: Clocks::OfAll,
    };

    fn adapt(scenario: &mut Scenario) {
        // Votes, and followers' answers to heartbeats, wait for flushes. If these take longer than an election, leaders
        // come and go, and none stays for a failure timeout: for that long a member waits that was not told that it has
        // joined. Such disks are tested by the hunt of replicated state machines.
        scenario.flush_max_ns = scenario.flush_max_ns.min(scenario.election_ns());
        let node = &mut scenario.node;
        // Sessions and full queues are tested by the hunt of replicated state machines.
        (node.sessions_max, node.session_idle_max) = (65_536, Duration::from_secs(600));
        node.proposals_max = node.proposals_max.max(QUEUE_MIN);
        // An entry at a time, and each flushed before the next is sent, clients that retry would queue commands faster
        // than they are executed. That is tested there, too.
        node.appends_in_flight_max = node.appends_in_flight_max.max(APPENDS_MIN);
        // Each attempt can open a session, possibly a new one.
        let flushes = Duration::from_nanos(FLUSHES * scenario.flush_max_ns) + ATTEMPT_MIN;
        scenario.client.attempt_timeout = scenario.client.attempt_timeout.max(flushes);
        node.keep_entries = node.keep_entries.max(KEPT_MIN);
        let settings = Settings::draw(scenario);
        scenario.keys = settings.keys();
        let state_bytes = settings.state_bytes(scenario);
        scenario.bound_snapshots(state_bytes, SNAPSHOT_NS_MAX);
        // A client with watches fills a short queue, and then refuses its own heartbeats.
        for endpoint in &mut scenario.endpoints {
            endpoint.queued_calls_max = endpoint.queued_calls_max.max(QUEUE_MIN as u16);
        }
        if settings.has_long_answers() {
            scenario.client.attempt_timeout = scenario.client.attempt_timeout.max(LONG_ATTEMPT_MIN);
            let clients_from = scenario.replicas_max() as usize;
            for endpoint in &mut scenario.endpoints[clients_from..] {
                endpoint.credits = endpoint.credits.max(LONG_CREDITS_MIN);
                endpoint.congestion = CongestionControl::None;
            }
        }
        // An operation that has no time for two attempts is no operation: members would join, never be told, and fail.
        scenario.client.timeout = scenario.client.timeout.max(2 * scenario.client.attempt_timeout);
        scenario.node.chunk_bytes = scenario.node.chunk_bytes.max(state_bytes.div_ceil(SNAPSHOT_PIECES_MAX) as usize);
    }

    fn new(scenario: &Scenario) -> Manager {
        let settings = Settings::draw(scenario);
        Manager {
            witness: Rc::default(),
            hearings: RefCell::default(),
            testimony: Testimony::default(),
            reliance: Reliance::default(),
            attendance: RefCell::new(vec![None; scenario.clients as usize]),
            rounds: Rounds::default(),
            book: RefCell::new(Book::new(settings.limits.epochs_max)),
            settings,
        }
    }

    fn machine(&self, _: &Scenario, id: u64, clock: &ThreadClock) -> Witnessed {
        let hearing = Hearing::default();
        self.hearings.borrow_mut().insert(id, hearing.clone());
        Witnessed::new(Machine::new(self.settings.limits, hearing), id, self.witness.clone(), clock.clone())
    }

    type Machine = Witnessed;
    type Companion = Watchman;
    type Object = Subject;
    type Client = Driver<Work>;

    fn accompany(
        shared: &Rc<Shared>,
        id: u64,
        endpoint: &Rc<Endpoint<SimTransport>>,
        node: &Node<Witnessed, Log>,
    ) -> Watchman {
        let client = Client::new(endpoint, shared.scenario.known_members(), shared.scenario.client);
        let hearing = shared.service.hearings.borrow()[&id].clone();
        let config = shared.service.settings.watchman_of(id);
        Watchman::start(endpoint, node, client, hearing, config).expect("drawn settings are valid")
    }

    fn start(shared: &Rc<Shared>, number: usize, incarnation: u32, transport: SimTransport) -> Driver<Work> {
        caller::start(shared, number, incarnation, transport)
    }

    fn command(key: usize, input: &Input) -> Option<Vec<u8>> {
        caller::command(key, input)
    }

    fn end(shared: &Rc<Shared>, datacenter: &mut Datacenter) {
        ending::end(shared, datacenter);
    }
}
