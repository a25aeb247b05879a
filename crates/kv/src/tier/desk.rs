//! The desk of a core: operations wait here until the device has read what they need.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher as _, RandomState};
use std::rc::{Rc, Weak};
use std::time::Duration;

use dunlin_net::Clock;
use dunlin_schedule::{ConfigError, Full, RequestQueue, Tag};
use dunlin_store::Store;
use dunlin_store::tier::{Arrival, Located, Ticket, Tier};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::pool::{Done, DoneSender, Pool};
use super::room::{BYTES_MAX, COPY_BYTES_MAX, Reserved, Room};
use super::schedule::Schedule;
use crate::memcached::HostName;
use crate::metrics::{LatencyHistogram, rank_class};
use crate::shard::Shard;
use crate::wire::{Ranked, Waited};

/// A read of this many bytes costs twice as much as one of a few: little enough that the longest answer to a multi-get
/// is within the default lead of a client.
const UNIT_BYTES: usize = 32 << 10;
/// How long a connection waits before it asks for a place again, if places of operations that nobody waits for fill the
/// queue.
const PLACE_WAIT: Duration = Duration::from_millis(1);
/// How long a read may take. Time in a queue does not count.
pub(super) const READ_TIME_MAX: Duration = Duration::from_secs(10);
/// How often reads are looked at that take long, in each [`READ_TIME_MAX`].
const LOOKS: u32 = 8;
/// Places that are looked at before the other tasks of the core have their turn.
const TURN_PLACES_MAX: usize = 256;
/// Errors of the device are logged once in this many seconds.
const LOG_SECONDS: u32 = 10;

/// An operation that waits for a record.
pub(crate) trait Waiter {
    /// Whether nobody waits for its answer any more.
    fn is_over(&self) -> bool;

    /// Goes on: its item is found now, or lost. `hold` keeps the item staged; release it when it was used.
    fn serve(self: Box<Self>, hold: Option<Hold>, waited: Waited);

    /// Nothing was done for it.
    fn refuse(self: Box<Self>, why: Refusal);
}

/// Why an operation is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// There is no place for it.
    Full,
    /// The device does not answer, or the desk is closed.
    Hangs,
}

/// An operation at the desk.
struct Place {
    ticket: Ticket,
    tag: Tag,
    /// When it came, and when its read began.
    since: u64,
    begun: u64,
    waiter: Box<dyn Waiter>,
}

/// A read in progress.
struct Read {
    begun: u64,
    /// The operations that wait for it: none if all were refused.
    places: Vec<Place>,
}

/// What an operation waits for, and its claim.
pub(crate) struct Parcel {
    pub ticket: Ticket,
    pub rank: u64,
    pub client: u64,
    pub waiter: Box<dyn Waiter>,
}

/// Keeps a record staged as long as it lives.
pub(crate) struct Hold {
    ticket: Ticket,
    release: Rc<dyn Fn(&Ticket)>,
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        (self.release)(&self.ticket);
    }
}

/// Keeps the records that a connection waited for staged, and their bytes counted.
#[derive(Debug, Default)]
pub struct Holds {
    holds: Vec<Hold>,
    reserved: Option<Reserved>,
}

impl Holds {
    /// Returns how many records there are.
    pub fn len(&self) -> usize {
        self.holds.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// Gives them up.
    pub fn clear(&mut self) {
        self.holds.clear();
        self.reserved = None;
    }
}

/// The desk of one core.
pub(crate) struct Desk {
    pool: Pool,
    /// Where the core's part of the file begins.
    part: u64,
    schedule: Schedule,
    queue: RefCell<RequestQueue<Place>>,
    /// Operations by the place of the record that is being read for them.
    reading: RefCell<HashMap<u64, Read>>,
    /// Reads at a time.
    slots: usize,
    /// For the records that requests wait for,
    for_requests: Rc<Room>,
    /// connections,
    for_connections: Rc<Room>,
    /// and copies.
    for_copies: Rc<Room>,
    read_time_max: Duration,
    is_closed: Cell<bool>,
    done: DoneSender,
    finished: Cell<Option<UnboundedReceiver<Done>>>,
    /// Records to release that could not be at once, since the store was in use.
    released: Rc<RefCell<Vec<Ticket>>>,
    clock: Clock,
    stats: RefCell<Stats>,
    logged: Cell<Option<u32>>,
}

#[derive(Default)]
struct Stats {
    waits: Vec<Waits>,
    served: u64,
    refused: u64,
    abandoned: u64,
}

/// How long operations of a class of ranks have waited.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Waits {
    /// In the queue.
    pub queued: LatencyHistogram,
    /// For the device.
    pub read: LatencyHistogram,
}

