//! The client: finds the leader, has commands executed exactly once, and reads the current state.

mod attempt;
mod error;
mod lines;
mod meeting;
mod members;
mod queue;
mod soon;
mod window;

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::clock::nanos;
use dunlin_net::{Addr, Transport};
use dunlin_rpc::{Endpoint, MsgBuf, Timers};

pub use error::ClientError;
pub use meeting::Stranger;

use self::attempt::{Answered, Unanswered};
use self::lines::{Sharing, Switchboard};
use self::members::Members;
use self::window::Window;
use crate::backup::GroupState;
use crate::cluster_id::ClusterId;
use crate::node::backup::REPLACED;
use crate::wire::command::{Command, Kind};
use crate::wire::piece::StatePiece;
use crate::wire::request::{Change, Request};
use crate::wire::response::{RESPONSE_BYTES, Response, Status};

/// Which replica answers a client's queries. All answers are up to date: a follower first asks its leader how much is
/// committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadFrom {
    /// The leader.
    #[default]
    Leader,
    /// All replicas that the client knows, in turn.
    Any,
    /// Only this one.
    Replica(u64),
}

/// Settings of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientConfig {
    /// The number of the cluster, if it is known: the client uses no other cluster. Otherwise the client learns it at
    /// first contact, as the number that a majority of the listed replicas agrees on. Default `None`.
    pub cluster: Option<ClusterId>,
    /// The group to use, of those that the replicas have. Default 0.
    pub group: u16,
    /// Which replica answers queries. Default [`ReadFrom::Leader`].
    pub read_from: ReadFrom,
    /// How long an operation may take, all attempts together. Default 10 s.
    pub timeout: Duration,
    /// How long one replica may take to answer before another is asked. Within an operation, the next attempt at a
    /// replica that was late may take twice as long, so that answers of slow replicas arrive. Default 1 s.
    pub attempt_timeout: Duration,
    /// How long the client waits before it asks the next replica, when one is busy or there is no leader. Default 5 ms.
    pub pause: Duration,
    /// Bytes of the largest snapshot that [`Client::backup`] takes into memory. Default 4 GiB, which is also the largest
    /// that replicas accept by default ([`crate::NodeConfig::snapshot_bytes_max`]).
    pub snapshot_bytes_max: u64,
}

impl Default for ClientConfig {
    fn default() -> Self {
        ClientConfig {
            cluster: None,
            group: 0,
            read_from: ReadFrom::Leader,
            timeout: Duration::from_secs(10),
            attempt_timeout: Duration::from_secs(1),
            pause: Duration::from_millis(5),
            snapshot_bytes_max: 4 << 30,
        }
    }
}

/// Attempts to make a copy: the replica that is being copied from may fail, and a later snapshot may replace the one
/// being read.
const BACKUP_TRIES: u32 = 5;
/// Why a copy cannot be made in time.
const NO_SNAPSHOT: &str = "the leader has no snapshot yet that has all that was acknowledged, and takes one for a copy once in a minute only: \
     allow more time";

/// The reply of the state machine, as bytes.
#[derive(Debug)]
pub struct Reply(MsgBuf);

impl Deref for Reply {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0[RESPONSE_BYTES..]
    }
}

/// The result of [`Client::wait_for`].
#[derive(Debug)]
pub enum Waited {
    /// The answer.
    Answered(Reply),
    /// The replica has not answered in time; it may have kept the query. Ask again at once.
    NotYet,
    /// The presumed leader did not take the query, no longer leads, or was lost. A [query](Client::query) to the leader
    /// finds the leader. Pause before asking again.
    Refused,
}

/// A client of a cluster. Its operations may run concurrently; concurrent commands may be executed in any order. At
/// most [`crate::COMMANDS_PER_SESSION_MAX`] commands are in progress at once, others wait for them; a program that
/// needs more uses a second client. Dropping the future of an operation abandons it: the cluster may still execute the
/// command.
pub struct Client<T: Transport> {
    endpoint: Rc<Endpoint<T>>,
    config: ClientConfig,
    members: Rc<RefCell<Members>>,
    /// The members given at creation: first contact needs to know the cluster of a majority of these. A member learned
    /// later may not have been added yet.
    listed: Box<[(u64, Addr)]>,
    /// It was told of later members than those, by one of them.
    follows: Rc<Cell<bool>>,
    /// For what waits for disks, as commands do.
    command_lines: Switchboard,
    /// For reads, which may have long answers. A command holds a credit of its session until it is executed. So on a
    /// session shared with commands, a long answer would advance only one packet whenever a command ends.
    read_lines: Switchboard,
    /// For queries that wait until there is an answer.
    waiting_lines: Switchboard,
    /// The replica to ask next: the leader, as far as is known.
    target: Cell<u64>,
    /// The replica that was last asked a query, with [`ReadFrom::Any`].
    reader: Cell<u64>,
    window: Window,
    is_opening: Cell<bool>,
    /// The replica that an attempt waits for, and since when.
    awaited: Cell<Option<(u64, u64)>>,
    /// A client that has sent the same request: it is not sent a second time to where that one waits.
    elsewhere: Option<Rc<Client<T>>>,
    cluster: Rc<Cell<Option<ClusterId>>>,
    is_meeting: Cell<bool>,
    strangers: Rc<RefCell<Vec<Stranger>>>,
}

