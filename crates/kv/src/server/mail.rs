//! Messages between the threads of a server.

use dunlin_store::snapshot::Part;
use tokio::sync::oneshot;

use crate::memcached::{Batch, FlushTime, Inquiry, Report, Socket};
use crate::metrics::CoreStats;

/// The mailboxes of all cores.
pub(super) type Mailboxes = dunlin_serve::Mailboxes<Mail>;

/// A letter to a core.
#[derive(Debug)]
pub(super) enum Mail {
    /// Report your statistics.
    Stats(oneshot::Sender<CoreStats>),
    /// Take part in a snapshot.
    Snapshot(Part),
    /// Serve a memcached connection.
    Adopt(Socket),
    /// Run commands on your keys.
    Run(Box<Batch>, oneshot::Sender<Box<Batch>>),
    /// Delete everything, now or at a time.
    Flush(FlushTime, oneshot::Sender<()>),
    /// Report memcached's counters.
    Ask(Inquiry, oneshot::Sender<Report>),
}
