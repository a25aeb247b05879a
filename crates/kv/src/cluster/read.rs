//! Reads: a multiget is split by partition, each part goes to a replica that the choice names, and to another one if
//! that fails or is slow. The first answer to a part counts.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::Transport;
use dunlin_schedule::Told;
use futures::StreamExt as _;
use futures::future::LocalBoxFuture;
use futures::stream::FuturesUnordered;

use super::config::Copies;
use super::error::{ClusterError, Missed, ServerError};
use super::trace::{MultigetTrace, PartTrace, Why};
use super::view::Seen;
use super::{Inner, KvCluster};
use crate::client::{KvClient, KvError, Value};
use crate::wire::{ItemFacts, MULTI_GET_KEYS_MAX, Ranked, Waited};

/// Keys of one partition, at most as many as one request may have.
struct Part {
    partition: u32,
    /// Their indices in the list of the multiget.
    keys: Vec<usize>,
    rank: u64,
    /// The servers that were asked.
    tried: Vec<u32>,
    /// Requests for it that have no result.
    in_flight: usize,
    is_done: bool,
    missed: Vec<Missed>,
}

/// A request for some parts at one server.
struct Request<T: Transport + 'static> {
    server: u32,
    parts: Vec<usize>,
    keys: usize,
    why: Why,
    rank: u64,
    ready: u64,
    sent: u64,
    ended: Option<u64>,
    /// Others may be sent in its place.
    is_slow: bool,
    waited: Waited,
    error: Option<String>,
    /// Of each part, until it is sent.
    outstanding: Vec<Outstanding<T>>,
}

/// What a server returned.
#[derive(Default)]
struct Answer {
    values: Vec<Option<Value>>,
    /// Of the item, if that was asked for.
    facts: Option<ItemFacts>,
    waited: Waited,
}

/// What is wanted of the keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Values,
    /// The only key's value, with the item's facts.
    Item,
}

enum Event {
    Answer(usize, Result<Answer, ServerError>),
    /// A request is slow.
    Slow(usize),
    Deadline,
}

/// A multiget in progress.
struct Read<'k, T: Transport + 'static, K> {
    inner: Rc<Inner<T>>,
    keys: &'k [K],
    wanted: Wanted,
    values: Vec<Option<Value>>,
    facts: Option<ItemFacts>,
    parts: Vec<Part>,
    requests: Vec<Request<T>>,
    /// Requests that wait for others to end.
    waiting: VecDeque<usize>,
    in_flight: usize,
    running: FuturesUnordered<LocalBoxFuture<'k, Event>>,
    begun: u64,
    deadline: u64,
}

/// Operations that were sent to a server and have no result: if nobody waits for it any more, they have ended as far as
/// the choice of replicas is concerned.
struct Outstanding<T: Transport + 'static> {
    inner: Rc<Inner<T>>,
    server: u32,
    operations: u32,
    told: Cell<Option<Told>>,
}

/// A part, by its number, whose request is prepared.
type Launched<T> = (usize, Outstanding<T>);

impl<T: Transport + 'static> Outstanding<T> {
    fn new(inner: &Rc<Inner<T>>, server: u32, operations: usize) -> Outstanding<T> {
        let operations = operations.try_into().unwrap_or(u32::MAX);
        inner.choice.borrow_mut().sent(server, operations);
        Outstanding { inner: inner.clone(), server, operations, told: Cell::new(None) }
    }
}

impl<T: Transport + 'static> Drop for Outstanding<T> {
    fn drop(&mut self) {
        self.inner.choice.borrow_mut().ended(self.server, self.operations, self.told.take().as_ref());
    }
}