impl<T: Transport> Client<T> {
    /// Returns a client that knows these members, at least one. It sends nothing yet. One reachable member is enough if
    /// more than half of the list are members of its cluster at these addresses; with [`ClientConfig::cluster`], any
    /// one member of that cluster is enough. The client learns of other members when they lead.
    ///
    /// # Panics
    /// If there are no members.
    pub fn new(
        endpoint: &Rc<Endpoint<T>>,
        members: impl IntoIterator<Item = (u64, Addr)>,
        config: ClientConfig,
    ) -> Client<T> {
        let members = Members::given(members);
        let (first, _) = members.iter().next().expect("a client is told of one member at least");
        Client {
            endpoint: endpoint.clone(),
            config,
            listed: members.iter().map(|(id, addr)| (id, addr.clone())).collect(),
            follows: Rc::default(),
            members: Rc::new(RefCell::new(members)),
            command_lines: Switchboard::default(),
            read_lines: Switchboard::default(),
            waiting_lines: Switchboard::new(Sharing::Alone),
            target: Cell::new(first),
            reader: Cell::new(0),
            window: Window::default(),
            is_opening: Cell::new(false),
            awaited: Cell::new(None),
            elsewhere: None,
            cluster: Rc::new(Cell::new(config.cluster)),
            is_meeting: Cell::new(false),
            strangers: Rc::default(),
        }
    }

    /// Returns a client of another group of the same replicas, which shares this one's RPC sessions and starts with
    /// what this one has learned.
    pub fn of_group(&self, group: u16) -> Client<T> {
        Client {
            endpoint: self.endpoint.clone(),
            config: ClientConfig { group, ..self.config },
            listed: self.listed.clone(),
            follows: Rc::new((*self.follows).clone()),
            members: Rc::new((*self.members).clone()),
            command_lines: self.command_lines.clone(),
            read_lines: self.read_lines.clone(),
            waiting_lines: self.waiting_lines.clone(),
            target: self.target.clone(),
            reader: self.reader.clone(),
            window: Window::default(),
            is_opening: Cell::new(false),
            awaited: Cell::new(None),
            elsewhere: None,
            cluster: Rc::new((*self.cluster).clone()),
            is_meeting: Cell::new(false),
            strangers: self.strangers.clone(),
        }
    }

    /// Returns a client of the same group that shares with this one what either learns of the cluster, and has its own
    /// RPC sessions: its requests do not wait behind long answers to this one.
    pub fn apart(&self) -> Client<T> {
        Client {
            command_lines: Switchboard::default(),
            read_lines: Switchboard::default(),
            members: self.members.clone(),
            follows: self.follows.clone(),
            cluster: self.cluster.clone(),
            ..self.of_group(self.config.group)
        }
    }

    /// Has a command executed exactly once, and returns its reply.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::may_have_run`] says whether the command may have been executed, or may be yet.
    pub async fn execute(&self, command: &[u8]) -> Result<Reply, ClientError> {
        let deadline = self.deadline();
        loop {
            let session = self.open(deadline).await?;
            let begun = self.within(self.time_left(deadline), self.window.begin(session)).await;
            let Some(waiting) = begun.ok_or(ClientError::TimedOut { may_have_run: false })? else { continue };
            let (sequence, waits_from) = (waiting.sequence, self.window.waits_from());
            let request = Command { kind: Kind::Apply, time: 0, session, sequence, waits_from, body: command };
            match self.ask(&Request::Command(request), self.config.attempt_timeout, deadline).await? {
                Answered { reply: Some(reply), .. } => return Ok(Reply(reply)),
                // This was the first attempt, so the command was not executed and may be sent in another session.
                Answered { reply: None, was_in_doubt: false } => self.window.leave(session),
                Answered { reply: None, was_in_doubt: true } => {
                    self.window.leave(session);
                    return Err(ClientError::SessionLost);
                }
            }
        }
    }

