//! The transactions of one operation, and what is known of them if no answer comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, GetOptions, GetResponse, KeyValue, KvClient, Txn, TxnOp, TxnOpResponse, WatchClient,
};
use tonic::Code;

use super::keys::Keys;
use crate::error::CoordError;
use crate::limits::Limits;
use crate::types::{Happening, MemberId, Revision};
use crate::wire::Wire;

/// Pause before a request is sent again.
const RESEND_PAUSE: Duration = Duration::from_millis(20);

/// Keys in a page: with values of maximum size, they fit one message.
const PAGE_KEYS: i64 = 128;

/// One operation, with what it needs.
#[derive(Clone)]
pub(super) struct Work {
    pub kv: KvClient,
    pub watch: WatchClient,
    pub keys: Arc<Keys>,
    pub limits: Limits,
    /// Time limit of one request that may be sent again: after it, the member of etcd is given up, and another is
    /// asked.
    pub attempt_timeout: Duration,
    /// A watch that was silent for this long asks up to which revision nothing has happened.
    pub quiet_max: Duration,
    pub trace: Arc<Trace>,
}

/// What is known of an operation that timed out.
#[derive(Default)]
pub(super) struct Trace {
    may_have_run: AtomicBool,
    last_error: Mutex<Option<String>>,
}

impl Trace {
    /// The error of an operation that timed out.
    pub fn timed_out(&self) -> CoordError {
        let may_have_run = self.may_have_run.load(Ordering::SeqCst);
        match self.last_error.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(why) => CoordError::Backend { why: format!("etcd does not answer: {why}"), may_have_run },
            None => CoordError::TimedOut { may_have_run },
        }
    }

    fn failed_with(&self, why: String) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }
}

/// The result of a transaction.
pub(super) struct Outcome {
    /// Whether its conditions held.
    pub done: bool,
    /// The revision of the transaction if it changed something, else the current one.
    pub revision: Revision,
    gets: Vec<GetResponse>,
}

/// Converts a revision for a comparison so that it cannot match by accident: 0 must not, because etcd reports 0 for a
/// missing key.
pub(super) fn revision_for_etcd(revision: Revision) -> i64 {
    match i64::try_from(revision) {
        Ok(0) | Err(_) => i64::MAX,
        Ok(revision) => revision,
    }
}

/// A condition: the key was last written at this revision; 0 for a missing key.
pub(super) fn is_of(key: &str, revision: i64) -> Compare {
    Compare::mod_revision(key, CompareOp::Equal, revision)
}

/// A condition: no key with this prefix was written after a revision.
pub(super) fn none_since(prefix: String, revision: Revision) -> Compare {
    Compare::mod_revision(prefix, CompareOp::Less, revision_for_etcd(revision.saturating_add(1))).with_prefix()
}

/// A condition: the key exists, or does not.
pub(super) fn exists(key: &str, expected: bool) -> Compare {
    Compare::create_revision(key, if expected { CompareOp::Greater } else { CompareOp::Equal }, 0)
}

pub(super) fn get(key: impl Into<Vec<u8>>) -> TxnOp {
    TxnOp::get(key, None)
}

/// Reads whether a key exists, without its value.
pub(super) fn look(key: impl Into<Vec<u8>>) -> TxnOp {
    TxnOp::get(key, Some(GetOptions::new().with_keys_only()))
}

/// Reads all keys with a prefix, and their values.
pub(super) fn get_all(prefix: String) -> TxnOp {
    TxnOp::get(prefix, Some(GetOptions::new().with_prefix()))
}

/// Reads all keys with a prefix.
pub(super) fn look_at_all(prefix: String) -> TxnOp {
    TxnOp::get(prefix, Some(GetOptions::new().with_prefix().with_keys_only()))
}

/// Reads the first keys with a prefix, which ends with a slash, after a key, and their values.
pub(super) fn page(prefix: &str, after: Option<String>) -> TxnOp {
    let start = after.map_or_else(|| prefix.to_owned(), |after| format!("{after}\0"));
    TxnOp::get(start, Some(page_options(prefix)))
}

/// Reads the first key with a prefix, which ends with a slash, and its value.
pub(super) fn first(prefix: &str) -> TxnOp {
    TxnOp::get(prefix, Some(page_options(prefix).with_limit(1)))
}

fn page_options(prefix: &str) -> GetOptions {
    // The byte after the slash is the digit 0.
    let end = format!("{}0", prefix.trim_end_matches('/'));
    GetOptions::new().with_range(end).with_limit(PAGE_KEYS)
}

/// The same, as of a revision.
pub(super) fn page_at(prefix: &str, after: String, revision: Revision) -> TxnOp {
    let options = page_options(prefix).with_revision(revision_for_etcd(revision));
    TxnOp::get(format!("{after}\0"), Some(options))
}

/// Counts the keys with a prefix.
pub(super) fn count(prefix: String) -> TxnOp {
    TxnOp::get(prefix, Some(GetOptions::new().with_prefix().with_count_only()))
}

