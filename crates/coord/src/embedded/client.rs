//! The client.

use std::time::Duration;

use dunlin_net::Transport;
use dunlin_net::random::Random;
use dunlin_rpc::Timers;
use dunlin_smr::{Client, ClientError, ReadFrom, Waited};

use crate::coordinator::{Coordinator, sleep_until};
use crate::either::until;
use crate::error::CoordError;
use crate::limits::Limits;
use crate::mutation::{Mutation, is_planted};
use crate::path::{check_path, check_root};
use crate::transaction::{TRANSACTION_BYTES_MAX, Transaction};
use crate::types::{
    Changes, Entry, Epochs, Heartbeat, Holder, Lease, Leases, Listing, MemberId, Members, Membership, Revision, Scope,
    View,
};
use crate::wire::{Answer, Command, Query, Wire};

/// Default interval at which a watcher polls while the leader has no room for it.
const WATCH_EVERY: Duration = Duration::from_millis(100);
/// Pauses between retries double, up to this many times the first.
const PAUSE_GROWTH_MAX: u32 = 32;
/// Nor are they longer than this part of the member's or lease's patience, because the silence may have begun with the
/// pause.
const TRIES_OF_PATIENCE: u32 = 8;

/// A client of a cluster manager whose replicas are [`dunlin_smr::Node`]s. A command is executed once, however often it
/// is sent.
pub struct Embedded<T: Transport> {
    client: Client<T>,
    /// For heartbeats and renewals, which must not wait behind long answers on the same session.
    urgent: Client<T>,
    timers: Timers,
    watch_every: Duration,
}

impl From<ClientError> for CoordError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::TimedOut { may_have_run } => CoordError::TimedOut { may_have_run },
            other => CoordError::Backend { why: other.to_string(), may_have_run: other.may_have_run() },
        }
    }
}

/// The error for an answer of the wrong kind.
pub(super) fn astray(answer: &Answer) -> CoordError {
    match answer {
        Answer::Refused { error } => error.clone(),
        _ => CoordError::Backend { why: "the answer is one to something else".into(), may_have_run: true },
    }
}

fn parse(reply: &[u8]) -> Result<Answer, CoordError> {
    match Answer::from_bytes(reply) {
        Ok(Answer::Refused { error }) => Err(error),
        Ok(answer) => Ok(answer),
        Err(error) => {
            Err(CoordError::Backend { why: format!("the answer is not understood: {error}"), may_have_run: true })
        }
    }
}

/// Has a command executed, and returns the answer.
pub(super) async fn execute<T: Transport>(client: &Client<T>, command: Command) -> Result<Answer, CoordError> {
    parse(&client.execute(&command.to_bytes()).await?)
}

/// Has a query answered.
pub(super) async fn query<T: Transport>(client: &Client<T>, query: Query) -> Result<Answer, CoordError> {
    parse(&client.query(&query.to_bytes()).await?)
}

/// Extracts the expected answer, or returns an error.
macro_rules! answer_of {
    ($answer:expr, $pattern:pat => $value:expr) => {
        match $answer {
            $pattern => Ok($value),
            other => Err(astray(&other)),
        }
    };
}

pub(super) use answer_of;

/// A random part of this time.
fn spread(time: Duration, random: &mut Random) -> Duration {
    Duration::from_nanos(random.below(time.as_nanos().clamp(1, u64::MAX.into()) as u64))
}

impl<T: Transport> Embedded<T> {
    /// Makes a client that sends through `client`. Its settings decide how long operations may take.
    pub fn new(client: Client<T>) -> Embedded<T> {
        // Only the leader knows which heartbeats were heard.
        let urgent = client.apart().reading_from(ReadFrom::Leader);
        Embedded { timers: client.timers(), urgent, client, watch_every: WATCH_EVERY }
    }

    /// Sets how often [`Coordinator::changes`] polls while the leader changes or has no room for another watcher.
    /// Events may be reported that late; otherwise they arrive within a round trip. 100 ms by default.
    pub fn watch_every(mut self, every: Duration) -> Embedded<T> {
        self.watch_every = every;
        self
    }

