//! Going through all items of a server.

use std::ops::ControlFlow;
use std::rc::Rc;

use dunlin_net::Transport;
use dunlin_records::Record;
use dunlin_rpc::{CallOptions, MsgBuf};

use super::KvClient;
use super::error::KvError;
use super::links::{CoreLink, Links};
use crate::wire::{SCAN, Scan, ScanAnswer};

impl<T: Transport> KvClient<T> {
    /// Shows every item of the server once, in no order, until `each` breaks.
    ///
    /// The server goes on meanwhile: items that are there from the beginning to the end are shown, those that come, go or change meanwhile may
    /// be shown or not, in their old state or their new one. A snapshot shows one moment.
    ///
    /// # Errors
    /// Any [`KvError`] of a read. Nothing is tried again: what was shown before would be shown twice.
    pub async fn scan(&self, mut each: impl FnMut(Record) -> ControlFlow<()>) -> Result<(), KvError> {
        let links = self.connection.links().await?;
        for core in &links.cores {
            let mut next = Some(0);
            while let Some(from) = next {
                let response = self.scan_from(&links, core, from).await?;
                let answer = ScanAnswer::parse(&response).ok_or(KvError::BadAnswer)?;
                // A server that goes backwards would go on for ever.
                next = answer.next.filter(|next| *next > from);
                if next.is_none() && answer.next.is_some() {
                    return Err(KvError::BadAnswer);
                }
                for item in answer.items {
                    let value = match item.value {
                        Some(value) => value.to_vec(),
                        // It was too long to be shown; if it is gone by now it need not be.
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
        reply.map(|reply| reply.response).map_err(|failure| self.failed(links, failure.error))
    }
}