impl<T: Transport + 'static> KvCluster<T> {
    /// Reads a value.
    ///
    /// # Errors
    /// [`ClusterError`] if no replica answers in time.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Value>, ClusterError> {
        // A future of one key would be as large as that of many.
        let mut values = Box::pin(self.multi_get(&[key])).await?;
        Ok(values.pop().flatten())
    }

    /// Reads an item with its version, which is its CAS token on all replicas.
    ///
    /// # Errors
    /// As [`KvCluster::get`].
    pub async fn read(&self, key: &[u8]) -> Result<Option<(ItemFacts, Value)>, ClusterError> {
        self.read_part(key, 0).await
    }

    /// The same, as a part of a request that has this many other keys, which are read before it or after it.
    pub(crate) async fn read_part(
        &self,
        key: &[u8],
        others: usize,
    ) -> Result<Option<(ItemFacts, Value)>, ClusterError> {
        crate::client::check_key(key)?;
        let keys = [key];
        let mut read = Read::new(&self.inner, &keys, others, Wanted::Item);
        Box::pin(read.run()).await?;
        Ok(read.facts.zip(read.values.pop().flatten()))
    }

    /// Reads the values of many keys: in the result, `values[i]` is that of `keys[i]`.
    ///
    /// The keys are not read atomically, nor from one replica.
    ///
    /// # Errors
    /// As [`KvCluster::get`]: all keys or none.
    pub async fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>, ClusterError> {
        self.multi_get_traced(keys).await.0
    }

    /// The same, and what became of each part.
    pub async fn multi_get_traced<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> (Result<Vec<Option<Value>>, ClusterError>, MultigetTrace) {
        self.multi_get_part(keys, 0).await
    }

    /// The same, as a part of a request that has this many other keys, which are read before it or after it.
    pub(crate) async fn multi_get_part<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        others: usize,
    ) -> (Result<Vec<Option<Value>>, ClusterError>, MultigetTrace) {
        if let Err(error) = keys.iter().try_for_each(|key| crate::client::check_key(key.as_ref())) {
            return (Err(error.into()), MultigetTrace::default());
        }
        let mut read = Read::new(&self.inner, keys, others, Wanted::Values);
        let done = read.run().await;
        let trace = read.trace();
        (done.map(|()| std::mem::take(&mut read.values)), trace)
    }
}

impl<T: Transport + 'static> Inner<T> {
    /// Returns the replica to read next, if one is left. Those that failed or were slow come last.
    fn choose(&self, seen: &Seen, partition: u32, tried: &[u32]) -> Option<u32> {
        let is_left = |server: &&u32| seen.is_live(**server) && !tried.contains(server);
        let left: Vec<u32> = self.cluster.replicas_of(partition).iter().filter(is_left).copied().collect();
        let is_good = |server: &&u32| !self.nodes[**server as usize].is_doubtful();
        let good: Vec<u32> = left.iter().filter(is_good).copied().collect();
        let among = if good.is_empty() { &left } else { &good };
        if among.is_empty() {
            return None;
        }
        let mut random = self.random.borrow_mut();
        Some(self.choice.borrow_mut().choose(partition, among, &mut |below| random.below(below)))
    }

    /// Whether a replica is left that was not asked.
    fn is_any_left(&self, seen: &Seen, part: &Part) -> bool {
        let replicas = self.cluster.replicas_of(part.partition);
        replicas.iter().any(|server| seen.is_live(*server) && !part.tried.contains(server))
    }

    /// Draws conclusions from the result of a request.
    fn note(
        &self,
        server: u32,
        client: &KvClient<T>,
        begun: u64,
        outstanding: &[Outstanding<T>],
        result: Result<Answer, KvError>,
    ) -> Result<Answer, ServerError> {
        let node = &self.nodes[server as usize];
        match result {
            Ok(found) => {
                let response = self.endpoint.now().saturating_sub(begun);
                node.was_read();
                self.responses.borrow_mut().add(response);
                let service = response.saturating_sub(u64::from(found.waited.queued_micros) * 1000);
                let told = Told { response: response as f64, service: service as f64, backlog: 0.0 };
                outstanding.iter().for_each(|outstanding| outstanding.told.set(Some(told)));
                Ok(found)
            }
            Err(error) => {
                node.failed(client, &error);
                Err(error.into())
            }
        }
    }
}

