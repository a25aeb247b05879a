//! How fast the shared-memory transport moves packets between two threads, beside what bare shared memory does.
//!
//! `cargo run --release -p dunlin-net --example shm_rate [SECONDS-PER-CASE]`, on a machine with two processors to spare.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dunlin_net::shm::{ShmConfig, ShmTransport, raw};
use dunlin_net::{NetError, Route, Transport, TxPacket};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(1.0), |text| text.parse())?;
    let duration = Duration::from_secs_f64(seconds);
    let cpus = Some([0, 1]);
    let (p50, p99) = percentiles(raw::ping_pong(cpus, duration)?);
    println!("bare ping-pong                 p50 {p50} ns, p99 {p99} ns");
    println!("bare ring of 64 B              {:6.1} M messages/s", raw::ring_rate(cpus, duration)? / 1e6);
    let (p50, p99) = percentiles(ping_pong(duration)?);
    println!("ping-pong of 48 B              p50 {p50} ns, p99 {p99} ns");
    for burst in [1, 3, 16, 32] {
        let flow = one_way(48, burst, 1024, duration)?;
        println!("one way 48 B, bursts of {burst:2}     {:6.1} M packets/s", flow.packets_per_s / 1e6);
    }
    for (burst, window) in [(1, 32), (4, 32), (32, 32)] {
        let flow = one_way(8192 + 16, burst, window, duration)?;
        let gbits = flow.packets_per_s * 8192.0 * 8.0 / 1e9;
        println!("one way 8 KiB, bursts of {burst:2}, {window} in flight {gbits:6.1} Gbit/s");
    }
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

fn ping_pong(duration: Duration) -> Result<Vec<u64>, NetError> {
    let [(mut a, to_b), (mut b, to_a)] = pair()?;
    let stop = AtomicBool::new(false);
    let packet = [7u8; 48];
    Ok(thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            let mut echo = [0u8; 48];
            while !stop.load(Ordering::Relaxed) {
                for i in 0..b.rx_burst() {
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
            while a.rx_burst() == 0 {}
            let now = a.now();
            samples.push(now - before);
            before = now;
        }
        stop.store(true, Ordering::Relaxed);
        samples
    }))
}

struct Flow {
    packets_per_s: f64,
}

/// Packets of `len` bytes in bursts of `burst`, at most `window` in flight; the receiver copies each into private memory and
/// returns one short packet for every eighth of the window.
fn one_way(len: usize, burst: usize, window: usize, duration: Duration) -> Result<Flow, NetError> {
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
                    std::hint::black_box(&mut to);
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
        Flow { packets_per_s: received as f64 / elapsed }
    }))
}

fn percentiles(mut samples: Vec<u64>) -> (u64, u64) {
    samples.sort_unstable();
    (samples[samples.len() / 2], samples[samples.len() * 99 / 100])
}

/// Keeps the calling thread on one processor; without that the figures only scatter more.
fn pin(cpu: usize) {
    // SAFETY: the set is plain data that lives through the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}
