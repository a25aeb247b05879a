//! Operations on one key.

use std::ops::Deref;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::Transport;
use dunlin_rpc::msgbuf::AllocError;
use dunlin_rpc::{CallError, CallOptions, MsgBuf};
use dunlin_serve::channel::is_session_over;
use dunlin_store::{Condition, Delta, KEY_BYTES_MAX, KeyError, Put, Refused, Side, Stored, UnixSeconds};

use super::KvClient;
use super::error::KvError;
use super::links::{CoreLink, Links};
use super::value::Value;
use crate::metrics::ServerStats;
use crate::mutation::{Mutation, is_planted};
use crate::wire::{
    Answer, FLUSH, ItemFacts, NumberAnswer, OPERATE, Operation, RANKED_BYTES, RANKED_OPERATE, Ranked, SNAPSHOT, STATS,
    Status, ValueAnswer, WAITED_BYTES, Waited,
};

/// Attempts of an operation with new sessions while a retry is known to be safe: it was not executed, or is a read.
const ATTEMPTS_MAX: u32 = 3;

/// A response, behind what precedes it in the buffer.
struct Response {
    buffer: MsgBuf,
    start: usize,
    waited: Waited,
}

impl Response {
    /// Takes off how long the request waited, if it asked for that.
    fn of(buffer: MsgBuf, ranked: Option<&Ranked>) -> Result<Response, KvError> {
        let (start, waited) = waited_before(&buffer, ranked)?;
        Ok(Response { buffer, start, waited })
    }

    /// Returns a value that is the rest of it.
    fn into_value(self, start: usize, flags: u32) -> Value {
        let place = self.start + start..self.buffer.len();
        Value::new(Rc::new(self.buffer), place, flags)
    }
}

impl Deref for Response {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.start..]
    }
}

/// Returns a request behind the header that ranks it.
pub(super) fn behind(
    ranked: &Ranked,
    len: usize,
    encode: impl FnOnce(&mut [u8]) -> usize,
) -> Result<MsgBuf, AllocError> {
    MsgBuf::written(RANKED_BYTES + len, |out| {
        ranked.encode(out);
        RANKED_BYTES + encode(&mut out[RANKED_BYTES..])
    })
}

/// Returns how long a request waited in the server, and where the ordinary response begins.
pub(super) fn waited_before(response: &[u8], ranked: Option<&Ranked>) -> Result<(usize, Waited), KvError> {
    match ranked {
        Some(Ranked { wants_waited: true, .. }) => {
            let (waited, _) = Waited::parse(response).ok_or(KvError::BadAnswer)?;
            Ok((WAITED_BYTES, waited))
        }
        _ => Ok((0, Waited::default())),
    }
}

/// The result of an attempt.
enum Attempt {
    Done(Response),
    /// Retry with new sessions; the error is for when that was done too often.
    Again(KvError),
    /// Retry later: the core pushed the request back, and nothing was done.
    Later(KvError),
}

/// Counts a call while it is in progress.
pub(super) struct InFlight<'a>(&'a std::cell::Cell<u32>);

