//! The peers an endpoint has resolved: their mapped regions, its slot in each, and the routes to them.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::addr::{Addr, ShmName};
use crate::error::NetError;
use crate::shm::backing::BulkBacking;
use crate::shm::bell::{self, Bell};
use crate::shm::file;
use crate::shm::layout::header;
use crate::shm::lock::{self, OWNER_BYTE};
use crate::shm::mapping::Mapping;
use crate::shm::region::{Identity, Region};
use crate::shm::sender::Sender;
use crate::transport::Route;

/// Largest part of a peer's region whose pages are mapped at once: above it, the first packets take page faults.
const POPULATED_BYTES_MAX: u64 = 16 << 20;

/// The region of a peer, with a sender slot in it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) sender: Sender,
    /// Holds the lock of the slot.
    file: Arc<File>,
    name: ShmName,
    nonce: u64,
    /// Callers that use its route.
    users: u32,
    /// Whether it was found dead; it stays so.
    is_dead: bool,
}

impl Peer {
    /// Maps the region of a live endpoint and takes a sender slot in it.
    ///
    /// # Errors
    /// [`NetError::NotFound`], [`NetError::Full`] if all slots are taken, [`NetError::BadRegion`], [`NetError::Io`].
    pub(crate) fn open(directory: &Path, name: &ShmName, own: &Identity, seat: Seat) -> Result<Self, NetError> {
        let path = file::path_of(directory, name);
        let not_found = || NetError::NotFound { addr: Addr::Shm(name.clone()) };
        let io = |doing: &'static str| {
            let path = path.display().to_string();
            move |cause| NetError::Io { doing: format!("{doing} region {path}"), cause }
        };
        let file = file::open(&path)?.ok_or_else(not_found)?;
        if !lock::is_locked(&file, OWNER_BYTE) {
            return Err(not_found());
        }
        let bad = |why: String| NetError::BadRegion { path: path.display().to_string(), why };
        let bytes = file.metadata().map_err(io("stat"))?.len();
        if bytes < header::BYTES as u64 {
            return Err(bad(format!("it has only {bytes} bytes")));
        }
        let header = Mapping::of_file(&file, header::BYTES).map_err(io("map"))?;
        let layout = Region::read_layout(&header, bytes).map_err(bad)?;
        let map = Mapping::of_file(&file, layout.file_bytes).map_err(io("map"))?;
        let region = Region::new(Arc::new(map), layout);
        let slot = take_slot(&file, layout.sizes.senders_max as u16, seat).map_err(io("lock a sender slot of"))?;
        let slot = slot.ok_or(NetError::Full {
            what: "the table of senders of the endpoint to be resolved",
            limit: layout.sizes.senders_max as usize,
        })?;
        let nonce = region.nonce();
        let file = Arc::new(file);
        let bell = Bell::At(bell::path_of(&path, nonce));
        let backing = BulkBacking::of_file(file.clone(), path, &layout);
        let sender = Sender::new(region, backing, bell, slot, own);
        Ok(Peer { sender, file, name: name.clone(), nonce, users: 1, is_dead: false })
    }

    /// Maps the pages of its region that packets use, if it has them: they would be charged to this process otherwise,
    /// and any size may stand in the region of another.
    fn populate(&self) {
        let region = self.sender.region();
        let bytes = region.layout().hot_bytes() as u64;
        let has_them = self.file.metadata().is_ok_and(|file| file.blocks() * 512 >= bytes);
        if has_them && bytes <= POPULATED_BYTES_MAX {
            region.populate();
        }
    }

    /// Asks the system whether the endpoint lives, unless it is known to be dead.
    pub(crate) fn is_dead(&mut self) -> bool {
        if !self.is_dead {
            let is_closed = self.sender.region().closed().load(Ordering::Acquire) != 0;
            self.is_dead = is_closed || !lock::is_locked(&self.file, OWNER_BYTE);
        }
        self.is_dead
    }

    /// Whether [`Peer::is_dead`] has found it dead. Costs nothing.
    #[inline]
    pub(crate) fn is_known_dead(&self) -> bool {
        self.is_dead
    }
}

