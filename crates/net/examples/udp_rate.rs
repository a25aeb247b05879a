//! What the UDP transport achieves, compared with bare system calls: `cargo run --release -p dunlin-net --example
//! udp_rate`.
//!
//! Pins the two ends to cores 0 and 1. Every result comes from a short run; on a busy machine, allow for noise.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dunlin_net::udp::raw::{self, Half, Method};
use dunlin_net::udp::{Coalesce, Connect, Offload, UdpConfig, UdpTransport};
use dunlin_net::{NetError, Transport, TxPacket};

const RUN: Duration = Duration::from_millis(400);
const HEADER: [u8; 16] = [1; 16];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let only = std::env::args().nth(1).unwrap_or_default();
    if only.is_empty() || only == "latency" {
        for _ in 0..3 {
            let raw_ns = raw::ping_pong(48, RUN, pin)?;
            println!(
                "ping-pong 48 B: raw {} transport {}",
                percentiles(raw_ns),
                percentiles(ping_pong(48, Connect::Auto)?)
            );
            println!("    on unconnected sockets: {}", percentiles(ping_pong(48, Connect::Off)?));
        }
    }
    if only.is_empty() || only == "small" {
        for burst in [1, 11, 32, 60] {
            let bare = raw::one_way(Method::Offload(burst), 48, RUN, pin)?.packets_per_second();
            let ours = one_way(48, burst, |_| ())?;
            println!("one way 48 B x {burst}: bare offload {:.2} M/s, transport {ours}", bare * 1e-6);
        }
        let mtu = |c: &mut UdpConfig| c.mtu = Some(1470);
        println!("one way 48 B x 60 in 1472 B datagrams: {}", one_way(48, 60, mtu)?);
        let split = |c: &mut UdpConfig| c.coalesce = Coalesce::Off;
        println!("one way 48 B x 60, not coalesced: {}", one_way(48, 60, split)?);
        let plain = |c: &mut UdpConfig| (c.gso, c.gro, c.coalesce) = (Offload::Off, Offload::Off, Coalesce::Off);
        println!("one way 48 B x 60, nothing batched: {}", one_way(48, 60, plain)?);
        let bare = raw::one_way(Method::Plain, 48, RUN, pin)?.packets_per_second();
        println!("bare plain 48 B: {:.2} M/s", bare * 1e-6);
        let bare = raw::one_way(Method::Batched(32), 48, RUN, pin)?.packets_per_second();
        println!("bare sendmmsg 48 B x 32: {:.2} M/s", bare * 1e-6);
    }
    if only.is_empty() || only == "large" {
        println!(
            "bare offload 7 x 9354 B: {:.1} Gbit/s",
            raw::one_way(Method::Offload(7), 9354, RUN, pin)?.gbit_per_second()
        );
        println!("one way 8208 B x 32: {}", one_way(8208, 32, |_| ())?);
        for mtu in [1470, 2046, 4092, 8224, 9352, 16369] {
            println!("one way {mtu} B x 32, full datagrams: {}", one_way(mtu, 32, |c| c.mtu = Some(mtu))?);
        }
    }
    Ok(())
}

/// What arrived at the receiver.
struct Arrived {
    packets: u64,
    bytes: u64,
    dropped: u64,
    elapsed: Duration,
}

impl std::fmt::Display for Arrived {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.elapsed.as_secs_f64();
        let (rate, gbit) = (self.packets as f64 * 1e-6 / seconds, self.bytes as f64 * 8e-9 / seconds);
        write!(f, "{rate:.2} M packets/s, {gbit:.1} Gbit/s, {} datagrams dropped by the kernel", self.dropped)
    }
}

fn transport(change: impl Fn(&mut UdpConfig)) -> Result<UdpTransport, NetError> {
    let mut config = UdpConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    change(&mut config);
    UdpTransport::bind(config)
}

fn one_way(size: usize, burst: usize, change: impl Fn(&mut UdpConfig)) -> Result<Arrived, NetError> {
    let (mut server, mut client) = (transport(&change)?, transport(&change)?);
    let route = client.resolve(&server.local_addr())?;
    let done = AtomicBool::new(false);
    let arrived = thread::scope(|scope| {
        let receiving = scope.spawn(|| {
            pin(Half::Server);
            let (mut first, mut last) = (None, Instant::now());
            while !done.load(Ordering::Relaxed) {
                for _ in 0..16 {
                    if server.rx_burst() > 0 {
                        last = Instant::now();
                        first.get_or_insert(last);
                    }
                }
            }
            let counters = server.counters();
            let elapsed = first.map_or(RUN, |first| last - first);
            Arrived {
                packets: counters.rx_packets,
                bytes: counters.rx_bytes,
                dropped: counters.rx_dropped_kernel,
                elapsed,
            }
        });
        pin(Half::Client);
        let payload = vec![2; size - HEADER.len()];
        let packets = vec![TxPacket { route, header: &HEADER, payload: &payload }; burst];
        let start = Instant::now();
        while start.elapsed() < RUN {
            for _ in 0..16 {
                client.tx_burst(&packets);
                client.tx_flush();
            }
        }
        done.store(true, Ordering::Relaxed);
        receiving.join().expect("the receiver does not panic")
    });
    Ok(arrived)
}

fn ping_pong(size: usize, connect: Connect) -> Result<Vec<u64>, NetError> {
    let (mut server, mut client) = (transport(|c| c.connect = connect)?, transport(|c| c.connect = connect)?);
    let route = client.resolve(&server.local_addr())?;
    let back = server.resolve(&client.local_addr())?;
    let done = AtomicBool::new(false);
    let mut samples = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(Half::Server);
            let payload = vec![2; size - HEADER.len()];
            while !done.load(Ordering::Relaxed) {
                for _ in 0..server.rx_burst() {
                    server.tx_burst(&[TxPacket { route: back, header: &HEADER, payload: &payload }]);
                }
                server.tx_flush();
            }
        });
        pin(Half::Client);
        let payload = vec![2; size - HEADER.len()];
        let end = client.now() + RUN.as_nanos() as u64;
        let mut start = client.now();
        while start < end {
            client.tx_burst(&[TxPacket { route, header: &HEADER, payload: &payload }]);
            client.tx_flush();
            while client.rx_burst() == 0 {
                if client.now() > end {
                    break;
                }
            }
            let now = client.now();
            samples.push(now - start);
            start = now;
        }
        done.store(true, Ordering::Relaxed);
    });
    Ok(samples)
}

fn percentiles(mut ns: Vec<u64>) -> String {
    ns.sort_unstable();
    let at = |percent: usize| ns[(ns.len() - 1) * percent / 100];
    format!("p50 {} ns, p99 {} ns ({} samples);", at(50), at(99), ns.len())
}

fn pin(half: Half) {
    let core = match half {
        Half::Server => 0,
        Half::Client => 1,
    };
    // SAFETY: a set of processors is a bit mask, for which zero is valid; the calls get a pointer to it and its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}
