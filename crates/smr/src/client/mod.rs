//! The client: finds the leader, has commands executed once each, and reads what is there now.

mod attempt;
mod error;
mod lines;
mod meeting;
mod window;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::{Addr, Transport};
use dunlin_rpc::{Endpoint, MsgBuf, Timers};

pub use error::ClientError;
pub use meeting::Stranger;

use self::attempt::Answered;
use self::lines::{Sharing, Switchboard};
use self::window::Window;
use crate::backup::GroupState;
use crate::cluster_id::ClusterId;
use crate::node::backup::{PIECE_HEADER_BYTES, REPLACED};
use crate::wire::command::{Command, Kind};
use crate::wire::request::{Change, Request};
use crate::wire::response::{RESPONSE_BYTES, Response, Status};

/// Which replica answers questions of a client. All answers are as of now: who follows asks its leader first how much is
/// committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadFrom {
    /// The leader.
    #[default]
    Leader,
    /// All replicas that the client knows, in turn.
    Any,
    /// This one, and no other.
    Replica(u64),
}

/// Settings of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientConfig {
    /// The number of the cluster, if it is known before: nothing is asked of any other. Without it the client learns it at first contact: the number of
    /// the cluster to which a majority of the replicas belongs that it was told of. Default `None`.
    pub cluster: Option<ClusterId>,
    /// The group that is asked, of those that the replicas have. Default 0.
    pub group: u16,
    /// Which replica answers questions. Default [`ReadFrom::Leader`].
    pub read_from: ReadFrom,
    /// How long an operation may take, all attempts together. Default 10 s.
    pub timeout: Duration,
    /// How long one replica may take to answer before another is asked. Default 1 s.
    pub attempt_timeout: Duration,
    /// How long is waited when a replica is busy, or nobody leads, before the next is asked. Default 5 ms.
    pub pause: Duration,
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
        }
    }
}

/// Times that a copy is begun, since a later snapshot takes the place of the one that is read.
const BACKUP_TRIES: u32 = 5;

/// The reply of the state machine: bytes.
#[derive(Debug)]
pub struct Reply(MsgBuf);

impl Deref for Reply {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0[RESPONSE_BYTES..]
    }
}

/// A client of a cluster. Its operations may run side by side; commands that do may be executed in any order. [`crate::COMMANDS_PER_SESSION_MAX`] commands are
/// in progress at once, others wait for them: a program that wants more at a time takes another client beside it. Dropping the future of an operation gives
/// it up: a command may still be executed then.
pub struct Client<T: Transport> {
    endpoint: Rc<Endpoint<T>>,
    config: ClientConfig,
    members: RefCell<BTreeMap<u64, Addr>>,
    /// The members that it was made with: of a majority of them it must be known of which cluster they are. One that it learned of may not have been added yet.
    listed: Box<[(u64, Addr)]>,
    /// For what waits for disks, as commands do.
    command_lines: Switchboard,
    /// For reads, which may have long answers: a command holds a credit of its session until it is executed, so on one
    /// session with commands a long answer would get a packet through whenever one of them ends.
    read_lines: Switchboard,
    /// For questions that wait until there is an answer.
    waiting_lines: Switchboard,
    /// Who is asked next: the leader, as far as is known.
    target: Cell<u64>,
    /// Who was asked a question last, of all.
    reader: Cell<u64>,
    window: Window,
    is_opening: Cell<bool>,
    cluster: Cell<Option<ClusterId>>,
    is_meeting: Cell<bool>,
    strangers: RefCell<Vec<Stranger>>,
}

impl<T: Transport> Client<T> {
    /// A client that knows these members, one at least. Nothing is sent yet. One of them that can be reached is enough if more than half of them are members of its
    /// cluster at these addresses; with [`ClientConfig::cluster`] any one of that cluster is. It learns of other members when they lead.
    ///
    /// # Panics
    /// If there are none.
    pub fn new(
        endpoint: &Rc<Endpoint<T>>,
        members: impl IntoIterator<Item = (u64, Addr)>,
        config: ClientConfig,
    ) -> Client<T> {
        let members: BTreeMap<u64, Addr> = members.into_iter().collect();
        let first = *members.keys().next().expect("a client is told of one member at least");
        Client {
            endpoint: endpoint.clone(),
            config,
            listed: members.iter().map(|(id, addr)| (*id, addr.clone())).collect(),
            members: RefCell::new(members),
            command_lines: Switchboard::default(),
            read_lines: Switchboard::default(),
            waiting_lines: Switchboard::new(Sharing::Alone),
            target: Cell::new(first),
            reader: Cell::new(0),
            window: Window::default(),
            is_opening: Cell::new(false),
            cluster: Cell::new(config.cluster),
            is_meeting: Cell::new(false),
            strangers: RefCell::default(),
        }
    }

