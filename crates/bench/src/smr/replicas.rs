//! Three replicas of a key-value machine, a process each, and a client that writes continuously and records which
//! writes were acknowledged.

use std::cell::{Cell, RefCell};
use std::fs::DirBuilder;
use std::net::UdpSocket;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use dunlin_lab::LabError;
use dunlin_lab::peer::Peer;
use dunlin_lab::report::{Line, Places, Plot};
use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_serve::Interrupt;
use dunlin_smr::kv::{Answer, Command, Condition, Query};
use dunlin_smr::wire::response::{Role, Status};
use dunlin_smr::{Client, ClientConfig, ClientError};

use crate::rpc::roles::Carrier;
use crate::smr::roles::KvReplica;
use crate::{BenchError, Lab};

/// Replicas.
const REPLICAS: u64 = 3;
/// Ports below the ephemeral range of the system: no other socket takes the port of a replica that is down for a
/// moment.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
/// Concurrent writers, each with one write in flight, and their pause between two writes.
const WRITERS: u64 = 16;
const PAUSE: Duration = Duration::from_millis(5);
/// Bytes of a value.
const VALUE_BYTES: usize = 64;
/// Permissions of the replicas' directory.
const DIRECTORY_MODE: u32 = 0o700;
/// How long the client waits for one replica before it tries another.
pub(crate) const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(50);
/// Time limit of all waiting.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval at which replicas are asked for their status.
const LOOK: Duration = Duration::from_millis(10);
/// The plotted time before and after a kill, and its intervals.
pub(crate) const BEFORE: Duration = Duration::from_millis(250);
pub(crate) const AFTER: Duration = Duration::from_millis(1500);
const INTERVAL: Duration = Duration::from_millis(20);
/// Acknowledgements after which an interrupted service counts as restored: more than can have been in flight before.
const RESTORED: usize = 4 * WRITERS as usize;

/// The placement of the processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "etcd"), allow(dead_code, reason = "some experiments are only in builds with a feature"))]
pub(crate) enum Placing {
    /// Wherever the system places them.
    Anywhere,
    /// All on the server core.
    ServerCore,
}

/// The replicas' processes.
pub(crate) struct Replicas {
    roles: Vec<KvReplica>,
    peers: Vec<Option<Peer<KvReplica>>>,
    /// Time limit of each.
    limit: Duration,
    placing: Placing,
    directory: PathBuf,
}

impl Replicas {
    /// Starts all replicas. Each has its own directory, which is removed at the end.
    pub fn start(lab: &Lab, election: Duration, limit: Duration) -> Result<Replicas, BenchError> {
        Self::start_in(lab, election, limit, (Carrier::Udp, Placing::Anywhere), &std::env::temp_dir())
    }

    /// The same over this carrier, on these cores, with directories in `parent`, which must exist.
    pub fn start_in(
        lab: &Lab,
        election: Duration,
        limit: Duration,
        (carrier, placing): (Carrier, Placing),
        parent: &Path,
    ) -> Result<Replicas, BenchError> {
        let directory = parent.join(format!("dunlin-replicas-{}", std::process::id()));
        // Not an existing one: replicas of another run would continue from their logs.
        let made = DirBuilder::new().mode(DIRECTORY_MODE).create(&directory);
        made.map_err(BenchError::io(format!("make {}", directory.display())))?;
        let members = match carrier {
            Carrier::Udp => free_addresses()?,
            // Names that no other process uses.
            Carrier::Shm => {
                let name = |id| (id, format!("shm:dunlin-replicas-{}-{id}", std::process::id()));
                (1..=REPLICAS).map(name).collect()
            }
        };
        let role =
            |id: u64| KvReplica { id, members: members.clone(), directory: directory.join(id.to_string()), election };
        let roles: Vec<KvReplica> = (1..=REPLICAS).map(role).collect();
        let mut replicas = Replicas { peers: roles.iter().map(|_| None).collect(), roles, limit, placing, directory };
        for id in 1..=REPLICAS {
            replicas.restart(lab, id)?;
        }
        for peer in replicas.peers.iter_mut().flatten() {
            peer.ready()?;
        }
        Ok(replicas)
    }