pub(super) fn put(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> TxnOp {
    TxnOp::put(key, value, None)
}

pub(super) fn delete(key: impl Into<Vec<u8>>) -> TxnOp {
    TxnOp::delete(key, None)
}

/// The error for a value that this crate did not write.
pub(super) fn foreign(key: &str, why: impl std::fmt::Display) -> CoordError {
    let why = format!("what etcd has under {key} was not written by this program: {why}");
    CoordError::Backend { why, may_have_run: false }
}

/// The number in a key's value; 0 if the value is empty.
pub(super) fn number(found: &KeyValue) -> Result<u64, CoordError> {
    let key = String::from_utf8_lossy(found.key());
    match found.value_str().map_err(|error| foreign(&key, error))? {
        "" => Ok(0),
        text => text.parse().map_err(|error| foreign(&key, error)),
    }
}

impl Outcome {
    /// The keys that the get at this place found.
    pub fn all(&self, place: usize) -> &[KeyValue] {
        self.gets.get(place).map_or(&[], GetResponse::kvs)
    }

    /// The same, for a get of one key.
    pub fn one(&self, place: usize) -> Option<&KeyValue> {
        self.all(place).first()
    }

    /// The same, for a count.
    pub fn count(&self, place: usize) -> usize {
        self.gets.get(place).map_or(0, |get| get.count() as usize)
    }

    /// Whether that get found more than it returned.
    pub fn has_more(&self, place: usize) -> bool {
        self.gets.get(place).is_some_and(GetResponse::more)
    }

    /// The revision at which the key was last written; 0 if there is none.
    pub fn mod_revision(&self, place: usize) -> i64 {
        self.one(place).map_or(0, KeyValue::mod_revision)
    }

    /// The number in the key's value; 0 if there is none.
    pub fn number(&self, place: usize) -> Result<u64, CoordError> {
        self.one(place).map_or(Ok(0), number)
    }
}

impl Work {
    /// The write of an event, for the transaction that causes it.
    pub fn event(&self, happening: Happening) -> TxnOp {
        self.events(&[happening])
    }

    /// The write of all events of one revision.
    pub fn events(&self, happenings: &[Happening]) -> TxnOp {
        let mut value = Vec::new();
        happenings.iter().for_each(|happening| happening.put(&mut value));
        put(self.keys.events(), value)
    }

    /// The conditions that a member is live as an incarnation.
    pub fn is_live(&self, member: MemberId, incarnation: Revision) -> [Compare; 2] {
        let incarnation = revision_for_etcd(incarnation);
        [is_of(&self.keys.member(member), incarnation), exists(&self.keys.failed(member), false)]
    }

    async fn send(&self, txn: Txn) -> Result<Outcome, etcd_client::Error> {
        let response = self.kv.clone().txn(txn).await?;
        let gets = response.op_responses().into_iter().filter_map(|response| match response {
            TxnOpResponse::Get(get) => Some(get),
            _ => None,
        });
        let revision = response.header().map_or(0, |header| header.revision() as Revision);
        Ok(Outcome { done: response.succeeded(), revision, gets: gets.collect() })
    }

    /// Pauses after this error, before the request is sent again.
    pub async fn resend_after(&self, error: &etcd_client::Error) {
        self.trace.failed_with(explain(error));
        tokio::time::sleep(RESEND_PAUSE).await;
    }

    /// Reads everything at one moment.
    pub async fn read(&self, gets: Vec<TxnOp>) -> Result<Outcome, CoordError> {
        self.repeat(Txn::new().and_then(gets)).await
    }

    /// Sends a transaction that may be executed several times, until there is an answer.
    pub async fn repeat(&self, txn: Txn) -> Result<Outcome, CoordError> {
        let mut patience = self.attempt_timeout;
        loop {
            let why = match tokio::time::timeout(patience, self.send(txn.clone())).await {
                Ok(Ok(outcome)) => return Ok(outcome),
                Ok(Err(error)) if is_final(&error) => return Err(backend(&error, false)),
                Ok(Err(error)) => explain(&error),
                Err(_) => {
                    // It may be one that always takes longer.
                    patience = patience.saturating_mul(2);
                    "no answer in time".to_owned()
                }
            };
            self.trace.failed_with(why);
            tokio::time::sleep(RESEND_PAUSE).await;
        }
    }

    /// Sends a transaction that must not be executed twice, until it has been sent. If no answer comes after that, it
    /// may have been executed.
    pub async fn commit(&self, txn: Txn) -> Result<Outcome, CoordError> {
        loop {
            let before = self.trace.may_have_run.swap(true, Ordering::SeqCst);
            match self.send(txn.clone()).await {
                Ok(outcome) => {
                    self.trace.may_have_run.store(before || outcome.done, Ordering::SeqCst);
                    return Ok(outcome);
                }
                Err(error) if was_unsent(&error) => {
                    self.trace.may_have_run.store(before, Ordering::SeqCst);
                    self.resend_after(&error).await;
                }
                Err(error) => return Err(backend(&error, before || !is_final(&error))),
            }
        }
    }
}

/// Whether there was no connection to send a request on.
pub(super) fn was_unsent(error: &etcd_client::Error) -> bool {
    let etcd_client::Error::GRpcStatus(status) = error else { return false };
    let causes = std::iter::successors(std::error::Error::source(status), |error| error.source());
    causes.into_iter().any(|cause| cause.is::<tonic::ConnectError>())
}

/// Whether etcd itself refused the request, and so has not executed it. Other errors may come from a proxy, or from a
/// member that lost its leader.
fn is_final(error: &etcd_client::Error) -> bool {
    let etcd_client::Error::GRpcStatus(status) = error else { return false };
    matches!(
        status.code(),
        Code::InvalidArgument
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
    )
}

/// An error with its causes: a transport names the problem only there.
fn explain(error: &etcd_client::Error) -> String {
    let (mut text, mut cause) = match error {
        etcd_client::Error::GRpcStatus(status) => (status.message().to_owned(), std::error::Error::source(status)),
        other => (other.to_string(), None),
    };
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

pub(super) fn backend(error: &etcd_client::Error, may_have_run: bool) -> CoordError {
    CoordError::Backend { why: format!("etcd says: {}", explain(error)), may_have_run }
}
