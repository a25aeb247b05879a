//! [`ShmTransport`]: the parts put together behind the [`Transport`] trait.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::addr::{Addr, ShmName};
use crate::clock::{BootClock, Clock};
use crate::error::NetError;
use crate::poll::SLEEP_MAX;
use crate::shm::backing;
use crate::shm::bell::{self, BellName, OwnBell};
use crate::shm::burst::Senders;
use crate::shm::config::ShmConfig;
use crate::shm::file::{self, ANONYMOUS_PREFIX, OwnFile};
use crate::shm::futex::{self, AWAKE, Rung};
use crate::shm::layout::Layout;
use crate::shm::lock;
use crate::shm::mapping::Mapping;
use crate::shm::peers::{Peer, Peers, Seat};
use crate::shm::receiver::{Outlook, Receiver};
use crate::shm::region::{Identity, Region};
use crate::transport::{Arm, PeerHealth, Route, RxPacket, Transport, TransportCounters, TxPacket, Waker};

/// First sleep while packets that were set aside may still come, because a sender that dies does not wake the receiver.
/// As long as only such packets are awaited, each sleep may be twice as long as the previous one, up to [`SLEEP_MAX`].
/// A sender that publishes late does wake the receiver.
const FIRST_SLEEP_AT_HOLES: Duration = Duration::from_millis(1);

/// An endpoint in shared memory. See the [module](super) for how it works.
pub struct ShmTransport {
    receiver: Receiver,
    peers: Peers,
    counters: TransportCounters,
    identity: Identity,
    directory: PathBuf,
    /// Of [`ShmConfig`].
    prefetch_cells: usize,
    clock: Clock,
    wake: Arc<Wake>,
    senders_fence: bool,
    /// Number of the last sleep.
    sleeps: u32,
    /// Packets sent to endpoints that are not resolved.
    strangers: u64,
    /// Longest next sleep while packets that were set aside may still come.
    sleep_at_holes: Duration,
    /// Removed before the region whose nonce its name contains.
    bell_name: Option<BellName>,
    own_file: OwnFile,
}

impl ShmTransport {
    /// Creates the endpoint and its region.
    ///
    /// # Errors
    /// [`NetError::BadSetting`], [`NetError::InUse`] if a live endpoint has the name, [`NetError::BadRegion`] if a file
    /// that is not a region has it, [`NetError::Io`].
    pub fn new(config: &ShmConfig) -> Result<Self, NetError> {
        let layout = Layout::new(config.sizes()?).map_err(|(name, why)| NetError::BadSetting { name, why })?;
        let nonce = getrandom::u64().map_err(|e| NetError::Io {
            doing: "get random bytes".into(),
            cause: std::io::Error::other(e.to_string()),
        })?;
        let name = match &config.name {
            Some(name) => name.clone(),
            None => ShmName::new(&format!("{ANONYMOUS_PREFIX}{nonce:016x}"))?,
        };
        file::sweep(&config.directory);
        let unnamed = OwnFile::unnamed(&config.directory, layout.file_bytes as u64)?;
        backing::reserve(&unnamed, 0, layout.fixed_bytes()).map_err(|cause| {
            let (bytes, directory) = (layout.fixed_bytes(), config.directory.display());
            let doing =
                format!("reserve the {bytes} bytes that an endpoint needs in {directory} ({})", backing::ADVICE);
            NetError::Io { doing, cause }
        })?;
        let map = Mapping::of_file(&unnamed, layout.file_bytes)
            .map_err(|cause| NetError::Io { doing: format!("map the region of {name:?}"), cause })?;
        let region = Region::new(Arc::new(map), layout);
        region.populate();
        let senders_fence = !config.kernel_fences;
        region.init(nonce, senders_fence, config.first_ticket);
        let own_file = OwnFile::publish(unnamed, &config.directory, &name)?;
        Ok(ShmTransport {
            wake: Arc::new(Wake { asked: AtomicBool::new(false), region: region.clone(), bell: OnceLock::new() }),
            receiver: Receiver::new(region),
            peers: Peers::new(config.routes_max),
            counters: TransportCounters::default(),
            identity: Identity { name, nonce },
            directory: config.directory.clone(),
            prefetch_cells: config.prefetch_cells as usize,
            clock: Clock::new(),
            senders_fence,
            sleeps: 0,
            strangers: 0,
            sleep_at_holes: FIRST_SLEEP_AT_HOLES,
            bell_name: None,
            own_file,
        })
    }