impl<'a> InFlight<'a> {
    pub fn new(count: &'a std::cell::Cell<u32>) -> InFlight<'a> {
        count.set(count.get() + 1);
        InFlight(count)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Rejects an invalid key before anything is sent.
pub(crate) fn check_key(key: &[u8]) -> Result<(), KeyError> {
    match key.len() {
        0 => Err(KeyError::Empty),
        1..=KEY_BYTES_MAX => Ok(()),
        len => Err(KeyError::TooLong { len }),
    }
}

pub(super) fn check_value(links: &Links, operation: &Operation<'_>) -> Result<(), KvError> {
    let (Operation::Put { value: bytes, .. } | Operation::Extend { bytes, .. }) = operation else { return Ok(()) };
    let max = links.map.limits.value_bytes_max as usize;
    if bytes.len() > max { Err(KvError::ValueTooLarge { len: bytes.len(), max }) } else { Ok(()) }
}

/// Whether nothing was executed because there is too much to do, at the server or on the way there: try later.
pub(super) fn is_pushed_back(error: &CallError) -> bool {
    matches!(error, CallError::Busy | CallError::QueueFull)
}

impl<T: Transport + 'static> KvClient<T> {
    /// Reads a value and its flags.
    ///
    /// # Errors
    /// Any [`KvError`] but [`KvError::Refused`] and [`KvError::ValueTooLarge`].
    pub async fn get(&self, key: &[u8]) -> Result<Option<Value>, KvError> {
        self.get_waited(key).await.map(|(value, _)| value)
    }

    /// The same, and how long the request waited in the server, if its rank asks for that.
    ///
    /// # Errors
    /// As [`KvClient::get`].
    pub async fn get_waited(&self, key: &[u8]) -> Result<(Option<Value>, Waited), KvError> {
        let response = self.operate(&Operation::Get { key }).await?;
        let waited = response.waited;
        Ok(match ValueAnswer::parse(&response).ok_or(KvError::BadAnswer)? {
            ValueAnswer::NotFound => (None, waited),
            ValueAnswer::Found { flags, start } => (Some(response.into_value(start, flags)), waited),
        })
    }

    /// Reads an item with its metadata, such as its CAS token for [`Condition::Unchanged`].
    ///
    /// # Errors
    /// As [`KvClient::get`].
    pub async fn read(&self, key: &[u8]) -> Result<Option<(ItemFacts, Value)>, KvError> {
        self.read_item(Operation::Read { key, touch: None }).await
    }

    /// Reads an item and sets its expiry.
    ///
    /// # Errors
    /// As [`KvClient::touch`].
    pub async fn read_and_touch(
        &self,
        key: &[u8],
        expires: Option<UnixSeconds>,
    ) -> Result<Option<(ItemFacts, Value)>, KvError> {
        self.read_item(Operation::Read { key, touch: Some(expires) }).await
    }

    async fn read_item(&self, operation: Operation<'_>) -> Result<Option<(ItemFacts, Value)>, KvError> {
        let response = self.operate(&operation).await?;
        match ItemFacts::parse(&response).ok_or(KvError::BadAnswer)? {
            Ok((facts, start)) => Ok(Some((facts, response.into_value(start, facts.flags)))),
            Err(Refused::NotFound) => Ok(None),
            Err(refused) => Err(refused.into()),
        }
    }

    /// Stores a value unconditionally, without flags or expiry.
    ///
    /// # Errors
    /// Any [`KvError`]; [`KvError::Refused`] if there is no room.
    pub async fn set(&self, key: &[u8], value: &[u8]) -> Result<Stored, KvError> {
        self.put(key, value, Put::default()).await
    }

    /// Stores a value if the key has none: memcached's `add`.
    ///
    /// # Errors
    /// As [`KvClient::put`].
    pub async fn add(&self, key: &[u8], value: &[u8]) -> Result<Stored, KvError> {
        self.put(key, value, Put { condition: Condition::Absent, ..Put::default() }).await
    }

    /// Stores a value if the key has one.
    ///
    /// # Errors
    /// As [`KvClient::put`].
    pub async fn replace(&self, key: &[u8], value: &[u8]) -> Result<Stored, KvError> {
        self.put(key, value, Put { condition: Condition::Present, ..Put::default() }).await
    }

    /// Stores a value if the item still has this CAS token: compare and swap.
    ///
    /// # Errors
    /// As [`KvClient::put`].
    pub async fn cas(&self, key: &[u8], value: &[u8], token: u64) -> Result<Stored, KvError> {
        self.put(key, value, Put { condition: Condition::Unchanged(token), ..Put::default() }).await
    }

    /// Stores a value under a condition, with flags and an expiry.
    ///
    /// # Errors
    /// Any [`KvError`]; [`KvError::Refused`] if the condition does not hold or there is no room.
    pub async fn put(&self, key: &[u8], value: &[u8], put: Put) -> Result<Stored, KvError> {
        let response = self.operate(&Operation::Put { key, value, put }).await?;
        Ok(Answer::parse_stored(&response).ok_or(KvError::BadAnswer)??)
    }

    /// Deletes an item. Returns false if there was none.
    ///
    /// # Errors
    /// As [`KvClient::get`].
    pub async fn delete(&self, key: &[u8]) -> Result<bool, KvError> {
        match self.delete_unchanged(key, None).await {
            Ok(()) => Ok(true),
            Err(KvError::Refused(Refused::NotFound)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Deletes an item; with a token, only if the item still has it.
    ///
    /// # Errors
    /// Any [`KvError`]; [`KvError::Refused`] if there is no item, or it was changed.
    pub async fn delete_unchanged(&self, key: &[u8], unchanged: Option<u64>) -> Result<(), KvError> {
        let response = self.operate(&Operation::Delete { key, unchanged }).await?;
        Ok(Answer::parse_plain(&response).ok_or(KvError::BadAnswer)??)
    }

    /// Appends bytes to a value.
    ///
    /// # Errors
    /// Any [`KvError`]; [`KvError::Refused`] if there is no item or no room.
    pub async fn append(&self, key: &[u8], bytes: &[u8]) -> Result<Stored, KvError> {
        self.extend(key, bytes, Side::End, None).await
    }

    /// Prepends bytes to a value.
    ///
    /// # Errors
    /// As [`KvClient::append`].
    pub async fn prepend(&self, key: &[u8], bytes: &[u8]) -> Result<Stored, KvError> {
        self.extend(key, bytes, Side::Start, None).await
    }

    /// Adds bytes to a value; with a token, only if the item still has it.
    ///
    /// # Errors
    /// As [`KvClient::append`], also if the item was changed.
    pub async fn extend(
        &self,
        key: &[u8],
        bytes: &[u8],
        side: Side,
        unchanged: Option<u64>,
    ) -> Result<Stored, KvError> {
        let response = self.operate(&Operation::Extend { key, bytes, side, unchanged }).await?;
        Ok(Answer::parse_stored(&response).ok_or(KvError::BadAnswer)??)
    }

    /// Adds to a number; wraps at 2^64.
    ///
    /// # Errors
    /// Any [`KvError`]; [`KvError::Refused`] if there is no item, or it is not a number.
    pub async fn incr(&self, key: &[u8], by: u64) -> Result<NumberAnswer, KvError> {
        self.count(key, Delta::Up(by), None).await
    }

    /// Subtracts from a number; stops at 0.
    ///
    /// # Errors
    /// As [`KvClient::incr`].
    pub async fn decr(&self, key: &[u8], by: u64) -> Result<NumberAnswer, KvError> {
        self.count(key, Delta::Down(by), None).await
    }

    /// Changes a number; with a token, only if the item still has it.
    ///
    /// # Errors
    /// As [`KvClient::incr`], also if the item was changed.
    pub async fn count(&self, key: &[u8], delta: Delta, unchanged: Option<u64>) -> Result<NumberAnswer, KvError> {
        let response = self.operate(&Operation::Count { key, delta, unchanged }).await?;
        Ok(NumberAnswer::parse(&response).ok_or(KvError::BadAnswer)??)
    }

    /// Sets an item's expiry; `None` for never. Returns false if there is no item.
    ///
    /// # Errors
    /// Any [`KvError`]; [`KvError::Refused`] if a full store has no room for the expiry: then the item is unchanged.
    pub async fn touch(&self, key: &[u8], expires: Option<UnixSeconds>) -> Result<bool, KvError> {
        let response = self.operate(&Operation::Touch { key, expires }).await?;
        match Answer::parse_plain(&response).ok_or(KvError::BadAnswer)? {
            Ok(()) => Ok(true),
            Err(Refused::NotFound) => Ok(false),
            Err(refused) => Err(refused.into()),
        }
    }

    /// Deletes every item, one core after the other.
    ///
    /// # Errors
    /// Any [`KvError`]; some cores may have done it then.
    pub async fn flush(&self) -> Result<(), KvError> {
        let links = self.connection.links().await?;
        for core in &links.cores {
            let response = self.ask(&links, core, FLUSH).await?;
            plain(&response)?;
        }
        Ok(())
    }

    /// Returns the server's statistics, one core after the other, so they are not of a single moment.
    ///
    /// # Errors
    /// Any [`KvError`] of a read; [`KvError::BadStats`].
    pub async fn stats(&self) -> Result<ServerStats, KvError> {
        let links = self.connection.links().await?;
        let mut all: Option<ServerStats> = None;
        for core in &links.cores {
            let response = self.ask(&links, core, STATS).await?;
            let mut stats = ServerStats::decode(&response)?;
            match &mut all {
                None => all = Some(stats),
                Some(all) => all.cores.append(&mut stats.cores),
            }
        }
        // A map has at least one core.
        all.ok_or(KvError::BadAnswer)
    }

    /// Has the server save its snapshot, and waits for that until the deadline.
    ///
    /// # Errors
    /// [`KvError::Unsupported`] if the server was started without a snapshot file, [`KvError::ServerFailed`], any other
    /// [`KvError`].
    pub async fn snapshot(&self) -> Result<(), KvError> {
        let links = self.connection.links().await?;
        plain(&self.ask(&links, links.core(0), SNAPSHOT).await?)
    }

    /// Sends one empty request to one core, without retries.
    async fn ask(&self, links: &Rc<Links>, core: &CoreLink, req_type: u8) -> Result<MsgBuf, KvError> {
        self.ask_with(links, core, req_type, MsgBuf::with_len(0)?).await
    }

    /// Sends one request to one core, without retries.
    pub(super) async fn ask_with(
        &self,
        links: &Rc<Links>,
        core: &CoreLink,
        req_type: u8,
        request: MsgBuf,
    ) -> Result<MsgBuf, KvError> {
        self.ask_until(self.deadline(), links, core, req_type, request).await
    }

    /// The same, with an earlier deadline.
    pub(super) async fn ask_until(
        &self,
        deadline: Option<u64>,
        links: &Rc<Links>,
        core: &CoreLink,
        req_type: u8,
        request: MsgBuf,
    ) -> Result<MsgBuf, KvError> {
        let options = Self::time_left(deadline, self.connection.endpoint.now())?;
        let lane = &core.lanes[core.choose()];
        let _counted = InFlight::new(&lane.in_flight);
        let reply = lane.session.call_with(req_type, request, options).await;
        self.connection.used(links);
        reply.map(|reply| reply.response).map_err(|failure| self.failed(links, failure.error))
    }

    /// Returns the error of a failed call; records it if the sessions have ended.
    pub(super) fn failed(&self, links: &Rc<Links>, error: CallError) -> KvError {
        if is_session_over(&error) {
            self.connection.leave(links);
        }
        KvError::Call { error }
    }

    /// Returns the deadline of an operation that begins now, by the endpoint's clock.
    pub(super) fn deadline(&self) -> Option<u64> {
        let nanos = |deadline: Duration| deadline.as_nanos().try_into().unwrap_or(u64::MAX);
        self.config.deadline.map(|deadline| self.connection.endpoint.now().saturating_add(nanos(deadline)))
    }

    /// Returns the time from `now` until `deadline`.
    pub(super) fn time_left(deadline: Option<u64>, now: u64) -> Result<CallOptions, KvError> {
        let Some(deadline) = deadline else { return Ok(CallOptions::default()) };
        let left = deadline.saturating_sub(now);
        if left == 0 { Err(KvError::Late) } else { Ok(CallOptions::timeout(Duration::from_nanos(left))) }
    }

    /// Executes an operation, and retries where that is safe.
    async fn operate(&self, operation: &Operation<'_>) -> Result<Response, KvError> {
        check_key(operation.key())?;
        let deadline = self.deadline();
        let (mut attempts, mut pushed_back) = (1, 0);
        loop {
            match self.attempt(operation, deadline).await? {
                Attempt::Done(response) => return Ok(response),
                Attempt::Again(error) if attempts >= ATTEMPTS_MAX => return Err(error),
                Attempt::Again(_) => attempts += 1,
                Attempt::Later(error) if !self.connection.wait_for_busy_core(pushed_back, deadline).await => {
                    return Err(error);
                }
                Attempt::Later(_) => pushed_back += 1,
            }
        }
    }

    async fn attempt(&self, operation: &Operation<'_>, deadline: Option<u64>) -> Result<Attempt, KvError> {
        let now = self.connection.endpoint.now();
        let (links, now) = match self.connection.current(now) {
            Some(links) => (links, now),
            None => (self.connection.links().await?, self.connection.endpoint.now()),
        };
        check_value(&links, operation)?;
        let core = links.owner(operation.key());
        let lane = &core.lanes[core.choose()];
        let ranked = self.rank.as_ref().filter(|_| operation.is_read());
        let (req_type, request) = match ranked {
            Some(ranked) => (RANKED_OPERATE, behind(ranked, operation.encoded_len(), |out| operation.encode(out))?),
            None => (OPERATE, MsgBuf::written(operation.encoded_len(), |out| operation.encode(out))?),
        };
        let options = Self::time_left(deadline, now)?;
        let counted = InFlight::new(&lane.in_flight);
        let result = lane.session.call_with(req_type, request, options).await;
        drop(counted);
        self.connection.used(&links);
        match result {
            Ok(reply) => {
                let response = Response::of(reply.response, ranked)?;
                match Status::of(&response) {
                    Some(Status::NotOwned) => {
                        self.connection.leave(&links);
                        Ok(Attempt::Again(KvError::Moved { server: self.connection.server.clone() }))
                    }
                    Some(Status::Closed) => Err(KvError::Closed { server: self.connection.server.clone() }),
                    Some(Status::Unsupported) => Err(KvError::Unsupported),
                    _ => Ok(Attempt::Done(response)),
                }
            }
            Err(failure) if is_pushed_back(&failure.error) => {
                Ok(Attempt::Later(KvError::Call { error: failure.error }))
            }
            Err(failure) => {
                let is_session_over = is_session_over(&failure.error);
                let error = self.failed(&links, failure.error);
                // It is unknown whether it was executed, so only a read may be retried.
                let is_safe = operation.is_read() || is_planted(Mutation::WriteTriedAgain);
                if is_safe && is_session_over { Ok(Attempt::Again(error)) } else { Err(error) }
            }
        }
    }
}

/// Checks a response that is a status.
fn plain(response: &[u8]) -> Result<(), KvError> {
    match Status::of(response) {
        Some(Status::Done) => Ok(()),
        Some(Status::Unsupported) => Err(KvError::Unsupported),
        Some(Status::Failed) => Err(KvError::ServerFailed),
        _ => Err(KvError::BadAnswer),
    }
}