    /// Their addresses, as text.
    #[cfg(feature = "etcd")]
    pub fn addresses(&self) -> Vec<(u64, String)> {
        self.roles.first().map(|role| role.members.clone()).unwrap_or_default()
    }

    /// Their addresses.
    fn members(&self) -> Result<Vec<(u64, Addr)>, BenchError> {
        let members = self.roles.first().map(|role| role.members.as_slice()).unwrap_or_default();
        members.iter().map(|(id, address)| Ok((*id, address.parse()?))).collect()
    }

    /// Kills a replica; returns when it is dead.
    pub fn kill(&mut self, id: u64) -> Result<(), BenchError> {
        Ok(self.peers[id as usize - 1].take().map_or(Ok(()), Peer::kill)?)
    }

    /// Restarts a replica, without waiting for it.
    pub fn restart(&mut self, lab: &Lab, id: u64) -> Result<(), BenchError> {
        let at = id as usize - 1;
        let role = self.roles[at].clone();
        self.peers[at] = Some(match self.placing {
            Placing::Anywhere => lab.anywhere(role, self.limit)?,
            Placing::ServerCore => lab.server(role, self.limit)?,
        });
        Ok(())
    }

    /// Stops all replicas.
    pub fn stop(mut self) -> Result<(), BenchError> {
        self.peers.drain(..).flatten().try_for_each(Peer::stop)
    }
}

