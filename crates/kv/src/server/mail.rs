//! What the threads of a server tell each other.

use dunlin_store::snapshot::Part;
use tokio::sync::oneshot;

use crate::memcached::{Batch, FlushTime, Inquiry, Report, Socket};
use crate::metrics::CoreStats;

/// The mailboxes of all cores.
pub(super) type Mailboxes = dunlin_serve::Mailboxes<Mail>;

/// A letter to a core.
#[derive(Debug)]
pub(super) enum Mail {
    /// Tell what you count.
    Stats(oneshot::Sender<CoreStats>),
    /// Take part in a snapshot.
    Snapshot(Part),
    /// Serve a memcached connection.
    Adopt(Socket),
    /// Run commands on your keys.
    Run(Box<Batch>, oneshot::Sender<Box<Batch>>),
    /// Delete everything, now or at a time.
    Flush(FlushTime, oneshot::Sender<()>),
    /// Tell memcached's counts.
    Ask(Inquiry, oneshot::Sender<Report>),
}
