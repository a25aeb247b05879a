//! Threads that read and write the device of a tier.

use std::hash::RandomState;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use dunlin_serve::side;
use dunlin_store::tier::{BlockWrite, Ticket};
use tokio::sync::mpsc::UnboundedSender;

use super::{Device, TierError};

/// What the device has done. The channel that it comes through holds no more than a core has asked for.
#[derive(Debug)]
pub enum Done {
    /// A record was read.
    Read(Ticket, io::Result<Vec<u8>>),
    /// A block was written.
    Written(u64, io::Result<()>),
    /// Nothing: the core told itself to go on with its queue.
    Again,
}

/// Where a core hears of it.
pub(super) type DoneSender = UnboundedSender<Done>;

struct Read {
    ticket: Ticket,
    offset: u64,
    done: DoneSender,
}

struct Write {
    block: BlockWrite,
    offset: u64,
    done: DoneSender,
}

/// Threads that read and write a device, shared by the cores of a server. They end when it is dropped, each after the
/// call that it is in.
#[derive(Debug, Clone)]
pub struct Pool {
    reads: Sender<Read>,
    writes: Sender<Write>,
    /// Reads at a time.
    width: usize,
    /// Numbers the clients of all cores.
    clients: RandomState,
}

impl Pool {
    /// Starts the threads: one for each of the `width` reads at a time, and one that writes. A read takes at least
    /// `delay`.
    ///
    /// # Errors
    /// [`TierError::Thread`].
    pub fn start(device: Arc<dyn Device>, width: usize, delay: Duration) -> Result<Pool, TierError> {
        let (reads, reading) = channel::<Read>();
        let (writes, writing) = channel::<Write>();
        let reading = Arc::new(Mutex::new(reading));
        for number in 0..width {
            let (device, reading) = (device.clone(), reading.clone());
            let read = move || {
                while let Some(Read { ticket, offset, done }) = next(&reading) {
                    let begun = Instant::now();
                    let result = device.read(offset, ticket.bytes());
                    thread::sleep(delay.saturating_sub(begun.elapsed()));
                    // The core may be gone.
                    let _ = done.send(Done::Read(ticket, result));
                }
            };
            spawn(format!("kv-tier-{number}"), read)?;
        }
        let write = move || {
            for Write { block, offset, done } in writing {
                let result = device.write(offset, &block.bytes);
                let _ = done.send(Done::Written(block.number, result));
            }
        };
        spawn("kv-tier-write".into(), write)?;
        Ok(Pool { reads, writes, width, clients: RandomState::new() })
    }

    /// Returns how many reads it does at a time.
    pub fn width(&self) -> usize {
        self.width
    }

    pub(super) fn clients(&self) -> &RandomState {
        &self.clients
    }

    pub(super) fn read(&self, ticket: Ticket, offset: u64, done: DoneSender) {
        // The threads live as long as this does.
        let _ = self.reads.send(Read { ticket, offset, done });
    }

    pub(super) fn write(&self, block: BlockWrite, offset: u64, done: DoneSender) {
        let _ = self.writes.send(Write { block, offset, done });
    }
}

/// Takes the next job; `None` when there will be no more.
fn next<J>(jobs: &Mutex<Receiver<J>>) -> Option<J> {
    // Nothing can panic while it is locked.
    jobs.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

fn spawn(name: String, run: impl FnOnce() + Send + 'static) -> Result<(), TierError> {
    side::start(&name, run).map(drop).map_err(|why| TierError::Thread(io::Error::other(why)))
}
