//! Switches: routing, buffer admission and marking.

use dunlin_net::random::Random;

use super::link::Link;
use crate::engine::time::{Picos, from_nanos};
use crate::topology::{Buffer, Ecn, Forwarding, Switch as Settings};

/// The position of a switch, which determines its routing. Numbers are those of links.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Routing {
    /// The link to host `h` is `first_down + h`.
    Single { first_down: u16 },
    /// A ToR of the hosts from `first_host` on; its uplinks are numbered consecutively.
    Tor { first_host: u16, hosts: u16, first_down: u16, first_up: u16, uplinks: u16 },
    /// A spine. To each rack it has `parallel` links, the first of them at `first_down + rack * stride`.
    Spine { hosts_per_tor: u16, first_down: u16, stride: u16, parallel: u16 },
}

#[derive(Debug)]
pub(crate) struct Switch {
    routing: Routing,
    latency: Picos,
    forwarding: Forwarding,
    buffer: Buffer,
    ecn: Option<Ecn>,
    /// Its output ports.
    ports: Vec<u16>,
    /// An upper bound of the bytes queued at all its ports together. Queues drain without notice, so it is recomputed
    /// when it matters.
    queued_at_most: u64,
    /// Makes different switches choose different paths for the same flow.
    salt: u32,
}

/// The fate of a packet at a switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    Queued { marked: bool },
    Dropped,
}

impl Switch {
    pub fn new(settings: &Settings, routing: Routing, ports: Vec<u16>, salt: u32) -> Self {
        Switch {
            routing,
            latency: from_nanos(settings.latency_ns),
            forwarding: settings.forwarding,
            buffer: settings.buffer,
            ecn: settings.ecn,
            ports,
            queued_at_most: 0,
            salt,
        }
    }

    /// The link on which a packet to `host` leaves.
    #[inline]
    pub fn route(&self, host: u16, flow: u16, links: &[Link]) -> u16 {
        let (first, count) = match self.routing {
            Routing::Single { first_down } => return first_down + host,
            Routing::Tor { first_host, hosts, first_down, first_up, uplinks } => {
                let here = host.wrapping_sub(first_host);
                if here < hosts {
                    return first_down + here;
                }
                (first_up, uplinks)
            }
            Routing::Spine { hosts_per_tor, first_down, stride, parallel } => {
                (first_down + host / hosts_per_tor * stride, parallel)
            }
        };
        let hash = mix(u32::from(flow) ^ self.salt);
        let choice = first + below(hash, count);
        if !links[choice as usize].is_down { choice } else { self.route_around(first, count, hash, links) }
    }

    /// Chooses among the equal-cost links that are up, or the first if none is.
    #[cold]
    fn route_around(&self, first: u16, count: u16, hash: u32, links: &[Link]) -> u16 {
        let up = || (first..first + count).filter(|link| !links[*link as usize].is_down);
        match up().count() {
            0 => first,
            alive => up().nth(below(hash, alive as u16) as usize).unwrap_or(first),
        }
    }

    /// When the last bit of a packet that arrived now can leave, if no other packet is queued before it.
    ///
    /// Cut-through sends the head on after the latency, which is before now if the packet was long on the incoming
    /// wire. Its last bit cannot overtake the incoming one. If the outgoing link is slower, the last bit needs its own
    /// time behind the head.
    #[inline]
    pub fn earliest_departure(&self, now: Picos, time_in: Picos, time_out: Picos) -> Picos {
        match self.forwarding {
            Forwarding::CutThrough => now + self.latency + time_out.saturating_sub(time_in),
            Forwarding::StoreAndForward => now + self.latency + time_out,
        }
    }

