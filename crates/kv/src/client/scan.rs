//! Scans all items of a server.

use std::ops::ControlFlow;
use std::rc::Rc;

use dunlin_net::Transport;
use dunlin_records::Record;
use dunlin_rpc::{CallOptions, MsgBuf};

use super::KvClient;
use super::error::KvError;
use super::links::{CoreLink, Links};
use crate::wire::{SCAN, Scan, ScanAnswer, Status};

impl<T: Transport + 'static> KvClient<T> {
    /// Passes every item of the server to `each` once, in no particular order, until `each` breaks.
    ///
    /// The server keeps serving meanwhile: items that exist during the whole scan are passed; items that are added,
    /// removed or changed meanwhile may be passed or not, in their old or new state. For a single moment, use a
    /// snapshot.
    ///
    /// # Errors
    /// Any [`KvError`] of a read. Nothing is retried: items would be passed twice.
    pub async fn scan(&self, mut each: impl FnMut(Record) -> ControlFlow<()>) -> Result<(), KvError> {
        let links = self.connection.links().await?;
        for core in &links.cores {
            let mut next = Some(0);
            while let Some(from) = next {
                let response = self.scan_from(&links, core, from).await?;
                if Status::of(&response) == Some(Status::Closed) {
                    return Err(KvError::Closed { server: self.connection.server.clone() });
                }
                let answer = ScanAnswer::parse(&response).ok_or(KvError::BadAnswer)?;
                // With a server that goes backwards, the scan would never end.
                next = answer.next.filter(|next| *next > from);
                if next.is_none() && answer.next.is_some() {
                    return Err(KvError::BadAnswer);
                }
                for item in answer.items {
                    let value = match item.value {
                        Some(value) => value.to_vec(),
                        // It was too long for the scan; if it is gone by now, it may be skipped.
                        None => match self.get(item.key).await? {
                            Some(value) => value.to_vec(),
                            None => continue,
                        },
                    };
                    let record = Record { key: item.key.to_vec(), value, flags: item.flags, expires: item.expires };
                    if each(record).is_break() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    async fn scan_from(&self, links: &Rc<Links>, core: &CoreLink, from: u64) -> Result<MsgBuf, KvError> {
        let request = MsgBuf::copy_from(&Scan { from }.encode())?;
        let options = self.config.deadline.map(CallOptions::timeout).unwrap_or_default();
        let reply = core.lanes[core.choose()].session.call_with(SCAN, request, options).await;
        self.connection.used(links);
        reply.map(|reply| reply.response).map_err(|failure| self.failed(links, failure.error))
    }
}
