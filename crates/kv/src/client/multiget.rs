//! Multi-get: concurrent requests to each core that owns some of the keys, one per core or as many as the limits
//! require.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use dunlin_net::Transport;
use dunlin_rpc::{Call, CallFailure, MsgBuf, Reply};
use dunlin_serve::channel::is_session_over;

use super::KvClient;
use super::error::KvError;
use super::links::Links;
use super::operations::{InFlight, behind, check_key, is_pushed_back, waited_before};
use super::value::Value;
use crate::wire::{Found, MULTI_GET, MULTI_GET_KEYS_MAX, MultiGet, MultiGetAnswer, RANKED_MULTI_GET, Status, Waited};

/// Rounds without progress after which a multi-get gives up.
const EMPTY_ROUNDS_MAX: u32 = 3;

/// A request for some of the keys, given by their indices in the list, and its answer when it has arrived.
struct Part<'a> {
    keys: Vec<usize>,
    call: Pin<Box<Call<MsgBuf>>>,
    _counted: InFlight<'a>,
    result: Option<Result<Reply, CallFailure<MsgBuf>>>,
}

impl<T: Transport + 'static> KvClient<T> {
    /// Reads the values of many keys: in the result, `values[i]` is that of `keys[i]`. Keys of one core share a
    /// request, up to [`MULTI_GET_KEYS_MAX`] of them; keys that do not fit in one response are requested again.
    ///
    /// The keys are not read atomically.
    ///
    /// # Errors
    /// As [`KvClient::get`]: all keys or none.
    pub async fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>, KvError> {
        self.multi_get_waited(keys).await.map(|(values, _)| values)
    }

    /// The same, and how long the request that waited longest in the server did so, if the rank asks for that.
    ///
    /// # Errors
    /// As [`KvClient::get`]: all keys or none.
    pub async fn multi_get_waited<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<(Vec<Option<Value>>, Waited), KvError> {
        keys.iter().try_for_each(|key| check_key(key.as_ref()))?;
        let deadline = self.deadline();
        let mut values: Vec<Option<Value>> = keys.iter().map(|_| None).collect();
        let mut wanted: Vec<usize> = (0..keys.len()).collect();
        let (mut empty_rounds, mut times, mut waited) = (0, 0, Waited::default());
        while !wanted.is_empty() {
            let links = self.connection.links().await?;
            let mut parts = self.send(&links, keys, &wanted, deadline)?;
            all(&mut parts).await;
            self.connection.used(&links);
            let (before, mut pushed_back) = (wanted.len(), None);
            wanted.clear();
            for part in parts {
                // `all` ends when every part has its result.
                let Some(result) = part.result else { continue };
                match result {
                    Ok(reply) => {
                        let of_part = self.take(&links, &part.keys, reply.response, &mut values, &mut wanted)?;
                        waited = longer(waited, of_part);
                    }
                    Err(failure) if is_session_over(&failure.error) && empty_rounds + 1 < EMPTY_ROUNDS_MAX => {
                        self.connection.leave(&links);
                        wanted.extend(part.keys);
                    }
                    Err(failure) if is_pushed_back(&failure.error) => {
                        pushed_back = Some(failure.error);
                        wanted.extend(part.keys);
                    }
                    Err(failure) => return Err(self.failed(&links, failure.error)),
                }
            }
            if let Some(error) = pushed_back {
                if !self.connection.wait_for_busy_core(times, deadline).await {
                    return Err(KvError::Call { error });
                }
                times += 1;
                continue;
            }
            empty_rounds = if wanted.len() < before { 0 } else { empty_rounds + 1 };
            if empty_rounds >= EMPTY_ROUNDS_MAX {
                return Err(KvError::Moved { server: self.connection.server.clone() });
            }
        }
        Ok((values, waited))
    }

    /// Sends the requests for the missing keys.
    fn send<'a, K: AsRef<[u8]>>(
        &self,
        links: &'a Links,
        keys: &[K],
        wanted: &[usize],
        deadline: Option<u64>,
    ) -> Result<Vec<Part<'a>>, KvError> {
        let options = Self::time_left(deadline, self.connection.endpoint.now())?;
        let mut by_core: Vec<Vec<usize>> = vec![Vec::new(); links.cores.len()];
        for &place in wanted {
            by_core[usize::from(links.map.routing.owner(keys[place].as_ref()))].push(place);
        }
        let mut parts = Vec::new();
        for (core, places) in links.cores.iter().zip(&by_core) {
            for places in places.chunks(MULTI_GET_KEYS_MAX) {
                let of_places = || places.iter().map(|&place| keys[place].as_ref());
                let len = MultiGet::encoded_len(of_places());
                let encode = |out: &mut [u8]| MultiGet::encode(of_places(), out);
                let (req_type, request) = match &self.rank {
                    Some(ranked) => (RANKED_MULTI_GET, behind(ranked, len, encode)?),
                    None => (MULTI_GET, MsgBuf::written(len, encode)?),
                };
                let lane = &core.lanes[core.choose()];
                let _counted = InFlight::new(&lane.in_flight);
                let call = Box::pin(lane.session.call_with(req_type, request, options));
                parts.push(Part { keys: places.to_vec(), call, _counted, result: None });
            }
        }
        Ok(parts)
    }

    /// Takes the values out of a response, and notes the keys to be requested again. Returns how long it waited.
    fn take(
        &self,
        links: &Rc<Links>,
        keys: &[usize],
        response: MsgBuf,
        values: &mut [Option<Value>],
        wanted: &mut Vec<usize>,
    ) -> Result<Waited, KvError> {
        let (start, waited) = waited_before(&response, self.rank.as_ref())?;
        let response = Rc::new(response);
        let mut answers = MultiGetAnswer::new(&response[start..]);
        for &key in keys {
            match answers.next().ok_or(KvError::BadAnswer)? {
                Found::Item { flags, value } => {
                    let place = start + value.start..start + value.end;
                    values[key] = Some(Value::new(response.clone(), place, flags));
                }
                Found::None(Status::NotFound) => {}
                Found::None(Status::Later) => wanted.push(key),
                Found::None(Status::NotOwned) => {
                    self.connection.leave(links);
                    wanted.push(key);
                }
                Found::None(Status::Closed) => {
                    return Err(KvError::Closed { server: self.connection.server.clone() });
                }
                Found::None(Status::Failed) => return Err(KvError::ServerFailed),
                Found::None(_) => return Err(KvError::BadAnswer),
            }
        }
        Ok(waited)
    }
}

fn longer(one: Waited, other: Waited) -> Waited {
    let micros = |waited: Waited| u64::from(waited.queued_micros) + u64::from(waited.read_micros);
    if micros(other) > micros(one) { other } else { one }
}

/// Waits until every part has its result.
async fn all(parts: &mut [Part<'_>]) {
    poll_fn(|context| {
        let mut is_done = true;
        for part in parts.iter_mut().filter(|part| part.result.is_none()) {
            match part.call.as_mut().poll(context) {
                Poll::Ready(result) => part.result = Some(result),
                Poll::Pending => is_done = false,
            }
        }
        if is_done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