/// Counters of a desk, and what waits.
#[derive(Debug, Clone, Default)]
pub struct DeskStats {
    /// Operations that waited and were served.
    pub served: u64,
    /// Operations that found no place.
    pub refused: u64,
    /// Operations for which nobody waited any longer.
    pub abandoned: u64,
    /// Waiting operations of each level, and above the share of their client.
    pub lengths: Vec<usize>,
    /// Reads in progress.
    pub reading: usize,
    /// Bytes that operations wait for.
    pub bytes: usize,
    /// Waiting times by class of rank ([`crate::metrics::RANK_CLASSES`]).
    pub waits: Vec<Waits>,
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").field("slots", &self.slots).finish_non_exhaustive()
    }
}

impl Desk {
    /// Creates the desk of a core whose part of the file begins at `part`, with some of the reads of the pool.
    pub fn new(pool: Pool, part: u64, slots: usize, schedule: Schedule) -> Result<Desk, ConfigError> {
        let (done, finished) = unbounded_channel();
        Ok(Desk {
            queue: RefCell::new(RequestQueue::new(&schedule.queue)?),
            pool,
            part,
            schedule,
            reading: RefCell::default(),
            slots: slots.max(1),
            for_requests: Room::new(BYTES_MAX),
            for_connections: Room::new(BYTES_MAX),
            for_copies: Room::new(COPY_BYTES_MAX),
            read_time_max: READ_TIME_MAX,
            is_closed: Cell::new(false),
            done,
            finished: Cell::new(Some(finished)),
            released: Rc::default(),
            clock: Clock::new(),
            stats: RefCell::default(),
            logged: Cell::new(None),
        })
    }

    /// Returns the rank of a request for this many keys, as [`Schedule::rank`].
    pub fn rank(&self, ranked: Option<Ranked>, keys: usize) -> u64 {
        self.schedule.rank(ranked, keys)
    }

    /// Gives a device another time for each read.
    #[cfg(test)]
    pub fn with_read_time_max(self, read_time_max: Duration) -> Desk {
        Desk { read_time_max, ..self }
    }

    /// Returns the number of a client, by which it has its share of the service and of the room.
    pub fn client(&self, host: Option<HostName>) -> u64 {
        host.map_or(0, |host| self.pool.clients().hash_one(host))
    }

    /// Returns what numbers the clients of all cores: nobody can choose the number of another one.
    pub fn clients(&self) -> RandomState {
        self.pool.clients().clone()
    }

    /// Returns the number of a host's copies: they are a client of their own beside the applications of the host.
    pub fn copier(&self, host: Option<HostName>) -> u64 {
        self.pool.clients().hash_one(("copies", host))
    }

    /// Takes room for the records that a request waits for; `None` if there is none.
    pub fn reserve(&self, client: u64, tickets: &[Ticket]) -> Option<Reserved> {
        self.for_requests.take(client, tickets, 0)
    }

    /// The same for a copy whose answer has so many bytes already.
    pub fn reserve_copy(&self, copier: u64, tickets: &[Ticket], answer: usize) -> Option<Reserved> {
        self.for_copies.take(copier, tickets, answer)
    }

    /// Lets an operation wait. Call [`advance`] when the store is not in use.
    pub fn push(&self, parcel: Parcel) {
        let Parcel { ticket, rank, client, waiter } = parcel;
        if self.is_closed.get() {
            return self.refuse(waiter, Refusal::Hangs);
        }
        let now = self.clock.now();
        let tag = Tag { rank, cost: cost(ticket.bytes()), client };
        let place = Place { ticket, tag, since: now, begun: now, waiter };
        let pushed = self.queue.borrow_mut().push(tag, place);
        let refused = match pushed {
            Ok(displaced) => displaced,
            Err(Full { item, .. }) => Some(item),
        };
        if let Some(Place { waiter, .. }) = refused {
            self.refuse(waiter, Refusal::Full);
        }
    }

