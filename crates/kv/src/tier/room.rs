//! The memory for records that operations wait for: limited in all, and for each client. A core has one room for
//! requests, which are pushed back if there is none, and one for connections, which wait in line: requests would find
//! none as long as connections stand in line for it. Copies have a small one: they want much at once, and would find
//! none as long as requests take whatever becomes free.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Context;

use dunlin_store::tier::Ticket;

use crate::memcached::{Account, Held, MemoryPool};

/// Bytes of a room for requests or connections: several multi-gets of a client fit in its share.
pub(super) const BYTES_MAX: usize = 32 << 20;
/// Bytes of a room for copies: two of a client fit in its share.
pub(super) const COPY_BYTES_MAX: usize = 8 << 20;
/// A client may have one part in so many.
const CLIENTS_MIN: usize = 4;
/// What a record counts at least, so that there are no more of them than a queue has places.
const RECORD_BYTES_MIN: usize = 1 << 10;

/// A room of one core.
#[derive(Debug)]
pub(super) struct Room {
    pool: Rc<MemoryPool>,
    accounts: RefCell<HashMap<u64, Rc<Account>>>,
}

/// Room that is taken until this is dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    held: Held,
    room: Rc<Room>,
    client: u64,
}

impl Room {
    pub fn new(bytes_max: usize) -> Rc<Room> {
        Rc::new(Room {
            pool: MemoryPool::new(bytes_max, bytes_max / CLIENTS_MIN, &Rc::default()),
            accounts: RefCell::default(),
        })
    }

    /// Returns the bytes that are taken.
    pub fn taken(&self) -> usize {
        self.pool.held()
    }

    /// Takes room for these records and so many bytes more if there is some, and nobody waits for it.
    pub fn take(self: &Rc<Room>, client: u64, tickets: &[Ticket], more: usize) -> Option<Reserved> {
        let (mut reserved, bytes) = (self.nothing(client), bytes(tickets) + more);
        reserved.held.can_have(bytes).then(|| {
            reserved.held.set(bytes);
            reserved
        })
    }

    /// Waits in line for it: clients in turn, and those that have all of their share stop no other.
    pub async fn wait(self: &Rc<Room>, client: u64, tickets: &[Ticket]) -> Reserved {
        let (mut reserved, bytes) = (self.nothing(client), bytes(tickets));
        poll_fn(|context: &mut Context<'_>| reserved.held.poll_at_least(bytes, context)).await;
        reserved
    }

    fn nothing(self: &Rc<Room>, client: u64) -> Reserved {
        let mut accounts = self.accounts.borrow_mut();
        let account = accounts.entry(client).or_insert_with(|| Account::of(&self.pool));
        Reserved { held: Held::nothing(account), room: self.clone(), client }
    }
}

impl Reserved {
    /// Returns the number of the client that has it.
    pub fn client(&self) -> u64 {
        self.client
    }
}

fn bytes(tickets: &[Ticket]) -> usize {
    tickets.iter().map(|ticket| ticket.bytes().max(RECORD_BYTES_MIN)).sum()
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.held.set(0);
        let mut accounts = self.room.accounts.borrow_mut();
        // This one and the table's: nobody else of the client has any.
        if accounts.get(&self.client).is_some_and(|account| Rc::strong_count(account) <= 2) {
            accounts.remove(&self.client);
        }
    }
}