    /// Writes into the region how this endpoint sleeps, looks at the queue once more, and returns how long it may
    /// sleep; `None` if it must not.
    fn begin_sleep(&mut self, word: u32, timeout: Duration) -> Option<Duration> {
        if self.wake.take() {
            return None;
        }
        let region = &self.wake.region;
        region.wait_word().store(word, Ordering::SeqCst);
        futex::fence_before_sleep(self.senders_fence);
        let outlook = self.receiver.outlook(&Known { peers: &self.peers, file: self.own_file.file() });
        let longest = self.sleep_at_holes;
        self.sleep_at_holes =
            if outlook == Outlook::Holes { (2 * longest).min(SLEEP_MAX) } else { FIRST_SLEEP_AT_HOLES };
        let timeout = match outlook {
            Outlook::Arrivals => Duration::ZERO,
            Outlook::Holes => timeout.min(longest),
            Outlook::Empty => timeout,
        };
        if self.wake.take() || timeout.is_zero() {
            region.wait_word().store(AWAKE, Ordering::SeqCst);
            return None;
        }
        self.counters.waits += 1;
        Some(timeout)
    }

    fn end_sleep(&mut self) {
        self.wake.take();
        self.wake.region.wait_word().store(AWAKE, Ordering::SeqCst);
    }

    fn name_of<'a>(&self, addr: &'a Addr) -> Result<&'a ShmName, NetError> {
        match addr {
            Addr::Shm(name) => Ok(name),
            other => Err(NetError::WrongKind { addr: other.clone(), transport: "shared memory" }),
        }
    }
}

impl Drop for ShmTransport {
    fn drop(&mut self) {
        self.receiver.region().closed().store(1, Ordering::SeqCst);
    }
}

/// Answers the receiver's questions: the locks say who is alive, the table of peers has the routes.
struct Known<'a> {
    peers: &'a Peers,
    file: &'a File,
}

impl Senders for Known<'_> {
    fn is_alive(&self, slot: u16) -> bool {
        lock::is_locked(self.file, lock::slot_byte(slot))
    }

    fn route_to(&self, nonce: u64) -> Option<Route> {
        self.peers.by_nonce(nonce)
    }
}

/// What a [`Waker`] needs; it keeps the region mapped after the endpoint is gone.
struct Wake {
    asked: AtomicBool,
    region: Region,
    /// Set for an endpoint that may sleep by descriptor.
    bell: OnceLock<OwnBell>,
}

impl Wake {
    fn wake(&self) {
        self.asked.store(true, Ordering::SeqCst);
        let word = self.region.wait_word();
        futex::wake(word, word.load(Ordering::SeqCst), || match self.bell.get() {
            Some(bell) => {
                bell.ring();
                Rung::Yes
            }
            None => Rung::No,
        });
    }

    /// Whether a wake-up was requested since the last call.
    fn take(&self) -> bool {
        self.asked.swap(false, Ordering::SeqCst)
    }
}

impl Transport for ShmTransport {
    fn mtu(&self) -> usize {
        self.receiver.region().layout().sizes.mtu as usize
    }

    fn rx_queue_len(&self) -> usize {
        self.receiver.region().layout().sizes.queue_len as usize
    }

    fn local_addr(&self) -> Addr {
        Addr::Shm(self.identity.name.clone())
    }

    fn is_local(&self) -> bool {
        true
    }

    fn resolve(&mut self, addr: &Addr) -> Result<Route, NetError> {
        let name = self.name_of(addr)?;
        let route = self.peers.resolve(&self.directory, name, &self.identity)?;
        self.receiver.forget_sources();
        Ok(route)
    }

    fn release(&mut self, route: Route) {
        if self.peers.release(route) {
            self.receiver.forget(route);
        }
    }

