//! A multiget: split by partition, ranked, and read from replicas, all as the policy says.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use dunlin_kv::client::{KvError, Value};
use dunlin_kv::wire::Ranked;
use dunlin_net::random::Random;
use dunlin_net::{Clock, Transport};
use dunlin_rpc::Endpoint;
use dunlin_schedule::simulator::{Arrival, Placement, Setting};
use dunlin_schedule::{ChooseReplica, Opsets, Policy, Told};

use super::items::Items;
use super::links::Links;
use super::seen::{Seen, Sent};
use crate::rein::contenders::{Copies, Policies};
use crate::workload::item::{KEY_BYTES, is_value, key};

/// Response times that the percentile for speculative retries is of, and how often it is computed anew.
const RESPONSES: usize = 256;
const RESPONSES_PER_LOOK: usize = 32;

/// The clients of a run.
pub(super) struct Clients<T: Transport + 'static> {
    pub endpoint: Rc<Endpoint<T>>,
    pub links: Rc<Links<T>>,
    placement: Placement,
    items: Rc<Items>,
    /// The number of the load.
    load: usize,
    policy: Policy,
    copies: Copies,
    /// Of each client.
    choices: RefCell<Vec<Box<dyn ChooseReplica>>>,
    random: RefCell<Random>,
    opsets: RefCell<Opsets>,
    responses: RefCell<Responses>,
    pub clock: Clock,
    pub seen: RefCell<Seen>,
    /// Multigets without all of their answers, and keys that were requested and have none.
    pub open: Cell<u64>,
    pub outstanding: Cell<u64>,
    pub failed: RefCell<Option<KvError>>,
}

struct Multiget {
    client: usize,
    sent: Sent,
    ops: Vec<Op>,
    left: Cell<usize>,
}

struct Op {
    item: u64,
    partition: u32,
    rank: u64,
    /// The servers that were asked: at most two.
    asked: Cell<[Option<u32>; 2]>,
    is_done: Cell<bool>,
}