    /// The underlying client.
    pub fn client(&self) -> &Client<T> {
        &self.client
    }

    /// Asks until the leader hears it, within the time of one operation and the patience: after an election the
    /// leader's watchman must begin its reign first. All members wait for that at the same time, so they back off with
    /// jitter, seeded by `who`. `patience_ms` is how long the member or lease may be silent; 0 if unknown.
    async fn heard(&self, who: Revision, patience_ms: u64, asked: Query) -> Result<Answer, CoordError> {
        let mut random = Random::new(who ^ self.timers.now());
        let first = self.client.config().pause;
        let longest = match patience_ms {
            0 => PAUSE_GROWTH_MAX * first,
            patience => (PAUSE_GROWTH_MAX * first).min(Duration::from_millis(patience) / TRIES_OF_PATIENCE),
        };
        let in_time = match patience_ms {
            0 => self.client.config().timeout,
            patience => self.client.config().timeout.min(Duration::from_millis(patience)),
        };
        let asking = async {
            let mut pause = first.min(longest);
            loop {
                match self.answer_within(in_time, &asked).await? {
                    Answer::NotYet => self.timers.sleep(pause / 2 + spread(pause, &mut random)).await,
                    answer => return Ok(answer),
                }
                pause = (2 * pause).min(longest);
            }
        };
        let answered = until(asking, self.timers.sleep(in_time)).await;
        answered.unwrap_or(Err(CoordError::TimedOut { may_have_run: false }))
    }

    async fn answer_within(&self, time: Duration, asked: &Query) -> Result<Answer, CoordError> {
        parse(&self.urgent.query_within(&asked.to_bytes(), time).await?)
    }

    async fn done(&self, command: Command) -> Result<Revision, CoordError> {
        answer_of!(execute(&self.client, command).await?, Answer::Done { revision } => revision)
    }
}

impl<T: Transport> Coordinator for Embedded<T> {
    async fn join(&self, member: MemberId, about: &[u8]) -> Result<Membership, CoordError> {
        let (sent_at, command) = (self.now(), Command::Join { member, about: about.to_vec() });
        let joined = answer_of!(execute(&self.client, command).await?, Answer::Joined { joined } => joined)?;
        Ok(Membership::joined(member, joined, sent_at))
    }

    async fn heartbeat(&self, membership: &Membership) -> Result<Heartbeat, CoordError> {
        let sent_at = self.now();
        let Membership { member, incarnation, epoch, .. } = *membership;
        let beat = Query::Heartbeat { member, incarnation, epoch };
        answer_of!(
            self.heard(incarnation, membership.failure_timeout_ms, beat).await?,
            Answer::Heard { epoch, is_settled, failure_timeout_ms } => {
                Heartbeat::heard(epoch, is_settled, failure_timeout_ms, sent_at)
            }
        )
    }

    async fn leave(&self, membership: &Membership) -> Result<(), CoordError> {
        let command = Command::Leave { member: membership.member, incarnation: membership.incarnation };
        self.done(command).await.map(|_| ())
    }

    async fn forget(&self, member: MemberId) -> Result<(), CoordError> {
        self.done(Command::Forget { member }).await.map(|_| ())
    }

    async fn members(&self) -> Result<Members, CoordError> {
        answer_of!(query(&self.client, Query::Members).await?, Answer::Members { members } => members)
    }

    async fn epochs(&self, after: u64) -> Result<Epochs, CoordError> {
        answer_of!(query(&self.client, Query::Epochs { after }).await?, Answer::Epochs { epochs } => epochs)
    }

    async fn cut_epochs(&self, up_to: u64) -> Result<(), CoordError> {
        self.done(Command::CutEpochs { up_to }).await.map(|_| ())
    }