    fn peer_health(&mut self, route: Route) -> PeerHealth {
        match self.peers.get_mut(route).map(Peer::is_dead) {
            Some(false) => PeerHealth::Alive,
            Some(true) | None => PeerHealth::Dead,
        }
    }

    #[inline]
    fn tx_burst(&mut self, packets: &[TxPacket<'_>]) {
        for run in packets.chunk_by(|a, b| a.route == b.route) {
            match self.peers.get_mut(run[0].route) {
                Some(peer) if !peer.is_known_dead() => peer.sender.send(run, &mut self.counters),
                _ => self.counters.tx_dropped_error += run.len() as u64,
            }
        }
        if packets.len() > 1 {
            // By now as many answers to the previous burst are in the queue, or will be soon; to a single packet there
            // is none yet. Prefetch after sending, because sending would wait if more lines were requested than the
            // processor fetches at once.
            self.receiver.prefetch_next(packets.len().min(self.prefetch_cells));
        }
    }

    #[inline]
    fn tx_flush(&mut self) {}

    fn tx_to(&mut self, addr: &Addr, packet: &[u8]) -> Result<(), NetError> {
        let name = self.name_of(addr)?;
        let packet = [TxPacket { route: Route(u32::MAX), header: packet, payload: &[] }];
        if let Some((_, peer)) = self.peers.live(name) {
            peer.sender.send(&packet, &mut self.counters);
        } else {
            self.strangers = self.strangers.wrapping_add(1);
            let seat = Seat::Passing(self.identity.nonce.wrapping_add(self.strangers));
            Peer::open(&self.directory, name, &self.identity, seat)?.sender.send(&packet, &mut self.counters);
        }
        Ok(())
    }

    #[inline]
    fn rx_burst(&mut self) -> usize {
        let known = Known { peers: &self.peers, file: self.own_file.file() };
        self.receiver.rx_burst(&known, &mut self.counters)
    }

    #[inline]
    fn rx_packet(&self, i: usize) -> RxPacket<'_> {
        self.receiver.burst().packet(self.receiver.region(), i)
    }

    fn rx_source(&self, i: usize) -> Option<Addr> {
        let (slot, generation) = self.receiver.burst().origin(i);
        self.receiver.region().slot_name(slot, generation).map(Addr::Shm)
    }

    #[inline]
    fn now(&self) -> u64 {
        self.clock.now()
    }

    fn clock(&self) -> Option<Clock> {
        Some(self.clock.clone())
    }

    fn boot_clock(&self) -> BootClock {
        BootClock::of_system()
    }

    fn wait(&mut self, timeout: Duration) {
        self.sleeps = self.sleeps.wrapping_add(1);
        let asleep = futex::on_word(self.sleeps);
        if let Some(timeout) = self.begin_sleep(asleep, timeout) {
            futex::sleep(self.wake.region.wait_word(), asleep, timeout);
            self.end_sleep();
        }
    }

    fn wake_fd(&mut self) -> Result<OwnedFd, NetError> {
        if let Some(bell) = self.wake.bell.get() {
            return bell.fd();
        }
        let (bell, name) = OwnBell::hang(bell::path_of(self.own_file.path(), self.identity.nonce))?;
        self.bell_name = Some(name);
        self.wake.bell.get_or_init(|| bell).fd()
    }

    fn arm(&mut self, timeout: Duration) -> Arm {
        if self.wake.bell.get().is_none() {
            return Arm::Work;
        }
        self.sleeps = self.sleeps.wrapping_add(1);
        self.begin_sleep(futex::by_descriptor(self.sleeps), timeout).map_or(Arm::Work, Arm::Sleep)
    }

    fn disarm(&mut self) {
        self.end_sleep();
        if let Some(bell) = self.wake.bell.get() {
            bell.silence();
        }
    }

    fn waker(&self) -> Waker {
        let wake = self.wake.clone();
        Waker::new(move || wake.wake())
    }

    fn counters(&self) -> TransportCounters {
        let (rx_set_aside, rx_late) = self.receiver.set_aside();
        TransportCounters { rx_set_aside, rx_late, ..self.counters }
    }
}