    /// Decides whether a packet of `bytes` may join the queue of link `out`, and if so whether it is marked.
    #[inline]
    pub fn admit(&mut self, out: u16, bytes: u64, now: Picos, links: &[Link], random: &mut Random) -> Admission {
        let queued = links[out as usize].queued(now);
        let fits = match self.buffer {
            Buffer::PerPort { bytes: size } => queued + bytes <= size,
            Buffer::Shared { bytes: size, alpha } => self.shared_fits(queued, bytes, (size, alpha), now, links),
        };
        if !fits {
            return Admission::Dropped;
        }
        self.queued_at_most += bytes;
        Admission::Queued { marked: self.ecn.is_some_and(|ecn| marks(&ecn, queued + bytes, random)) }
    }

    #[inline]
    fn shared_fits(&mut self, queued: u64, bytes: u64, (size, alpha): (u64, f64), now: Picos, links: &[Link]) -> bool {
        let fits = |total: u64| {
            let free = size.saturating_sub(total);
            bytes <= free && (queued + bytes) as f64 <= alpha * free as f64
        };
        // If it fits with all queues at their upper bound, it fits.
        if fits(self.queued_at_most) {
            return true;
        }
        self.queued_at_most = self.ports.iter().map(|port| links[*port as usize].queued(now)).sum();
        fits(self.queued_at_most)
    }
}

/// Whether a packet that makes its queue `queued` bytes long is marked.
#[inline]
fn marks(ecn: &Ecn, queued: u64, random: &mut Random) -> bool {
    if queued <= ecn.kmin_bytes {
        return false;
    }
    if queued > ecn.kmax_bytes {
        return true;
    }
    // Above the minimum and not above the maximum, so they differ.
    let share = (queued - ecn.kmin_bytes) as f64 / (ecn.kmax_bytes - ecn.kmin_bytes) as f64;
    random.chance(share * ecn.pmax)
}

/// Mixes a hash: the finalizer of MurmurHash3.
fn mix(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x85eb_ca6b);
    x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}

/// Maps a hash to a number below `count`.
fn below(hash: u32, count: u16) -> u16 {
    ((u64::from(hash) * u64::from(count)) >> 32) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_begin_at_the_minimum_and_grow_to_the_maximum() {
        let ecn = Ecn { kmin_bytes: 10_000, kmax_bytes: 30_000, pmax: 0.4 };
        let mut random = Random::new(1);
        for (queued, probability) in
            [(0, 0.0), (10_000, 0.0), (15_000, 0.1), (20_000, 0.2), (30_000, 0.4), (30_001, 1.0)]
        {
            let marked = (0..10_000).filter(|_| marks(&ecn, queued, &mut random)).count();
            assert!((marked as f64 - 10_000.0 * probability).abs() < 200.0, "{marked} of 10,000 at {queued} B");
        }
        let step = Ecn { kmin_bytes: 10_000, kmax_bytes: 10_000, pmax: 0.5 };
        assert!(!marks(&step, 10_000, &mut random) && marks(&step, 10_001, &mut random));
    }

    #[test]
    fn a_buffer_that_drained_takes_packets_again() {
        use super::super::link::Node;
        let mut links = vec![Link::new(Node::Switch(0), Node::Host(0), 100, 0)];
        let settings = Settings { buffer: Buffer::Shared { bytes: 10_000, alpha: 1.0 }, ..Settings::default() };
        let mut switch = Switch::new(&settings, Routing::Single { first_down: 0 }, vec![0], 0);
        let mut random = Random::new(1);
        let mut fill = |now, links: &mut Vec<Link>| {
            let mut admitted = 0;
            while switch.admit(0, 1000, now, links, &mut random) != Admission::Dropped {
                links[0].enqueue(1000, now);
                admitted += 1;
            }
            admitted
        };
        // A packet fits while the queue, including it, is no longer than the free space without it.
        assert_eq!(fill(0, &mut links), 5);
        assert_eq!(fill(39_999, &mut links), 0);
        assert_eq!(fill(40_000, &mut links), 1);
        assert_eq!(fill(480_000, &mut links), 5);
    }
}