impl Drop for Replicas {
    fn drop(&mut self) {
        // Before the directory that they write to.
        self.peers.clear();
        // If this fails, the files stay in the temporary directory.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// UDP addresses that are free now.
fn free_addresses() -> Result<Vec<(u64, String)>, BenchError> {
    let begin = PORTS.start + (std::process::id() % PORTS.len() as u32) as u16;
    let ports = (begin..PORTS.end).chain(PORTS.start..begin);
    let free = ports.filter(|port| UdpSocket::bind(("127.0.0.1", *port)).is_ok());
    let addresses: Vec<(u64, String)> =
        (1..=REPLICAS).zip(free).map(|(id, port)| (id, format!("udp://127.0.0.1:{port}"))).collect();
    if addresses.len() < REPLICAS as usize {
        return Err(stuck("find ports for replicas", "none is free"));
    }
    Ok(addresses)
}

fn stuck(doing: &str, why: impl ToString) -> BenchError {
    BenchError::OtherSystem { system: "replicas", why: format!("{doing}: {}", why.to_string()) }
}

/// The acknowledgements of the writers.
#[derive(Default)]
struct Told {
    /// When each acknowledgement arrived, by the clock of the endpoint.
    times: RefCell<Vec<u64>>,
    /// By writer: how many writes ended, and which of them in doubt.
    ended: RefCell<Vec<u64>>,
    in_doubt: RefCell<Vec<(u64, u64)>>,
    writing: Cell<u64>,
    is_over: Cell<bool>,
    /// Why a writer gave up, if one did.
    failure: RefCell<Option<String>>,
}

/// Writers in this process. Each writes its own keys, each key once.
pub(crate) struct Writers {
    endpoint: Rc<Endpoint<AnyTransport>>,
    client: Rc<Client<AnyTransport>>,
    members: Vec<(u64, Addr)>,
    told: Rc<Told>,
    interrupt: Interrupt,
}

/// An interruption of service.
#[derive(Debug, Clone)]
pub(crate) struct Gap {
    /// The longest time between two acknowledgements around a kill.
    pub length: Duration,
    /// When the kill happened, by the clock of the endpoint.
    pub at: u64,
}

impl Writers {
    /// Starts writing, and returns when all writers were served.
    pub fn start(replicas: &Replicas, interrupt: &Interrupt) -> Result<Writers, BenchError> {
        let members = replicas.members()?;
        let local = members.first().map(|(_, addr)| addr).ok_or_else(|| stuck("begin to write", "there are none"))?;
        let endpoint = Rc::new(Endpoint::new(AnyTransport::for_peer(local)?, EndpointConfig::default())?);
        let config = ClientConfig { timeout: PATIENCE, attempt_timeout: ATTEMPT_TIMEOUT, ..ClientConfig::default() };
        let client = Rc::new(Client::new(&endpoint, members.iter().cloned(), config));
        let told = Rc::new(Told::default());
        told.ended.borrow_mut().resize(WRITERS as usize, 0);
        told.writing.set(WRITERS);
        for writer in 0..WRITERS {
            endpoint.spawn(write(client.clone(), told.clone(), writer));
        }
        let writers = Writers { endpoint, client, members, told, interrupt: interrupt.clone() };
        writers.until("serve at all", || writers.told.ended.borrow().iter().all(|ended| *ended > 0))?;
        Ok(writers)
    }

    /// Writes acknowledged so far.
    pub fn acknowledged(&self) -> usize {
        self.told.times.borrow().len()
    }

    /// Continues writing.
    pub fn go_on(&self, time: Duration) -> Result<(), BenchError> {
        let end = Instant::now() + time;
        self.until("go on", || Instant::now() >= end)
    }

    /// Continues writing until `is_so` holds.
    fn until(&self, doing: &str, mut is_so: impl FnMut() -> bool) -> Result<(), BenchError> {
        let end = Instant::now() + PATIENCE;
        let stops = || self.interrupt.is_set() || Instant::now() >= end || self.told.failure.borrow().is_some();
        let mut is_done = false;
        self.endpoint.run_until(|| {
            is_done = is_so();
            is_done || stops()
        });
        match self.told.failure.take() {
            Some(why) => Err(stuck(doing, why)),
            None if self.interrupt.is_set() => Err(LabError::Interrupted.into()),
            None if is_done => Ok(()),
            None => Err(stuck(doing, format!("not within {PATIENCE:?}"))),
        }
    }

    /// The status of a replica, if it answers.
    fn status(&self, id: u64) -> Option<Status> {
        self.endpoint.block_on(self.client.status(id)).ok()
    }

    /// Asks the replicas until `ask` returns a value.
    fn ask<R>(&self, doing: &str, mut ask: impl FnMut() -> Option<R>) -> Result<R, BenchError> {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(found) = ask() {
                return Ok(found);
            }
            self.go_on(LOOK)?;
        }
        Err(stuck(doing, format!("not within {PATIENCE:?}")))
    }

    /// The status of the leader.
    fn leader_status(&self) -> Option<Status> {
        let all = self.members.iter().filter_map(|(id, _)| self.status(*id));
        all.filter(|status| status.role == Role::Leader).max_by_key(|status| status.term)
    }

    /// The leader.
    pub fn leader(&self) -> Result<u64, BenchError> {
        self.ask("find who leads", || self.leader_status()).map(|status| status.id)
    }

    /// Continues writing until a restarted replica has caught up.
    pub fn until_caught_up(&self, id: u64) -> Result<(), BenchError> {
        let goal = self.ask("find who leads", || self.leader_status())?.committed;
        self.ask("catch up", || self.status(id).filter(|status| status.applied >= goal)).map(drop)
    }

    /// Kills a replica with `kill`, and continues until writes are served again.
    pub fn interrupted_by(&self, kill: impl FnOnce() -> Result<(), BenchError>) -> Result<Gap, BenchError> {
        let at = self.endpoint.now();
        let before = self.acknowledged();
        kill()?;
        self.until("serve after a kill", || self.acknowledged() >= before + RESTORED)?;
        let times = self.told.times.borrow();
        let around = &times[before.saturating_sub(1)..];
        let length = around.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
        Ok(Gap { length: Duration::from_nanos(length), at })
    }

    /// Acknowledged writes per second around a kill.
    pub fn line(&self, name: &str, gap: &Gap) -> Line {
        let (before, after, width) = (BEFORE.as_nanos() as u64, AFTER.as_nanos() as u64, INTERVAL.as_nanos() as u64);
        let from = gap.at.saturating_sub(before);
        let mut counts = vec![0_u32; ((before + after) / width) as usize];
        for time in self.told.times.borrow().iter().filter(|time| **time >= from) {
            if let Some(count) = counts.get_mut(((time - from) / width) as usize) {
                *count += 1;
            }
        }
        let point =
            |(at, count): (usize, u32)| ((at as u64 * width) as f64 / 1e6, f64::from(count) / INTERVAL.as_secs_f64());
        let points = counts.into_iter().enumerate().map(point).collect();
        Line { name: format!("{name}, {} ms without service", gap.length.as_millis()), points }
    }

    /// Stops writing, reads back all acknowledged writes, and returns how many are missing or wrong.
    pub fn stop_and_count_lost(&self) -> Result<u64, BenchError> {
        self.told.is_over.set(true);
        self.until("end the last writes", || self.told.writing.get() == 0)?;
        let (reading, lost) = (Rc::new(Cell::new(WRITERS)), Rc::new(Cell::new(0)));
        for writer in 0..WRITERS {
            let (client, told, reading, lost) = (self.client.clone(), self.told.clone(), reading.clone(), lost.clone());
            let ended = told.ended.borrow()[writer as usize];
            self.endpoint.spawn(async move {
                for number in 0..ended {
                    match read(&client, writer, number).await {
                        Ok(Found::AsWritten) => {}
                        Ok(Found::Lost) if told.in_doubt.borrow().contains(&(writer, number)) => {}
                        Ok(Found::Lost) => lost.set(lost.get() + 1),
                        Err(error) => {
                            *told.failure.borrow_mut() = Some(error.to_string());
                            break;
                        }
                    }
                }
                reading.set(reading.get() - 1);
            });
        }
        let mut left = u64::MAX;
        while left > 0 {
            // With a new time limit for each: there may be much to read.
            let end = Instant::now() + PATIENCE / 2;
            self.until("read back", || reading.get() == 0 || Instant::now() >= end)?;
            left = reading.get();
        }
        Ok(lost.get())
    }
}

/// Writes around kills, over time.
pub(crate) fn plot(lines: Vec<Line>) -> Plot {
    Plot {
        title: format!("Acknowledged writes around a kill of the leader, {} ms from the left", BEFORE.as_millis()),
        unit: "writes/s",
        lines,
        places: Places::PageAndTerminal,
    }
}

fn key(writer: u64, number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&writer.to_le_bytes());
    key[8..].copy_from_slice(&number.to_le_bytes());
    key
}