    /// A client of another group of the same replicas, which shares the RPC sessions of this one and knows what it has learned.
    pub fn of_group(&self, group: u16) -> Client<T> {
        Client {
            endpoint: self.endpoint.clone(),
            config: ClientConfig { group, ..self.config },
            listed: self.listed.clone(),
            members: self.members.clone(),
            command_lines: self.command_lines.clone(),
            read_lines: self.read_lines.clone(),
            waiting_lines: self.waiting_lines.clone(),
            target: self.target.clone(),
            reader: self.reader.clone(),
            window: Window::default(),
            is_opening: Cell::new(false),
            cluster: self.cluster.clone(),
            is_meeting: Cell::new(false),
            strangers: self.strangers.clone(),
        }
    }

    /// A client of the same group that knows what this one has learned, and has RPC sessions of its own: what it asks does not wait behind long answers to this one.
    pub fn apart(&self) -> Client<T> {
        let (command_lines, read_lines) = (Switchboard::default(), Switchboard::default());
        Client { command_lines, read_lines, ..self.of_group(self.config.group) }
    }

    /// Has a command executed once, and gives its reply.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::may_have_run`] says whether it may have been executed, or may be yet.
    pub async fn execute(&self, command: &[u8]) -> Result<Reply, ClientError> {
        let deadline = self.deadline();
        loop {
            let session = self.open(deadline).await?;
            let begun = self.within(self.time_left(deadline), self.window.begin(session)).await;
            let Some(waiting) = begun.ok_or(ClientError::TimedOut { may_have_run: false })? else { continue };
            let (sequence, waits_from) = (waiting.sequence, self.window.waits_from());
            let request = Command { kind: Kind::Apply, time: 0, session, sequence, waits_from, body: command };
            match self.ask(&Request::Command(request), deadline).await? {
                Answered { reply: Some(reply), .. } => return Ok(Reply(reply)),
                // It was the first to be asked: so it was not executed, and may be in another session.
                Answered { reply: None, was_in_doubt: false } => self.window.leave(session),
                Answered { reply: None, was_in_doubt: true } => {
                    self.window.leave(session);
                    return Err(ClientError::SessionLost);
                }
            }
        }
    }

    /// Asks a question of the state machine: the answer is as of some time between now and when it comes.
    ///
    /// # Errors
    /// [`ClientError`]; it leaves no trace, so nothing is ever in doubt.
    pub async fn query(&self, query: &[u8]) -> Result<Reply, ClientError> {
        let request = match self.config.read_from {
            ReadFrom::Leader => Request::Read(query),
            ReadFrom::Any | ReadFrom::Replica(_) => Request::ReadHere(query),
        };
        self.reply_to(&request).await.map_err(ClientError::without_doubt)
    }

    /// Asks a question that the state machine may keep until there is an answer ([`crate::StateMachine::ask`]), for any time. `None` if the replica that is thought
    /// to lead did not take it, leads no longer, or was lost: a [query](Client::query) then finds who leads.
    ///
    /// # Errors
    /// [`ClientError`], if no time can mend it, or the cluster is not known in the time of an operation.
    pub async fn wait_for(&self, query: &[u8]) -> Result<Option<Reply>, ClientError> {
        let waited = self.wait_at_leader(&Request::Read(query), self.deadline()).await;
        Ok(waited.map_err(ClientError::without_doubt)?.map(Reply))
    }

    /// Changes who belongs to the cluster. It returns when the change counts; one that was in doubt is asked for again, and may then be refused because it was
    /// made.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the reason, and all others.
    pub async fn change(&self, change: Change) -> Result<(), ClientError> {
        self.reply_to(&Request::Change(change)).await.map(|_| ())
    }