    fn refuse(&self, waiter: Box<dyn Waiter>, why: Refusal) {
        self.stats.borrow_mut().refused += 1;
        waiter.refuse(why);
    }

    /// Takes the operation that is next, and drops those before it for which nobody waits. Counts what it looks at; drops
    /// no more when nothing is `left`.
    fn next(&self, left: &mut usize) -> Option<Place> {
        let mut abandoned = 0;
        let next = self.queue.borrow_mut().pop_unless(|place| {
            let is_over = *left > 0 && place.waiter.is_over();
            abandoned += u64::from(is_over);
            *left = left.saturating_sub(usize::from(is_over));
            is_over
        });
        *left = left.saturating_sub(1);
        self.stats.borrow_mut().abandoned += abandoned;
        next
    }

    /// Refuses what waits for reads that take too long; if the device can do nothing else, all that waits.
    fn refuse_hung(&self) {
        let now = self.clock.now();
        let (mut refused, mut hung) = (Vec::new(), 0);
        for read in self.reading.borrow_mut().values_mut() {
            if u128::from(now.saturating_sub(read.begun)) >= self.read_time_max.as_nanos() {
                hung += 1;
                refused.append(&mut read.places);
            }
        }
        if hung >= self.slots {
            refused.extend(std::iter::from_fn(|| self.queue.borrow_mut().pop()));
        }
        refused.into_iter().for_each(|place| self.refuse(place.waiter, Refusal::Hangs));
    }

    /// Drops what waits, and lets nothing wait any more: operations know the shard that has the desk.
    pub fn close(&self) {
        self.is_closed.set(true);
        let mut dropped: Vec<Place> = std::iter::from_fn(|| self.queue.borrow_mut().pop()).collect();
        dropped.extend(self.reading.take().into_values().flat_map(|read| read.places));
    }

    /// Hands blocks to the thread that writes.
    pub fn write(&self, tier: &mut Tier) {
        while let Some(block) = tier.take_write() {
            let offset = self.part + block.offset;
            self.pool.write(block, offset, self.done.clone());
        }
    }

    /// Returns counters, and what waits.
    pub fn stats(&self) -> DeskStats {
        let stats = self.stats.borrow();
        DeskStats {
            served: stats.served,
            refused: stats.refused,
            abandoned: stats.abandoned,
            lengths: self.queue.borrow().lengths(),
            reading: self.reading.borrow().len(),
            bytes: self.for_requests.taken() + self.for_connections.taken() + self.for_copies.taken(),
            waits: stats.waits.clone(),
        }
    }

    fn note(&self, place: &Place) -> Waited {
        let now = self.clock.now();
        let (queued, read) = (place.begun.saturating_sub(place.since), now.saturating_sub(place.begun));
        let mut stats = self.stats.borrow_mut();
        stats.served += 1;
        let class = rank_class(place.tag.rank);
        if stats.waits.len() <= class {
            stats.waits.resize_with(class + 1, Waits::default);
        }
        stats.waits[class].queued.record(queued, 1);
        stats.waits[class].read.record(read, 1);
        let micros = |nanos: u64| u32::try_from(nanos / 1000).unwrap_or(u32::MAX);
        Waited { queued_micros: micros(queued), read_micros: micros(read) }
    }

    /// Logs an error of the device, unless one was logged a moment ago.
    fn log(&self, what: &'static str, error: &std::io::Error, now: u32) {
        if self.logged.get().is_none_or(|logged| now.saturating_sub(logged) >= LOG_SECONDS) {
            self.logged.set(Some(now));
            tracing::error!(what, %error, "the tier's device fails; the items are lost");
        }
    }
}

/// What an operation does next.
enum Next {
    /// It runs; this record is held for it.
    Serve(Option<Ticket>),
    /// It waits for a read that has begun.
    Wait,
}

