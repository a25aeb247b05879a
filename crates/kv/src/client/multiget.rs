//! Multi-get: concurrent requests to each core that owns some of the keys, one per core or as many as the limits
//! require.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use dunlin_net::Transport;
use dunlin_rpc::{Call, CallError, CallFailure, MsgBuf, Reply};
use dunlin_serve::channel::is_session_over;

use super::KvClient;
use super::error::KvError;
use super::links::Links;
use super::operations::check_key;
use super::value::Value;
use crate::wire::{Found, MULTI_GET, MULTI_GET_KEYS_MAX, MultiGet, MultiGetAnswer, Status};

/// Rounds without progress after which a multi-get gives up.
const EMPTY_ROUNDS_MAX: u32 = 3;

/// A request for some of the keys, given by their indices in the list, and its answer when it has arrived.
struct Part {
    keys: Vec<usize>,
    call: Pin<Box<Call<MsgBuf>>>,
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
        keys.iter().try_for_each(|key| check_key(key.as_ref()))?;
        let deadline = self.deadline();
        let mut values: Vec<Option<Value>> = keys.iter().map(|_| None).collect();
        let mut wanted: Vec<usize> = (0..keys.len()).collect();
        let (mut empty_rounds, mut pushed_back) = (0, 0);
        while !wanted.is_empty() {
            let links = self.connection.links().await?;
            let mut parts = self.send(&links, keys, &wanted, deadline)?;
            all(&mut parts).await;
            self.connection.used(&links);
            let (before, mut is_busy) = (wanted.len(), false);
            wanted.clear();
            for part in parts {
                // `all` ends when every part has its result.
                let Some(result) = part.result else { continue };
                match result {
                    Ok(reply) => self.take(&links, &part.keys, reply.response, &mut values, &mut wanted)?,
                    Err(failure) if is_session_over(&failure.error) && empty_rounds + 1 < EMPTY_ROUNDS_MAX => {
                        self.connection.leave(&links);
                        wanted.extend(part.keys);
                    }
                    Err(failure) if matches!(failure.error, CallError::Busy) => {
                        is_busy = true;
                        wanted.extend(part.keys);
                    }
                    Err(failure) => return Err(self.failed(&links, failure.error)),
                }
            }
            if is_busy {
                if !self.connection.wait_for_busy_core(pushed_back, deadline).await {
                    return Err(KvError::Call { error: CallError::Busy });
                }
                pushed_back += 1;
                continue;
            }
            empty_rounds = if wanted.len() < before { 0 } else { empty_rounds + 1 };
            if empty_rounds >= EMPTY_ROUNDS_MAX {
                return Err(KvError::Moved { server: self.connection.server.clone() });
            }
        }
        Ok(values)
    }

    /// Sends the requests for the missing keys.
    fn send<K: AsRef<[u8]>>(
        &self,
        links: &Links,
        keys: &[K],
        wanted: &[usize],
        deadline: Option<u64>,
    ) -> Result<Vec<Part>, KvError> {
        let options = Self::time_left(deadline, self.connection.endpoint.now())?;
        let mut by_core: Vec<Vec<usize>> = vec![Vec::new(); links.cores.len()];
        for &place in wanted {
            by_core[usize::from(links.map.routing.owner(keys[place].as_ref()))].push(place);
        }
        let mut parts = Vec::new();
        for (core, places) in links.cores.iter().zip(&by_core) {
            for (number, places) in places.chunks(MULTI_GET_KEYS_MAX).enumerate() {
                let of_places = || places.iter().map(|&place| keys[place].as_ref());
                let len = MultiGet::encoded_len(of_places());
                let request = MsgBuf::written(len, |out| MultiGet::encode(of_places(), out))?;
                let lane = &core.lanes[number % core.lanes.len()];
                let call = Box::pin(lane.session.call_with(MULTI_GET, request, options));
                parts.push(Part { keys: places.to_vec(), call, result: None });
            }
        }
        Ok(parts)
    }

    /// Takes the values out of a response, and notes the keys to be requested again.
    fn take(
        &self,
        links: &Rc<Links>,
        keys: &[usize],
        response: MsgBuf,
        values: &mut [Option<Value>],
        wanted: &mut Vec<usize>,
    ) -> Result<(), KvError> {
        let response = Rc::new(response);
        let mut answers = MultiGetAnswer::new(&response);
        for &key in keys {
            match answers.next().ok_or(KvError::BadAnswer)? {
                Found::Item { flags, value } => values[key] = Some(Value::new(response.clone(), value, flags)),
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
        Ok(())
    }
}

/// Waits until every part has its result.
async fn all(parts: &mut [Part]) {
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