    async fn acquire(&self, membership: &Membership, name: &str, ttl: Duration) -> Result<Lease, CoordError> {
        check_path(name)?;
        let sent_at = self.now();
        let ttl_ms = ttl.as_millis().try_into().unwrap_or(u64::MAX);
        let (member, incarnation) = (membership.member, membership.incarnation);
        let command = Command::Acquire { name: name.to_owned(), member, incarnation, ttl_ms };
        let granted =
            answer_of!(execute(&self.client, command).await?, Answer::Granted { token, ttl_ms } => (token, ttl_ms));
        let (token, ttl_ms) = granted?;
        Ok(Lease::granted(name, token, ttl_ms, sent_at))
    }

    async fn renew(&self, lease: &mut Lease) -> Result<(), CoordError> {
        let sent_at = self.now();
        let renew = Query::Renew { name: lease.name.clone(), token: lease.token };
        let ttl_ms =
            answer_of!(self.heard(lease.token, lease.ttl_ms, renew).await?, Answer::Renewed { ttl_ms } => ttl_ms)?;
        lease.renewed(sent_at, ttl_ms);
        Ok(())
    }

    async fn release(&self, lease: &Lease) -> Result<(), CoordError> {
        self.done(Command::Release { name: lease.name.clone(), token: lease.token }).await.map(|_| ())
    }

    async fn holder(&self, name: &str) -> Result<Option<Holder>, CoordError> {
        check_path(name)?;
        answer_of!(query(&self.client, Query::Holder { name: name.to_owned() }).await?, Answer::Holder { holder } => holder)
    }

    async fn leases(&self, after: Option<&str>) -> Result<Leases, CoordError> {
        let page = Query::Leases { after: after.map(str::to_owned) };
        answer_of!(query(&self.client, page).await?, Answer::Leases { leases } => leases)
    }

    async fn get(&self, path: &str) -> Result<Option<Entry>, CoordError> {
        check_path(path)?;
        answer_of!(query(&self.client, Query::Get { path: path.to_owned() }).await?, Answer::Found { entry } => entry)
    }

    async fn transact(&self, transaction: &Transaction) -> Result<Revision, CoordError> {
        // An oversized transaction is not sent to the nodes; their own limits may differ.
        transaction.check(&Limits { value_bytes_max: TRANSACTION_BYTES_MAX, ..Limits::default() })?;
        self.done(Command::Transact { transaction: transaction.clone() }).await
    }

    async fn view(&self, root: &str) -> Result<View, CoordError> {
        check_root(root)?;
        answer_of!(query(&self.client, Query::View { root: root.to_owned() }).await?, Answer::View { view } => view)
    }

    async fn list(&self, root: &str, after: Option<&str>) -> Result<Listing, CoordError> {
        check_root(root)?;
        let page = Query::List { root: root.to_owned(), after: after.map(str::to_owned) };
        answer_of!(query(&self.client, page).await?, Answer::Listing { listing } => listing)
    }

    async fn changes(&self, scope: &Scope, after: Revision) -> Result<Changes, CoordError> {
        loop {
            let watch = Query::Watch { scope: scope.clone(), after };
            let waited = self.client.wait_for(&watch.to_bytes()).await?;
            if let Waited::Answered(told) = waited {
                return answer_of!(parse(&told)?, Answer::Changes { changes } => changes);
            }
            // No leader took the watcher in, the leader has changed, or nothing came: this query finds the leader, or
            // fails.
            let page = Query::Changes { scope: scope.clone(), after };
            let changes = answer_of!(query(&self.client, page).await?, Answer::Changes { changes } => changes)?;
            if !changes.events.is_empty() {
                return Ok(changes);
            }
            if matches!(waited, Waited::Refused) {
                self.timers.sleep(self.watch_every).await;
            }
            // Nothing happened in the scope up to here. The caller continues from it, even if the next query gets no
            // answer.
            if changes.up_to > after {
                return Ok(changes);
            }
        }
    }

    /// Includes time in which the machine was suspended: the lease may have passed to another member meanwhile.
    fn now(&self) -> u64 {
        if is_planted(Mutation::LeaseByMonotonicClock) {
            return self.timers.now();
        }
        self.timers.boot_now()
    }

    async fn sleep_until(&self, time: u64) {
        sleep_until(time, || self.now(), |left| self.timers.sleep(left)).await;
    }
}