impl<'k, T: Transport + 'static, K: AsRef<[u8]>> Read<'k, T, K> {
    fn new(inner: &Rc<Inner<T>>, keys: &'k [K], others: usize, wanted: Wanted) -> Read<'k, T, K> {
        let mut read = Read {
            inner: inner.clone(),
            keys,
            wanted,
            facts: None,
            values: keys.iter().map(|_| None).collect(),
            parts: Vec::new(),
            requests: Vec::new(),
            waiting: VecDeque::new(),
            in_flight: 0,
            running: FuturesUnordered::new(),
            begun: inner.endpoint.now(),
            deadline: inner.deadline(),
        };
        read.split(others);
        read
    }

    /// Splits the keys into parts, and ranks them as those of a request that has this many other keys.
    fn split(&mut self, others: usize) {
        let mut opsets = self.inner.opsets.borrow_mut();
        opsets.clear();
        // Each key costs 1: neither sizes nor tiers are known before a value is read.
        let mut of_opsets: Vec<Vec<usize>> = Vec::new();
        for (place, key) in self.keys.iter().enumerate() {
            let opset = opsets.add(self.inner.cluster.partition(key.as_ref()), 1);
            if opset == of_opsets.len() {
                of_opsets.push(Vec::new());
            }
            of_opsets[opset].push(place);
        }
        opsets.rank_part(&self.inner.config.policy, others as u64);
        for (opset, places) in opsets.as_slice().iter().zip(&of_opsets) {
            for keys in places.chunks(MULTI_GET_KEYS_MAX) {
                self.parts.push(Part {
                    partition: opset.partition,
                    keys: keys.to_vec(),
                    rank: opset.rank,
                    tried: Vec::new(),
                    in_flight: 0,
                    is_done: false,
                    missed: Vec::new(),
                });
            }
        }
        opsets.clear();
    }

    async fn run(&mut self) -> Result<(), ClusterError> {
        let timers = self.inner.endpoint.timers();
        let deadline = self.deadline;
        self.running.push(Box::pin(async move {
            timers.sleep_until(deadline).await;
            Event::Deadline
        }));
        let mut attempt = 0;
        loop {
            let seen = self.inner.until(self.deadline, self.inner.seen()).await.ok_or(ClusterError::Late)??;
            let left: Vec<usize> = (0..self.parts.len())
                .filter(|part| !self.parts[*part].is_done && self.parts[*part].in_flight == 0)
                .collect();
            self.launch(&seen, &left, Why::First);
            if self.inner.config.copies == Copies::Two {
                self.launch(&seen, &left, Why::Duplicate);
            }
            let Err(error) = self.finish(&seen).await else { return Ok(()) };
            // Another server may be live by now.
            let may_help = matches!(error, ClusterError::NoReplica { .. }) && self.inner.directory.is_some();
            if !may_help || !self.inner.pause(attempt, self.deadline).await {
                return Err(error);
            }
            attempt += 1;
            self.inner.until(self.deadline, self.inner.look()).await.ok_or(ClusterError::Late)??;
            self.parts.iter_mut().filter(|part| part.in_flight == 0).for_each(|part| {
                part.tried.clear();
                part.missed.clear();
            });
        }
    }

    /// Handles events until all parts are done, or one cannot be.
    async fn finish(&mut self, seen: &Seen) -> Result<(), ClusterError> {
        loop {
            self.pump();
            if self.parts.iter().all(|part| part.is_done) {
                return Ok(());
            }
            if let Some(part) = self.parts.iter_mut().find(|part| !part.is_done && part.in_flight == 0) {
                let missed = std::mem::take(&mut part.missed);
                return Err(ClusterError::NoReplica { partition: part.partition, missed });
            }
            // The deadline is among them.
            let Some(event) = self.running.next().await else { return Err(ClusterError::Late) };
            match event {
                Event::Deadline => return Err(self.late()),
                Event::Answer(request, result) => self.answer(seen, request, result),
                Event::Slow(request) => self.slow(seen, request),
            }
        }
    }

    fn late(&mut self) -> ClusterError {
        // What some replicas said is more than that time is over.
        match self.parts.iter_mut().find(|part| !part.is_done && !part.missed.is_empty()) {
            Some(part) => {
                ClusterError::NoReplica { partition: part.partition, missed: std::mem::take(&mut part.missed) }
            }
            None => ClusterError::Late,
        }
    }

    /// Prepares requests for parts that have a replica left. Parts of one rank for one server share requests.
    fn launch(&mut self, seen: &Seen, parts: &[usize], why: Why) {
        // By server and rank.
        let mut groups: BTreeMap<(u32, u64), Vec<Launched<T>>> = BTreeMap::new();
        for &number in parts {
            let part = &mut self.parts[number];
            let Some(server) = self.inner.choose(seen, part.partition, &part.tried) else { continue };
            part.tried.push(server);
            part.in_flight += 1;
            // Counted now, so that the next part of this multiget goes elsewhere.
            let outstanding = Outstanding::new(&self.inner, server, part.keys.len());
            groups.entry((server, part.rank)).or_default().push((number, outstanding));
        }
        let ready = self.inner.endpoint.now();
        // By their place among those for one server, so that one that hangs holds up its own only, and by rank.
        let mut prepared: Vec<(usize, Request<T>)> = Vec::new();
        for ((server, rank), parts) in groups {
            let mut parts = parts.into_iter().peekable();
            for place in 0.. {
                let (mut chunk, mut outstanding, mut keys) = (Vec::new(), Vec::new(), 0);
                while let Some((part, of_part)) =
                    parts.next_if(|(part, _)| keys == 0 || keys + self.parts[*part].keys.len() <= MULTI_GET_KEYS_MAX)
                {
                    keys += self.parts[part].keys.len();
                    chunk.push(part);
                    outstanding.push(of_part);
                }
                if chunk.is_empty() {
                    break;
                }
                let request = Request {
                    server,
                    parts: chunk,
                    keys,
                    why,
                    rank,
                    ready,
                    sent: ready,
                    ended: None,
                    is_slow: false,
                    waited: Waited::default(),
                    error: None,
                    outstanding,
                };
                prepared.push((place, request));
            }
        }
        prepared.sort_by_key(|(place, request)| (*place, request.rank));
        let first = self.requests.len();
        self.requests.extend(prepared.into_iter().map(|(_, request)| request));
        match why {
            Why::First | Why::Duplicate => self.waiting.extend(first..self.requests.len()),
            // What others of this multiget wait for already.
            Why::Slow | Why::Failed => (first..self.requests.len()).rev().for_each(|of| self.waiting.push_front(of)),
        }
    }

    /// Sends requests that wait, as many as may be in flight.
    fn pump(&mut self) {
        while self.in_flight < self.inner.config.in_flight_max.max(1) {
            let Some(number) = self.waiting.pop_front() else { return };
            let now = self.inner.endpoint.now();
            let request = &mut self.requests[number];
            request.sent = now;
            let outstanding = std::mem::take(&mut request.outstanding);
            // Another replica may have answered while it waited.
            if request.parts.iter().all(|part| self.parts[*part].is_done) {
                request.parts.iter().for_each(|part| self.parts[*part].in_flight -= 1);
                continue;
            }
            self.in_flight += 1;
            let (server, rank, keys_count) = (request.server, request.rank, request.keys);
            let places: Vec<usize> =
                request.parts.iter().flat_map(|part| self.parts[*part].keys.iter().copied()).collect();
            let all: &'k [K] = self.keys;
            let keys: Vec<&'k [u8]> = places.iter().map(|place| all[*place].as_ref()).collect();
            if request.why == Why::First {
                self.inner.extra.borrow_mut().earn();
            }
            let (inner, wanted) = (self.inner.clone(), self.wanted);
            self.running.push(Box::pin(async move {
                let client = match inner.nodes[server as usize].client().await {
                    Ok(client) => client,
                    Err(error) => return Event::Answer(number, Err(error)),
                };
                let is_level = inner.config.policy.gives_levels();
                let ranked = client.with_rank(Some(Ranked { rank, is_level, wants_waited: true }));
                let values = ask(&ranked, &keys, wanted).await;
                Event::Answer(number, inner.note(server, &client, now, &outstanding, values))
            }));
            self.look_at(number, now.saturating_add(self.slow_after(keys_count)));
        }
    }

    /// Looks at this time whether a request is slow.
    fn look_at(&mut self, number: usize, time: u64) {
        let timers = self.inner.endpoint.timers();
        self.running.push(Box::pin(async move {
            timers.sleep_until(time).await;
            Event::Slow(number)
        }));
    }

    /// After how many nanoseconds without an answer another replica is asked, too.
    fn slow_after(&self, keys: usize) -> u64 {
        let failover: Duration = self.inner.config.failover_after;
        let failover: u64 = failover.as_nanos().try_into().unwrap_or(u64::MAX);
        // Twice as long for a full request.
        let failover = failover.saturating_add(failover / MULTI_GET_KEYS_MAX as u64 * keys as u64);
        match self.inner.config.copies {
            Copies::Speculative => {
                self.inner.responses.borrow().percentile().map_or(failover, |nanos| nanos.min(failover))
            }
            Copies::One | Copies::Two => failover,
        }
    }

    fn answer(&mut self, seen: &Seen, number: usize, result: Result<Answer, ServerError>) {
        let request = &mut self.requests[number];
        self.in_flight -= usize::from(!request.is_slow);
        request.ended = Some(self.inner.endpoint.now());
        request.parts.iter().for_each(|part| self.parts[*part].in_flight -= 1);
        match result {
            Ok(answer) => {
                request.waited = answer.waited;
                let mut values = answer.values.into_iter();
                for part in &request.parts {
                    let part = &mut self.parts[*part];
                    for place in &part.keys {
                        let value = values.next().flatten();
                        if !part.is_done {
                            self.values[*place] = value;
                            self.facts = answer.facts;
                        }
                    }
                    part.is_done = true;
                }
            }
            Err(error) => {
                request.error = Some(error.to_string());
                let missed = self.inner.missed(request.server, error);
                let left: Vec<usize> =
                    request.parts.iter().copied().filter(|part| !self.parts[*part].is_done).collect();
                left.iter().for_each(|part| self.parts[*part].missed.push(missed.clone()));
                self.launch(seen, &left, Why::Failed);
            }
        }
    }

    fn slow(&mut self, seen: &Seen, number: usize) {
        let request = &self.requests[number];
        if request.ended.is_some() {
            return;
        }
        let (sent, keys) = (request.sent, request.keys);
        let left: Vec<usize> = request.parts.iter().copied().filter(|part| !self.parts[*part].is_done).collect();
        let node = &self.inner.nodes[request.server as usize];
        if self.inner.config.copies != Copies::Speculative {
            // A server that answers others is busy, and so may be all: then more requests would make it worse.
            let is_any_left = || left.iter().any(|part| self.inner.is_any_left(seen, &self.parts[*part]));
            let is_allowed = node.is_silent_since(sent) || is_any_left() && self.inner.extra.borrow_mut().spend();
            if !is_allowed {
                let again = self.inner.endpoint.now().saturating_add(self.slow_after(keys));
                return self.look_at(number, again);
            }
            node.suspect();
        }
        // Its place is for those that have a better chance.
        self.requests[number].is_slow = true;
        self.in_flight -= 1;
        self.launch(seen, &left, Why::Slow);
    }

    fn trace(&self) -> MultigetTrace {
        let since = |time: u64| Duration::from_nanos(time.saturating_sub(self.begun));
        let part = |request: &Request<T>| PartTrace {
            server: self.inner.nodes[request.server as usize].name.clone(),
            keys: request.keys,
            partitions: request.parts.len(),
            rank: request.rank,
            why: request.why,
            ready: since(request.ready),
            sent: since(request.sent),
            ended: request.ended.map(since),
            queued: Duration::from_micros(request.waited.queued_micros.into()),
            device: Duration::from_micros(request.waited.read_micros.into()),
            error: request.error.clone(),
        };
        MultigetTrace { total: since(self.inner.endpoint.now()), parts: self.requests.iter().map(part).collect() }
    }
}

/// Reads some keys from one server: a single one without the form of many.
async fn ask<T: Transport + 'static>(client: &KvClient<T>, keys: &[&[u8]], wanted: Wanted) -> Result<Answer, KvError> {
    match keys {
        [key] if wanted == Wanted::Item => {
            let (facts, value) = client.read(key).await?.unzip();
            Ok(Answer { values: vec![value], facts, ..Answer::default() })
        }
        [key] => {
            let (value, waited) = client.get_waited(key).await?;
            Ok(Answer { values: vec![value], facts: None, waited })
        }
        keys => {
            let (values, waited) = client.multi_get_waited(keys).await?;
            Ok(Answer { values, facts: None, waited })
        }
    }
}