/// Begins as many reads as the device may have, in the order of the queue, and serves operations whose records are in
/// memory by now. The store must not be in use.
pub(crate) fn advance<S: Store + 'static>(shard: &Rc<Shard<S>>) {
    let Some(desk) = shard.desk() else { return };
    let released = std::mem::take(&mut *desk.released.borrow_mut());
    if let Some(tier) = shard.store.borrow_mut().tier_mut() {
        released.iter().for_each(|ticket| tier.release(ticket));
        desk.write(tier);
    }
    let mut left = TURN_PLACES_MAX;
    while desk.reading.borrow().len() < desk.slots {
        if left == 0 {
            // The task goes on. It is gone only if the core ends.
            let _ = desk.done.send(Done::Again);
            return;
        }
        let Some(mut place) = desk.next(&mut left) else { return };
        place.begun = desk.clock.now();
        begin(shard, desk, place);
    }
}

/// Begins the read of an operation, joins one that is in progress, or serves the operation.
fn begin<S: Store + 'static>(shard: &Rc<Shard<S>>, desk: &Desk, mut place: Place) {
    if place.waiter.is_over() {
        desk.stats.borrow_mut().abandoned += 1;
        return;
    }
    let next = {
        let mut store = shard.store.borrow_mut();
        let Some(tier) = store.tier_mut() else { return };
        match tier.locate(place.ticket.hash(), shard.now()) {
            Located::Nowhere => Next::Serve(None),
            Located::Here => Next::Serve(tier.hold(place.ticket.hash())),
            Located::Device(ticket) => {
                place.ticket = ticket;
                let reading = desk.reading.borrow();
                if !reading.contains_key(&ticket.place()) {
                    desk.pool.read(ticket, desk.part + tier.offset(&ticket), desk.done.clone());
                }
                Next::Wait
            }
        }
    };
    match next {
        Next::Wait => {
            let mut reading = desk.reading.borrow_mut();
            let read = reading.entry(place.ticket.place());
            read.or_insert_with(|| Read { begun: desk.clock.now(), places: Vec::new() }).places.push(place);
        }
        Next::Serve(ticket) => serve(shard, desk, place, ticket),
    }
}

/// Serves an operation, unless its caller has gone meanwhile: a change would be made that nobody hears of.
fn serve<S: Store + 'static>(shard: &Rc<Shard<S>>, desk: &Desk, place: Place, staged: Option<Ticket>) {
    let hold = staged.map(|ticket| Hold { ticket, release: release(shard, desk) });
    if place.waiter.is_over() {
        desk.stats.borrow_mut().abandoned += 1;
        return;
    }
    let waited = desk.note(&place);
    place.waiter.serve(hold, waited);
}

/// Returns what releases a record, at once if the store is not in use.
fn release<S: Store + 'static>(shard: &Rc<Shard<S>>, desk: &Desk) -> Rc<dyn Fn(&Ticket)> {
    let (weak, later): (Weak<Shard<S>>, _) = (Rc::downgrade(shard), desk.released.clone());
    Rc::new(move |ticket| {
        let Some(shard) = weak.upgrade() else { return };
        match shard.store.try_borrow_mut() {
            Ok(mut store) => store.tier_mut().into_iter().for_each(|tier| tier.release(ticket)),
            Err(_) => later.borrow_mut().push(*ticket),
        };
    })
}

/// Closes the desk when the task ends that attends it.
struct Closing<S: Store>(Rc<Shard<S>>);

impl<S: Store> Drop for Closing<S> {
    fn drop(&mut self) {
        self.0.desk().into_iter().for_each(Desk::close);
    }
}

/// Serves operations as their records arrive, as long as the core lives. A task of its thread.
pub(crate) async fn attend<S: Store + 'static>(shard: Rc<Shard<S>>) {
    let Some(mut finished) = shard.desk().and_then(|desk| desk.finished.take()) else { return };
    let closing = Closing(shard);
    let shard = &closing.0;
    while let Some(desk) = shard.desk() {
        match timeout(desk.read_time_max / LOOKS, finished.recv()).await {
            Ok(None) => return,
            // Other tasks have their turn first.
            Ok(Some(Done::Again)) => tokio::task::yield_now().await,
            Ok(Some(done)) => finish(shard, desk, done),
            Err(_) => {}
        }
        // After a pause of the process, what was read during it does not hang.
        while let Ok(done) = finished.try_recv() {
            finish(shard, desk, done);
        }
        desk.refuse_hung();
        advance(shard);
    }
}