/// The slot that a sender wants.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Seat {
    /// The first free one.
    First,
    /// The one that this number selects, or the next free one: for a sender of a single packet. Its name is lost if
    /// another sender takes the slot before the packet is received, so such senders spread over half of the slots, and
    /// lasting ones prefer the other half.
    Passing(u64),
}

/// Takes the lock of a free slot.
fn take_slot(file: &File, senders_max: u16, seat: Seat) -> std::io::Result<Option<u16>> {
    let first = match seat {
        Seat::First => 0,
        Seat::Passing(number) => {
            let half = senders_max / 2;
            half + (number % u64::from(senders_max - half)) as u16
        }
    };
    for slot in (first..senders_max).chain(0..first) {
        if lock::try_lock(file, lock::slot_byte(slot))? {
            return Ok(Some(slot));
        }
    }
    Ok(None)
}

/// The table of peers; a route is an index into it.
#[derive(Debug)]
pub(crate) struct Peers {
    table: Vec<Option<Peer>>,
    vacant: Vec<u32>,
    limit: usize,
    by_name: HashMap<ShmName, Route>,
    by_nonce: HashMap<u64, Route>,
}

impl Peers {
    pub(crate) fn new(limit: usize) -> Self {
        Peers { table: Vec::new(), vacant: Vec::new(), limit, by_name: HashMap::new(), by_nonce: HashMap::new() }
    }

    /// The peer at a route in use.
    #[inline]
    pub(crate) fn get_mut(&mut self, route: Route) -> Option<&mut Peer> {
        self.table.get_mut(route.0 as usize)?.as_mut()
    }

    /// The route to the incarnation whose region has this nonce.
    pub(crate) fn by_nonce(&self, nonce: u64) -> Option<Route> {
        self.by_nonce.get(&nonce).copied()
    }

    /// The live peer with that name, if it is resolved. A peer that is found dead loses its name to the next peer with
    /// that name, but keeps its route until that is released.
    pub(crate) fn live(&mut self, name: &ShmName) -> Option<(Route, &mut Peer)> {
        let route = *self.by_name.get(name)?;
        if self.get_mut(route)?.is_dead() {
            self.by_name.remove(name);
            return None;
        }
        self.get_mut(route).map(|peer| (route, peer))
    }

    /// Finds or opens the endpoint of that name and counts one more user of its route.
    pub(crate) fn resolve(&mut self, directory: &Path, name: &ShmName, own: &Identity) -> Result<Route, NetError> {
        if let Some((route, peer)) = self.live(name) {
            peer.users += 1;
            return Ok(route);
        }
        if self.vacant.is_empty() && self.table.len() >= self.limit {
            return Err(NetError::Full { what: "the table of routes", limit: self.limit });
        }
        let peer = Peer::open(directory, name, own, Seat::First)?;
        peer.populate();
        let route = Route(self.vacant.pop().unwrap_or(self.table.len() as u32));
        self.by_name.insert(name.clone(), route);
        self.by_nonce.insert(peer.nonce, route);
        if route.0 as usize == self.table.len() {
            self.table.push(None);
        }
        self.table[route.0 as usize] = Some(peer);
        Ok(route)
    }

    /// Counts one user fewer; returns whether it was the last and the peer was unmapped.
    pub(crate) fn release(&mut self, route: Route) -> bool {
        let Some(peer) = self.get_mut(route) else { return false };
        peer.users -= 1;
        if peer.users > 0 {
            return false;
        }
        let (name, nonce) = (peer.name.clone(), peer.nonce);
        self.table[route.0 as usize] = None;
        self.vacant.push(route.0);
        if self.by_name.get(&name) == Some(&route) {
            self.by_name.remove(&name);
        }
        if self.by_nonce.get(&nonce) == Some(&route) {
            self.by_nonce.remove(&nonce);
        }
        true
    }
}