fn value(writer: u64, number: u64) -> [u8; VALUE_BYTES] {
    std::array::from_fn(|at| (writer.wrapping_mul(31) ^ number.rotate_left(at as u32)) as u8)
}

/// Writes until the end.
async fn write(client: Rc<Client<AnyTransport>>, told: Rc<Told>, writer: u64) {
    let mut number = 0;
    while !told.is_over.get() {
        let (key, value) = (key(writer, number), value(writer, number));
        let put = Command::Put { key: &key, value: &value, condition: Condition::Absent }.encode();
        match client.execute(&put).await {
            Ok(reply) if matches!(Answer::parse(&reply), Ok(Answer::Done { .. })) => {
                told.times.borrow_mut().push(client.timers().now());
            }
            Ok(reply) => {
                *told.failure.borrow_mut() = Some(format!("a write was answered with {:?}", Answer::parse(&reply)));
                break;
            }
            Err(error) if error.may_have_run() => told.in_doubt.borrow_mut().push((writer, number)),
            Err(error) => {
                *told.failure.borrow_mut() = Some(error.to_string());
                break;
            }
        }
        number += 1;
        told.ended.borrow_mut()[writer as usize] = number;
        client.timers().sleep(PAUSE).await;
    }
    told.writing.set(told.writing.get() - 1);
}

enum Found {
    AsWritten,
    Lost,
}

async fn read(client: &Client<AnyTransport>, writer: u64, number: u64) -> Result<Found, ClientError> {
    let key = key(writer, number);
    let reply = client.query(Query { key: &key }.encode()).await?;
    let is_there =
        matches!(Answer::parse(&reply), Ok(Answer::Value { value: found, .. }) if found == value(writer, number));
    Ok(if is_there { Found::AsWritten } else { Found::Lost })
}