fn finish<S: Store + 'static>(shard: &Rc<Shard<S>>, desk: &Desk, done: Done) {
    match done {
        Done::Written(number, result) => {
            if let Err(error) = &result {
                desk.log("write", error, shard.now());
            }
            if let Some(tier) = shard.store.borrow_mut().tier_mut() {
                tier.written(number, result.is_ok());
            }
        }
        Done::Read(ticket, result) => arrive(shard, desk, ticket, result),
        Done::Again => {}
    }
}

fn arrive<S: Store + 'static>(shard: &Rc<Shard<S>>, desk: &Desk, ticket: Ticket, result: std::io::Result<Vec<u8>>) {
    if let Err(error) = &result {
        desk.log("read", error, shard.now());
    }
    let places = desk.reading.borrow_mut().remove(&ticket.place()).map(|read| read.places).unwrap_or_default();
    let arrival = match shard.store.borrow_mut().tier_mut() {
        // One hold more, so that the record is released even if nobody waits for it.
        Some(tier) => tier.arrived(&ticket, result.ok(), places.len() + 1),
        None => return,
    };
    for place in places {
        match arrival {
            Arrival::Staged => serve(shard, desk, place, Some(ticket)),
            Arrival::Lost => serve(shard, desk, place, None),
            // The item may have another record by now.
            Arrival::Outdated => begin(shard, desk, place),
        }
    }
    if arrival == Arrival::Staged
        && let Some(tier) = shard.store.borrow_mut().tier_mut()
    {
        tier.release(&ticket);
    }
}

/// What a read costs: one for the access, and one for each [`UNIT_BYTES`] that it moves. By the server's own word: a
/// client that could lie about it would decide what others pay.
pub(super) fn cost(bytes: usize) -> u32 {
    u32::try_from(1 + bytes / UNIT_BYTES).unwrap_or(u32::MAX)
}

/// Tells a task that its record has arrived.
struct Knock(oneshot::Sender<Result<Option<Hold>, Refusal>>);

impl Waiter for Knock {
    fn is_over(&self) -> bool {
        self.0.is_closed()
    }

    fn serve(self: Box<Self>, hold: Option<Hold>, _: Waited) {
        // The task may be gone.
        let _ = self.0.send(Ok(hold));
    }

    fn refuse(self: Box<Self>, why: Refusal) {
        let _ = self.0.send(Err(why));
    }
}

/// The device has not read a record for a long time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the device of the tier does not answer: a read takes longer than {} seconds", READ_TIME_MAX.as_secs())]
pub struct DeviceHangs;

/// Waits until the records of these tickets have been read, and returns what keeps them staged. Waits in line for room
/// and for its turn, however long that takes; but not for a device that does not answer.
pub(crate) fn fetch<S: Store + 'static>(
    shard: &Rc<Shard<S>>,
    tickets: Vec<Ticket>,
    client: u64,
) -> impl Future<Output = Result<Holds, DeviceHangs>> + use<S> {
    let shard = shard.clone();
    async move {
        let Some(desk) = shard.desk() else { return Ok(Holds::default()) };
        let (rank, reserved) = (desk.rank(None, tickets.len()), desk.for_connections.wait(client, &tickets).await);
        let mut waiting = Vec::with_capacity(tickets.len());
        for ticket in tickets {
            let (knock, knocked) = oneshot::channel();
            desk.push(Parcel { ticket, rank, client, waiter: Box::new(Knock(knock)) });
            waiting.push(knocked);
        }
        advance(&shard);
        let (mut holds, mut is_refused) = (Vec::new(), false);
        for knocked in waiting {
            match knocked.await {
                Ok(Ok(hold)) => holds.extend(hold),
                Ok(Err(Refusal::Full)) => is_refused = true,
                // Its place was dropped with the desk.
                Ok(Err(Refusal::Hangs)) | Err(_) => return Err(DeviceHangs),
            }
        }
        if is_refused {
            tokio::time::sleep(PLACE_WAIT).await;
        }
        Ok(Holds { holds, reserved: Some(reserved) })
    }
}