impl std::fmt::Debug for ShmTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShmTransport").field("name", &self.identity.name).field("counters", &self.counters).finish()
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::time::Instant;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn pair(config: &ShmConfig) -> [(ShmTransport, Route); 2] {
        let (mut a, mut b) = (ShmTransport::new(config).unwrap(), ShmTransport::new(config).unwrap());
        let to_b = a.resolve(&b.local_addr()).unwrap();
        let to_a = b.resolve(&a.local_addr()).unwrap();
        [(a, to_b), (b, to_a)]
    }

    fn receive(at: &mut ShmTransport) {
        let before = Instant::now();
        while at.rx_burst() == 0 {
            at.wait(PATIENCE);
            assert!(before.elapsed() < PATIENCE, "a wake-up was lost");
        }
    }

    /// Each packet of one thread wakes the other, tens of thousands of times: after a lost wake-up the test would hang.
    #[test]
    fn no_wake_up_is_lost_whoever_fences() {
        const ROUNDS: u64 = 10_000;
        for kernel_fences in [false, futex::kernel_fences()] {
            let [(mut a, to_b), (mut b, to_a)] = pair(&ShmConfig { kernel_fences, ..ShmConfig::anonymous() });
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        receive(&mut b);
                        b.tx_burst(&[TxPacket { route: to_a, header: b"pong", payload: &[] }]);
                    }
                });
                for _ in 0..ROUNDS {
                    a.tx_burst(&[TxPacket { route: to_b, header: b"ping", payload: &[] }]);
                    receive(&mut a);
                }
            });
        }
    }

    /// Begins and ends sleeps until `count` of them began, and returns how long each may last.
    fn sleeps(at: &mut ShmTransport, count: usize) -> Vec<Duration> {
        let mut begun = Vec::new();
        while begun.len() < count {
            assert_eq!(at.rx_burst(), 0);
            begun.extend(at.begin_sleep(futex::on_word(1), Duration::from_secs(9)));
            at.end_sleep();
        }
        begun
    }

    #[test]
    fn an_idle_receiver_wakes_less_and_less_for_a_stopped_sender() {
        let [(a, to_b), (mut b, _)] = pair(&ShmConfig::anonymous());
        let mut other = ShmTransport::new(&ShmConfig::anonymous()).unwrap();
        let other_to_b = other.resolve(&b.local_addr()).unwrap();
        let mut stopped = [(a, to_b), (other, other_to_b)];
        let milliseconds = |sleeps: &[Duration]| sleeps.iter().map(|sleep| sleep.as_millis()).collect::<Vec<_>>();
        let mut late = Vec::new();
        for (from, route) in &mut stopped {
            late.push(from.peers.get_mut(*route).unwrap().sender.reserve(1).unwrap().first);
            assert_eq!(milliseconds(&sleeps(&mut b, 10)), [1, 2, 4, 8, 16, 32, 64, 100, 100, 100]);
        }
        let left = [Duration::from_millis(1), Duration::from_secs(9)];
        for (((from, route), ticket), left) in stopped.iter_mut().zip(late).zip(left) {
            from.peers.get_mut(*route).unwrap().sender.publish(ticket, 0, crate::shm::cell::NO_BULK);
            assert_eq!(b.begin_sleep(futex::on_word(1), Duration::from_secs(9)), None, "a late packet is there");
            assert_eq!(b.rx_burst(), 1);
            assert_eq!(sleeps(&mut b, 1), [left]);
        }
    }

    #[test]
    fn packet_numbers_wrap_between_endpoints() {
        for first_ticket in [u32::MAX as u64 - 1000, u64::MAX - 1000] {
            let [(mut a, to_b), (mut b, _)] =
                pair(&ShmConfig { first_ticket, queue_len: 64, ..ShmConfig::anonymous() });
            for i in 0..3000u16 {
                let bytes = i.to_le_bytes().repeat(1 + i as usize % 100);
                a.tx_burst(&[TxPacket { route: to_b, header: &bytes, payload: &[] }]);
                assert_eq!(b.rx_burst(), 1);
                assert_eq!(b.rx_packet(0).head(), &bytes[..b.rx_packet(0).head().len()]);
            }
        }
    }
}
