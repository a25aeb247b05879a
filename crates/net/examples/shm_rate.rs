//! How fast the shared-memory transport moves packets between two threads, compared with bare shared memory.
//!
//! `cargo run --release -p dunlin-net --example shm_rate [SECONDS-PER-CASE]`, on a machine with two idle processors.
//! Each case is measured in slices; if other work takes the processors away, the best slice is more telling than the
//! median.

use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dunlin_net::shm::{ShmConfig, ShmTransport, raw};
use dunlin_net::{NetError, Route, Transport, TxPacket};

/// Slices each case is measured in.
const SLICES: u32 = 9;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(0.9), |text| text.parse())?;
    let slice = Duration::from_secs_f64(seconds) / SLICES;
    let cpus = Some([0, 1]);
    println!("{:42} {:>8} {:>8} {:>8}", "", "median", "min", "max");
    report("bare ping-pong, p50, ns", || Ok(p50(raw::ping_pong(cpus, slice)?)))?;
    report("bare ring of 64 B, ping-pong, p50, ns", || Ok(p50(raw::ring_ping_pong(cpus, slice)?)))?;
    report("ping-pong of 48 B, p50, ns", || Ok(p50(ping_pong(slice)?)))?;
    report("asleep, ping-pong of 48 B, p50, ns", || Ok(p50(ping_pong_asleep(slice)?)))?;
    report("bare ring of 64 B, M messages/s", || Ok(raw::ring_rate(cpus, slice)? / 1e6))?;
    for burst in [1, 3, 16, 32] {
        report(&format!("48 B, bursts of {burst}, M packets/s"), || Ok(one_way(48, burst, 1024, slice)? / 1e6))?;
    }
    for burst in [1, 4, 32] {
        let gbits = |packets_per_s: f64| packets_per_s * 8192.0 * 8.0 / 1e9;
        let name = format!("8 KiB, bursts of {burst}, 32 in flight, Gbit/s");
        report(&name, || Ok(gbits(one_way(8192 + 16, burst, 32, slice)?)))?;
    }
    Ok(())
}

fn report(name: &str, measure: impl Fn() -> Result<f64, NetError>) -> Result<(), NetError> {
    let mut values = (0..SLICES).map(|_| measure()).collect::<Result<Vec<_>, _>>()?;
    values.sort_unstable_by(f64::total_cmp);
    println!("{name:42} {:8.1} {:8.1} {:8.1}", values[values.len() / 2], values[0], values[values.len() - 1]);
    Ok(())
}

/// Two endpoints, each with a route to the other.
fn pair() -> Result<[(ShmTransport, Route); 2], NetError> {
    let config = ShmConfig::anonymous();
    let (mut a, mut b) = (ShmTransport::new(&config)?, ShmTransport::new(&config)?);
    let to_b = a.resolve(&b.local_addr())?;
    let to_a = b.resolve(&a.local_addr())?;
    Ok([(a, to_b), (b, to_a)])
}

/// Round trips of 48 B, both sides polling. They pause between polls: polling as fast as possible delays the very cache
/// line that is polled, by about a third here.
fn ping_pong(duration: Duration) -> Result<Vec<u64>, NetError> {
    let [(mut a, to_b), (mut b, to_a)] = pair()?;
    let stop = AtomicBool::new(false);
    let packet = [7u8; 48];
    Ok(thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            let mut echo = [0u8; 48];
            while !stop.load(Ordering::Relaxed) {
                let count = b.rx_burst();
                if count == 0 {
                    spin_loop();
                }
                for i in 0..count {
                    b.rx_packet(i).copy_to(0, &mut echo);
                    b.tx_burst(&[TxPacket { route: to_a, header: &echo[..16], payload: &echo[16..] }]);
                }
            }
        });
        pin(0);
        let mut samples = Vec::new();
        let end = a.now() + duration.as_nanos() as u64;
        let mut before = a.now();
        while before < end {
            a.tx_burst(&[TxPacket { route: to_b, header: &packet[..16], payload: &packet[16..] }]);
            while a.rx_burst() == 0 {
                spin_loop();
            }
            let now = a.now();
            samples.push(now - before);
            before = now;
        }
        stop.store(true, Ordering::Relaxed);
        samples
    }))
}

/// The same, but both sides sleep whenever there is nothing to receive.
fn ping_pong_asleep(duration: Duration) -> Result<Vec<u64>, NetError> {
    let [(mut a, to_b), (mut b, to_a)] = pair()?;
    let stop = AtomicBool::new(false);
    let packet = |route| [TxPacket { route, header: &[7; 48], payload: &[] }];
    Ok(thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            while !stop.load(Ordering::Relaxed) {
                match b.rx_burst() {
                    0 => b.wait(Duration::from_millis(10)),
                    _ => b.tx_burst(&packet(to_a)),
                }
            }
        });
        pin(0);
        let mut samples = Vec::new();
        let start = Instant::now();
        while start.elapsed() < duration {
            let before = a.now();
            a.tx_burst(&packet(to_b));
            while a.rx_burst() == 0 {
                a.wait(Duration::from_millis(10));
            }
            samples.push(a.now() - before);
        }
        stop.store(true, Ordering::Relaxed);
        samples
    }))
}

/// Packets per second: packets of `len` bytes in bursts of `burst`, at most `window` in flight; the receiver copies
/// each into private memory and returns one short packet for every eighth of the window.
fn one_way(len: usize, burst: usize, window: usize, duration: Duration) -> Result<f64, NetError> {
    let [(mut a, to_b), (mut b, to_a)] = pair()?;
    let stop = AtomicBool::new(false);
    let per_credit = (window / 8).max(1);
    let packet = vec![7u8; len];
    Ok(thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            let packets = vec![TxPacket { route: to_b, header: &packet[..16], payload: &packet[16..] }; burst];
            let mut in_flight = 0;
            while !stop.load(Ordering::Relaxed) {
                if in_flight + burst <= window {
                    a.tx_burst(&packets);
                    in_flight += burst;
                }
                if in_flight + burst > window {
                    in_flight -= a.rx_burst() * per_credit;
                }
            }
        });
        pin(0);
        let mut to = vec![0u8; len];
        let (mut received, mut credited) = (0, 0);
        let start = Instant::now();
        while start.elapsed() < duration {
            for _ in 0..64 {
                let count = b.rx_burst();
                for i in 0..count {
                    b.rx_packet(i).copy_to(0, &mut to);
                    black_box(&mut to);
                }
                received += count;
                while received - credited >= per_credit {
                    credited += per_credit;
                    b.tx_burst(&[TxPacket { route: to_a, header: b"credit", payload: &[] }]);
                }
            }
        }
        let elapsed = start.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        received as f64 / elapsed
    }))
}

fn p50(mut samples: Vec<u64>) -> f64 {
    samples.sort_unstable();
    samples[samples.len() / 2] as f64
}

/// Keeps the calling thread on one processor; without that the results only scatter more.
fn pin(cpu: usize) {
    // SAFETY: the set is plain data that lives through the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}