    /// Asks the leader to make another replica leader. It has begun when this returns.
    ///
    /// # Errors
    /// As [`Client::change`].
    pub async fn transfer(&self, to: u64) -> Result<(), ClientError> {
        self.reply_to(&Request::Transfer { to }).await.map(|_| ())
    }

    /// How a replica is. It need not be of a cluster yet.
    ///
    /// # Errors
    /// [`ClientError::Unknown`] for one that is not known here; [`ClientError::OtherCluster`] if it is of another cluster than this client asks, once that is known;
    /// others.
    pub async fn status(&self, id: u64) -> Result<Status, ClientError> {
        self.status_of(id, self.config.group).await
    }

    /// How a replica of a group is.
    async fn status_of(&self, id: u64, group: u16) -> Result<Status, ClientError> {
        let reply = self.ask_one((id, group), &Request::Status, self.deadline()).await?;
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
            _ => Ok(status),
        }
    }

    /// How many groups the replicas have, numbered from 0.
    ///
    /// # Errors
    /// [`ClientError`]; it leaves no trace, so nothing is ever in doubt.
    pub async fn groups(&self) -> Result<u16, ClientError> {
        let deadline = self.deadline();
        self.meet(deadline).await.map_err(ClientError::without_doubt)?;
        loop {
            let (members, mut strangers) = (self.members(), 0);
            for (id, _) in &members {
                match self.status_of(*id, 0).await {
                    Ok(status) => return Ok(status.groups.max(1)),
                    Err(error @ ClientError::OtherCluster { .. }) => {
                        strangers += 1;
                        if strangers == members.len() {
                            return Err(error);
                        }
                    }
                    Err(_) => {}
                }
            }
            self.pause(deadline, false).await?;
        }
    }

    /// This client, which has its questions answered by such replicas.
    pub fn reading_from(mut self, read_from: ReadFrom) -> Client<T> {
        self.config.read_from = read_from;
        self
    }

    /// Copies the state of the group: with all that was acknowledged before, as of one instant. The leader takes a snapshot
    /// for it if it has none of so late, and each piece of that may take the time of an operation.
    ///
    /// # Errors
    /// [`ClientError`]; it leaves no trace, so nothing is ever in doubt.
    pub async fn backup(&self) -> Result<GroupState, ClientError> {
        let reply = self.reply_to(&Request::Index).await.map_err(ClientError::without_doubt)?;
        let least = reply[..].try_into().map(u64::from_le_bytes).map_err(|_| ClientError::Protocol)?;
        for _ in 1..BACKUP_TRIES {
            match self.copy_snapshot(least).await {
                Err(ClientError::Refused(why)) if why == REPLACED => {}
                copied => return copied,
            }
        }
        self.copy_snapshot(least).await
    }

    /// Copies a snapshot that has an entry at least, piece by piece, of whoever leads now: replicas write the same state in
    /// different orders.
    async fn copy_snapshot(&self, least: u64) -> Result<GroupState, ClientError> {
        let (from, mut data) = (self.target.get(), Vec::new());
        let mut index = 0;
        loop {
            let request = Request::Piece { least, index, offset: data.len() as u64 };
            let piece = self.ask_for_piece(from, &request).await?;
            let (header, bytes) = piece.split_at_checked(PIECE_HEADER_BYTES).ok_or(ClientError::Protocol)?;
            let [last, term, total] =
                [0, 8, 16].map(|at| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|byte| header[at + byte])));
            index = last;
            data.extend_from_slice(bytes);
            if data.len() as u64 == total {
                return Ok(GroupState { index, term, snapshot: data.into() });
            }
            if bytes.is_empty() || data.len() as u64 > total {
                return Err(ClientError::Protocol);
            }
        }
    }

    /// One piece, as soon as there is a snapshot.
    async fn ask_for_piece(&self, from: u64, request: &Request<'_>) -> Result<Reply, ClientError> {
        let deadline = self.deadline();
        loop {
            let reply = self.ask_one((from, self.config.group), request, deadline).await?;
            match Response::parse(&reply) {
                Ok(Response::Ok(_)) => return Ok(Reply(reply)),
                Ok(Response::Busy) => self.pause(deadline, false).await?,
                Ok(Response::Refused(why)) => return Err(ClientError::Refused(why)),
                Ok(Response::OtherCluster { ours }) => return Err(ClientError::OtherCluster { found: ours }),
                _ => return Err(ClientError::Protocol),
            }
        }
    }

    /// Says that this client is still there, so that its session stays while it executes nothing.
    ///
    /// # Errors
    /// [`ClientError`]; a session that is over is no error.
    pub async fn keep_alive(&self) -> Result<(), ClientError> {
        let (session, waits_from) = (self.window.session(), self.window.waits_from());
        if session == 0 {
            return Ok(());
        }
        let command = Command { kind: Kind::KeepAlive, time: 0, session, sequence: 0, waits_from, body: &[] };
        if self.ask(&Request::Command(command), self.deadline()).await?.reply.is_none() {
            self.window.leave(session);
        }
        Ok(())
    }

    /// Ends the session, which frees what the cluster keeps of it. The next command opens another.
    ///
    /// # Errors
    /// [`ClientError`]; then it ends when it was not used for long.
    pub async fn close(&self) -> Result<(), ClientError> {
        let session = self.window.session();
        if session == 0 {
            return Ok(());
        }
        self.window.leave(session);
        let command = Command { kind: Kind::CloseSession, time: 0, session, sequence: 0, waits_from: 0, body: &[] };
        self.ask(&Request::Command(command), self.deadline()).await.map(|_| ())
    }

    /// Its settings.
    pub fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// Sleeping, on its endpoint.
    pub fn timers(&self) -> Timers {
        self.endpoint.timers()
    }

    /// The members that it knows.
    pub fn members(&self) -> Vec<(u64, Addr)> {
        self.members.borrow().iter().map(|(id, addr)| (*id, addr.clone())).collect()
    }

    /// Tells it of a member, or of another address of one.
    pub fn learn(&self, id: u64, addr: Addr) {
        if self.members.borrow_mut().insert(id, addr.clone()) != Some(addr) {
            self.forget_lines(id);
        }
    }

    /// Takes the number of the cluster and its members from the status of one of its replicas that the caller trusts, such as one beside it in this process. What the
    /// client was made with counts no more: members may have come and gone since.
    pub fn follow(&self, status: &Status) {
        let members = status.addresses.iter().filter_map(|(id, address)| Some((*id, address.parse().ok()?)));
        let members: BTreeMap<u64, Addr> = members.collect();
        let (Some(cluster), true) = (status.cluster, members.contains_key(&status.id)) else { return };
        self.cluster.set(Some(cluster));
        self.target.set(status.leader.filter(|leader| members.contains_key(leader)).unwrap_or(status.id));
        let before = self.members.replace(members);
        let now = self.members.borrow();
        before.iter().filter(|(id, addr)| now.get(id) != Some(addr)).for_each(|(id, _)| self.forget_lines(*id));
    }

    /// Ends the lines to a replica.
    fn forget_lines(&self, id: u64) {
        [&self.command_lines, &self.read_lines, &self.waiting_lines].into_iter().for_each(|lines| lines.forget(id));
    }

    async fn reply_to(&self, request: &Request<'_>) -> Result<Reply, ClientError> {
        let answered = self.ask(request, self.deadline()).await?;
        answered.reply.map(Reply).ok_or(ClientError::Protocol)
    }

    fn deadline(&self) -> u64 {
        self.endpoint.now().saturating_add(self.config.timeout.as_nanos().try_into().unwrap_or(u64::MAX))
    }

    /// The session; opens one, or waits for whoever does.
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
        // In doubt, a session may have been opened, which nobody will use. The command was not sent.
        let answered = self.ask(&Request::Command(command), deadline).await.map_err(ClientError::without_doubt)?;
        let reply = answered.reply.map(Reply).ok_or(ClientError::Protocol)?;
        let session = reply[..].try_into().map(u64::from_le_bytes).map_err(|_| ClientError::Protocol)?;
        self.window.enter(session);
        Ok(session)
    }
}

/// Lets others open a session, whatever became of this attempt.
struct Opening<'a>(&'a Cell<bool>);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}