impl<T: Transport + 'static> Clients<T> {
    pub fn new(
        endpoint: &Rc<Endpoint<T>>,
        links: &Rc<Links<T>>,
        (items, load): (&Rc<Items>, usize),
        policies: Policies,
        setting: &Setting,
    ) -> Rc<Self> {
        let choice = || policies.choice(setting);
        Rc::new(Clients {
            endpoint: endpoint.clone(),
            links: links.clone(),
            placement: Placement::new(setting),
            items: items.clone(),
            load,
            policy: policies.policy(),
            copies: policies.copies(),
            choices: RefCell::new(std::iter::repeat_with(choice).take(setting.clients as usize).collect()),
            random: RefCell::new(Random::new(setting.seed)),
            opsets: RefCell::new(Opsets::new(setting.partitions)),
            responses: RefCell::default(),
            clock: Clock::new(),
            seen: RefCell::default(),
            open: Cell::new(0),
            outstanding: Cell::new(0),
            failed: RefCell::default(),
        })
    }

    /// Sends a multiget.
    pub fn start(self: &Rc<Self>, arrival: &Arrival, sent: Sent) {
        let mut opsets = self.opsets.borrow_mut();
        opsets.clear();
        let partitions: Vec<u32> = arrival.keys.iter().map(|key| self.placement.partition(*key)).collect();
        let places: Vec<usize> = partitions.iter().map(|partition| opsets.add(*partition, 1)).collect();
        opsets.rank(&self.policy);
        let op = |((key, partition), place): ((&u64, u32), usize)| Op {
            item: self.items.of(*key, partition, self.load),
            partition,
            rank: opsets.as_slice()[place].rank,
            asked: Cell::default(),
            is_done: Cell::new(false),
        };
        let ops: Vec<Op> = arrival.keys.iter().zip(partitions).zip(places).map(op).collect();
        let left = Cell::new(ops.len());
        let multiget = Rc::new(Multiget { client: arrival.client as usize, sent, ops, left });
        self.open.set(self.open.get() + 1);
        let all = || (0..multiget.ops.len()).collect::<Vec<usize>>();
        self.send(&multiget, &all());
        if self.copies == Copies::Two {
            self.send(&multiget, &all());
        }
    }

    /// Sends operations, each to a replica that was not asked yet. Those of one rank for one server share a request.
    fn send(self: &Rc<Self>, multiget: &Rc<Multiget>, ops: &[usize]) {
        let mut groups: BTreeMap<(u32, u64), Vec<usize>> = BTreeMap::new();
        for &place in ops {
            let op = &multiget.ops[place];
            let [first, _] = op.asked.get();
            let replicas = self.placement.of(op.partition).iter().copied();
            let left: Vec<u32> = replicas.filter(|server| Some(*server) != first).collect();
            let mut random = self.random.borrow_mut();
            let choice = &mut self.choices.borrow_mut()[multiget.client];
            let server = choice.choose(op.partition, &left, &mut |below| random.below(below));
            choice.sent(server, 1);
            op.asked.set([first.or(Some(server)), first.map(|_| server)]);
            groups.entry((server, op.rank)).or_default().push(place);
        }
        for ((server, rank), ops) in groups {
            self.outstanding.set(self.outstanding.get() + ops.len() as u64);
            self.endpoint.spawn(self.clone().ask(multiget.clone(), server, rank, ops));
        }
    }

    /// Asks a server for values.
    async fn ask(self: Rc<Self>, multiget: Rc<Multiget>, server: u32, rank: u64, ops: Vec<usize>) {
        let sent = self.clock.now();
        self.ask_again_later(&multiget, &ops);
        let taken = self.links.take(server);
        let ranked = Ranked { rank, is_level: self.policy.gives_levels(), wants_waited: true };
        let client = taken.client().with_rank(Some(ranked));
        let keys: Vec<[u8; KEY_BYTES]> = ops.iter().map(|place| key(multiget.ops[*place].item)).collect();
        let values = match &keys[..] {
            [key] => client.get_waited(key).await.map(|(value, waited)| (vec![value], waited)),
            keys => client.multi_get_waited(keys).await,
        };
        drop(taken);
        let response = self.clock.now() - sent;
        self.responses.borrow_mut().add(response);
        self.outstanding.set(self.outstanding.get() - ops.len() as u64);
        // As in `KvCluster`: an answer says how long it waited, but not for how many others.
        let queued = values.as_ref().map_or(0, |(_, waited)| u64::from(waited.queued_micros) * 1000);
        let service = response.saturating_sub(queued);
        let told = Told { response: response as f64, service: service as f64, backlog: 0.0 };
        self.choices.borrow_mut()[multiget.client].ended(server, ops.len() as u32, Some(&told));
        match values {
            Ok((values, _)) => self.take(&multiget, &ops, values),
            Err(error) => _ = self.failed.replace(Some(error)),
        }
    }

    /// Has operations asked for once more if they are not answered after the usual time: for speculative retries.
    fn ask_again_later(self: &Rc<Self>, multiget: &Rc<Multiget>, ops: &[usize]) {
        let is_first = ops.iter().all(|place| multiget.ops[*place].asked.get()[1].is_none());
        if self.copies != Copies::Speculative || !is_first {
            return;
        }
        let Some(after) = self.responses.borrow().percentile else { return };
        let (this, multiget, ops) = (self.clone(), multiget.clone(), ops.to_vec());
        let sleep = self.endpoint.timers().sleep_until(self.endpoint.now() + after);
        self.endpoint.spawn(async move {
            sleep.await;
            let late: Vec<usize> = ops.into_iter().filter(|place| !multiget.ops[*place].is_done.get()).collect();
            this.send(&multiget, &late);
        });
    }

    /// Takes the values of some operations: the first answer to each counts.
    fn take(&self, multiget: &Multiget, ops: &[usize], values: Vec<Option<Value>>) {
        let mut seen = self.seen.borrow_mut();
        // A further answer to some of its operations comes when it is complete.
        let was_open = multiget.left.get() > 0;
        for (place, value) in ops.iter().zip(values) {
            let op = &multiget.ops[*place];
            match value {
                Some(value) => seen.wrong += u64::from(!is_value(op.item, &value)),
                None => seen.missing += 1,
            }
            seen.values += 1;
            if !op.is_done.replace(true) {
                multiget.left.set(multiget.left.get() - 1);
            }
        }
        if was_open && multiget.left.get() == 0 {
            self.open.set(self.open.get() - 1);
            seen.answered(&multiget.sent, self.clock.now());
        }
    }
}

/// The last response times.
#[derive(Default)]
struct Responses {
    nanos: Vec<u64>,
    count: usize,
    /// The 90th percentile, once enough are known.
    percentile: Option<u64>,
}

impl Responses {
    fn add(&mut self, nanos: u64) {
        match self.nanos.get_mut(self.count % RESPONSES) {
            Some(place) => *place = nanos,
            None => self.nanos.push(nanos),
        }
        self.count += 1;
        if self.count.is_multiple_of(RESPONSES_PER_LOOK) {
            let mut sorted = self.nanos.clone();
            sorted.sort_unstable();
            self.percentile = Some(sorted[sorted.len() * 9 / 10]);
        }
    }
}