    /// Sends a query to the state machine. The answer reflects the state at some time between the call and its return.
    ///
    /// # Errors
    /// [`ClientError`]; a query has no side effects, so nothing is ever in doubt.
    pub async fn query(&self, query: &[u8]) -> Result<Reply, ClientError> {
        self.reply_to(&self.query_of(query)).await.map_err(ClientError::without_doubt)
    }

    fn query_of<'a>(&self, query: &'a [u8]) -> Request<'a> {
        match self.config.read_from {
            ReadFrom::Leader => Request::Read(query),
            ReadFrom::Any | ReadFrom::Replica(_) => Request::ReadHere(query),
        }
    }

    /// Sends a query that the state machine may keep until there is an answer ([`crate::StateMachine::ask`]). Returns
    /// without an answer after 10 seconds at the latest: the caller then asks again.
    ///
    /// # Errors
    /// [`ClientError`], if waiting cannot help, or the cluster is still unknown when the time of an operation is over.
    pub async fn wait_for(&self, query: &[u8]) -> Result<Waited, ClientError> {
        self.wait_at_leader(&Request::Read(query), self.deadline()).await.map_err(ClientError::without_doubt)
    }

    /// Changes the membership of the cluster. Returns when the change is in effect. A change that was in doubt is sent
    /// again, and may then be refused because it was already made.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the reason, and all others.
    pub async fn change(&self, change: Change) -> Result<(), ClientError> {
        self.reply_to(&Request::Change(change)).await.map(|_| ())
    }

    /// Asks the leader to transfer leadership to another replica. When this returns, the transfer has begun.
    ///
    /// # Errors
    /// As [`Client::change`].
    pub async fn transfer(&self, to: u64) -> Result<(), ClientError> {
        self.reply_to(&Request::Transfer { to }).await.map(|_| ())
    }

    /// Returns the status of a replica. It need not belong to a cluster yet.
    ///
    /// # Errors
    /// [`ClientError::Unknown`] if the client does not know the replica; [`ClientError::OtherCluster`] if it belongs to
    /// another cluster than this client's, once that is known; others.
    pub async fn status(&self, id: u64) -> Result<Status, ClientError> {
        let (replica, patience) = ((id, self.config.group), self.config.attempt_timeout);
        let status = self.status_of(replica, patience, self.deadline()).await?;
        status.map_err(|_| ClientError::TimedOut { may_have_run: false })
    }

    /// Returns the status of a replica of a group.
    async fn status_of(
        &self,
        (id, group): (u64, u16),
        patience: Duration,
        deadline: u64,
    ) -> Result<Result<Status, Unanswered>, ClientError> {
        let reply = match self.try_to_ask((id, group), &Request::Status, patience, deadline).await? {
            Ok(reply) => reply,
            Err(why) => return Ok(Err(why)),
        };
        let bytes = match Response::parse(&reply) {
            Ok(Response::Ok(bytes)) => bytes,
            Ok(Response::NoGroup { groups }) => return Err(ClientError::NoGroup { group, groups }),
            _ => return Err(ClientError::Protocol),
        };
        let status = Status::parse(bytes).map_err(|_| ClientError::Protocol)?;
        match status.cluster {
            Some(found) if self.cluster.get().is_some() && self.is_stranger(id, found) => {
                Err(ClientError::OtherCluster { found })
            }
            _ => Ok(Ok(status)),
        }
    }

    /// Returns the number of groups; they are numbered from 0.
    ///
    /// # Errors
    /// [`ClientError`]; this has no side effects, so nothing is ever in doubt.
    pub async fn groups(&self) -> Result<u16, ClientError> {
        let deadline = self.deadline();
        self.meet(deadline).await.map_err(ClientError::without_doubt)?;
        let mut patience = self.config.attempt_timeout;
        loop {
            let (members, mut strangers, mut are_late) = (self.members(), 0, false);
            for (id, _) in &members {
                match self.status_of((*id, 0), patience, deadline).await {
                    Ok(Ok(status)) => return Ok(status.groups.max(1)),
                    Ok(Err(why)) => are_late |= why == Unanswered::Late,
                    Err(error @ ClientError::OtherCluster { .. }) => {
                        strangers += 1;
                        if strangers == members.len() {
                            return Err(error);
                        }
                    }
                    Err(_) => {}
                }
            }
            if are_late {
                // They may all be that slow.
                patience = self.longer(patience, deadline);
            }
            self.pause(deadline, false).await?;
        }
    }

    /// Returns this client with another choice of replicas that answer its queries.
    pub fn reading_from(mut self, read_from: ReadFrom) -> Client<T> {
        self.config.read_from = read_from;
        self
    }

    /// Copies the state of the group as of one instant, with all writes that were acknowledged before the call. The
    /// leader takes a snapshot if its own is too old. Each piece may take the time of an operation.
    ///
    /// # Errors
    /// [`ClientError`]; this has no side effects, so nothing is ever in doubt.
    pub async fn backup(&self) -> Result<GroupState, ClientError> {
        let least = self.committed().await?;
        for _ in 0..BACKUP_TRIES {
            if let Some(state) = self.copy_snapshot(least).await? {
                return Ok(state);
            }
            // Finds the current leader, which is asked next.
            self.committed().await?;
        }
        Err(ClientError::Refused(format!(
            "{BACKUP_TRIES} copies were begun, and none could be ended: see how the replicas are"
        )))
    }

    /// Returns the commit index.
    async fn committed(&self) -> Result<u64, ClientError> {
        let reply = self.reply_to(&Request::Index).await.map_err(ClientError::without_doubt)?;
        reply[..].try_into().map(u64::from_le_bytes).map_err(|_| ClientError::Protocol)
    }

    /// Copies a snapshot that includes entry `least`, piece by piece, all from the current leader: replicas write the
    /// same state in different orders. `None` if the copy must start over.
    async fn copy_snapshot(&self, least: u64) -> Result<Option<GroupState>, ClientError> {
        let (from, mut data) = (self.target.get(), Vec::new());
        let mut index = 0;
        loop {
            let request = Request::Piece { least, index, offset: data.len() as u64 };
            let Some(piece) = self.ask_for_piece(from, &request).await? else { return Ok(None) };
            let piece = StatePiece::parse(&piece).map_err(|_| ClientError::Protocol)?;
            let StatePiece { term, total, bytes, .. } = piece;
            index = piece.index;
            if total > self.config.snapshot_bytes_max {
                return Err(ClientError::Refused(format!(
                    "replica {from} has a snapshot of {total} bytes, and this client takes {} at most: see \
                     snapshot_bytes_max of its configuration",
                    self.config.snapshot_bytes_max
                )));
            }
            data.extend_from_slice(bytes);
            if data.len() as u64 == total {
                return Ok(Some(GroupState { index, term, snapshot: data.into() }));
            }
            if bytes.is_empty() || data.len() as u64 > total {
                return Err(ClientError::Protocol);
            }
        }
    }

    /// Fetches one piece, as soon as there is a snapshot; `None` if the replica no longer has it, has not answered for
    /// half of the time of an operation, or another cluster's replica answers at its address.
    async fn ask_for_piece(&self, from: u64, request: &Request<'_>) -> Result<Option<Reply>, ClientError> {
        let deadline = self.deadline();
        let (mut silent_until, mut patience) = (self.half_time(), self.config.attempt_timeout);
        loop {
            let reply = match self.try_to_ask((from, self.config.group), request, patience, deadline).await? {
                Ok(reply) => reply,
                Err(_) if self.time_left(silent_until).is_zero() => return Ok(None),
                Err(why) => {
                    if why == Unanswered::Late {
                        patience = self.longer(patience, silent_until);
                    }
                    self.pause(deadline, false).await?;
                    continue;
                }
            };
            silent_until = self.half_time();
            match Response::parse(&reply) {
                Ok(Response::Ok(_)) => return Ok(Some(Reply(reply))),
                Ok(Response::Busy) => {
                    let paused = self.pause(deadline, false).await;
                    paused.map_err(|_| ClientError::Refused(NO_SNAPSHOT.into()))?;
                }
                Ok(Response::Failed) => return Ok(None),
                Ok(Response::Refused(why)) if why == REPLACED => return Ok(None),
                Ok(Response::Refused(why)) => return Err(ClientError::Refused(why)),
                Ok(Response::OtherCluster { ours }) => {
                    self.is_stranger(from, ours);
                    return Ok(None);
                }
                _ => return Err(ClientError::Protocol),
            }
        }
    }

    /// Tells the cluster that this client is still there, so that its session stays open while it executes nothing.
    ///
    /// # Errors
    /// [`ClientError`]; an expired session is no error.
    pub async fn keep_alive(&self) -> Result<(), ClientError> {
        let (session, waits_from) = (self.window.session(), self.window.waits_from());
        if session == 0 {
            return Ok(());
        }
        let command = Command { kind: Kind::KeepAlive, time: 0, session, sequence: 0, waits_from, body: &[] };
        if self.ask(&Request::Command(command), self.config.attempt_timeout, self.deadline()).await?.reply.is_none() {
            self.window.leave(session);
        }
        Ok(())
    }

    /// Ends the session, which frees the memory that the cluster keeps for it. The next command opens another.
    ///
    /// # Errors
    /// [`ClientError`]; the session then expires after its idle time.
    pub async fn close(&self) -> Result<(), ClientError> {
        let session = self.window.session();
        if session == 0 {
            return Ok(());
        }
        self.window.leave(session);
        let command = Command { kind: Kind::CloseSession, time: 0, session, sequence: 0, waits_from: 0, body: &[] };
        self.ask(&Request::Command(command), self.config.attempt_timeout, self.deadline()).await.map(|_| ())
    }

    /// Returns the client's settings.
    pub fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// Returns the timers of its endpoint.
    pub fn timers(&self) -> Timers {
        self.endpoint.timers()
    }

    /// Returns the members that it knows, in order of ids.
    pub fn members(&self) -> Vec<(u64, Addr)> {
        let mut members: Vec<_> = self.members.borrow().iter().map(|(id, addr)| (id, addr.clone())).collect();
        members.sort_unstable_by_key(|(id, _)| *id);
        members
    }

    /// Tells it of a member, or of another address of one. What was asked at the old one is still answered there. Of
    /// more than 64 members besides those given at creation, it forgets the one that it would ask last.
    pub fn learn(&self, id: u64, addr: Addr) {
        let before = self.members.borrow_mut().learn(id, addr.clone());
        if let Some(before) = before.filter(|before| *before != addr) {
            self.forget_lines(&before);
        }
    }

    /// Takes the cluster's number and members from the status of a replica that the caller trusts, such as one in the
    /// same process. The list given at creation no longer counts: members may have come and gone since.
    pub fn follow(&self, status: &Status) {
        let members = status.addresses.iter().filter_map(|(id, address)| Some((*id, address.parse().ok()?)));
        let members = Members::given(members);
        let (Some(cluster), Some(_)) = (status.cluster, members.get(status.id)) else { return };
        self.cluster.set(Some(cluster));
        self.follows.set(true);
        self.target.set(status.leader.filter(|leader| members.get(*leader).is_some()).unwrap_or(status.id));
        let before = self.members.replace(members);
        let now = self.members.borrow();
        before.iter().filter(|(id, addr)| now.get(*id) != Some(addr)).for_each(|(_, addr)| self.forget_lines(addr));
    }

    fn all_lines(&self) -> [&Switchboard; 3] {
        [&self.command_lines, &self.read_lines, &self.waiting_lines]
    }

    /// Gives up the lines to an address.
    fn forget_lines(&self, addr: &Addr) {
        self.all_lines().into_iter().for_each(|lines| lines.forget(addr));
    }

    /// Whether a replica is reached, over whichever line.
    fn reaches(&self, id: u64) -> bool {
        let members = self.members.borrow();
        members.get(id).is_some_and(|addr| self.all_lines().into_iter().any(|lines| lines.reaches(addr)))
    }

    async fn reply_to(&self, request: &Request<'_>) -> Result<Reply, ClientError> {
        let answered = self.ask(request, self.config.attempt_timeout, self.deadline()).await?;
        answered.reply.map(Reply).ok_or(ClientError::Protocol)
    }

    fn deadline(&self) -> u64 {
        self.after(self.config.timeout)
    }

    /// Returns the time at which half of an operation's time is over, if it begins now.
    fn half_time(&self) -> u64 {
        self.after(self.config.timeout / 2)
    }

    fn after(&self, time: Duration) -> u64 {
        self.endpoint.now().saturating_add(nanos(time))
    }

    /// Returns the session; opens one, or waits for the task that is opening it.
    async fn open(&self, deadline: u64) -> Result<u64, ClientError> {
        loop {
            let session = self.window.session();
            if session != 0 {
                return Ok(session);
            }
            if !self.is_opening.replace(true) {
                break;
            }
            self.pause(deadline, false).await?;
        }
        let _opening = Opening(&self.is_opening);
        let command = Command { kind: Kind::OpenSession, time: 0, session: 0, sequence: 0, waits_from: 0, body: &[] };
        // If this is in doubt, an unused session may have been opened. The command was not sent.
        let (request, patience) = (Request::Command(command), self.config.attempt_timeout);
        let answered = self.ask(&request, patience, deadline).await.map_err(ClientError::without_doubt)?;
        let reply = answered.reply.map(Reply).ok_or(ClientError::Protocol)?;
        let session = reply[..].try_into().map(u64::from_le_bytes).map_err(|_| ClientError::Protocol)?;
        self.window.enter(session);
        Ok(session)
    }
}

/// Lets other operations open a session, whatever the result of this attempt.
struct Opening<'a>(&'a Cell<bool>);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
