//! Measures how many packets per second of CPU time the simulator moves. Every thread of a cluster shaped like CX4
//! keeps a window of packets in flight to random other threads, most of them in other racks, and answers the packets it
//! receives.
//!
//! `cargo run --release -p dunlin-sim --example flood -- [HOSTS_PER_TOR] [THREADS] [VIRTUAL_MS] [PAYLOAD]`

use dunlin_net::random::Random;
use dunlin_net::{Route, Transport, TxPacket};
use dunlin_sim::topology::Layout;
use dunlin_sim::{CostModel, Datacenter, Next, SimTransport, Topology};

const WINDOW: usize = 20;
/// A thread that received nothing for this long considers its packets lost.
const TIMEOUT_NS: u64 = 1_000_000;

struct Flooder {
    transport: SimTransport,
    routes: Vec<Route>,
    random: Random,
    payload: Vec<u8>,
    in_flight: usize,
    last: u64,
}

impl Flooder {
    fn run(&mut self) -> Next {
        loop {
            let mut answers = Vec::new();
            let count = self.transport.rx_burst();
            for i in 0..count {
                let packet = self.transport.rx_packet(i);
                match packet.head()[0] {
                    0 => answers.extend(packet.route()),
                    _ => self.in_flight = self.in_flight.saturating_sub(1),
                }
            }
            let now = self.transport.now();
            if count > 0 {
                self.last = now;
            } else if now >= self.last + TIMEOUT_NS {
                (self.in_flight, self.last) = (0, now);
            }
            let mut packets: Vec<_> = answers
                .iter()
                .map(|route| TxPacket { route: *route, header: &[1; 16], payload: &self.payload })
                .collect();
            while self.in_flight < WINDOW {
                let route = self.routes[self.random.below(self.routes.len() as u64) as usize];
                packets.push(TxPacket { route, header: &[0; 16], payload: &self.payload });
                self.in_flight += 1;
            }
            if !packets.is_empty() {
                self.transport.tx_burst(&packets);
            }
            if count == 0 {
                return Next::OnPacket { or_at: Some(self.last + TIMEOUT_NS) };
            }
        }
    }
}

/// CPU time of this process, to a hundredth of a second: other load on the machine affects it less than real time.
fn cpu_seconds() -> Result<f64, Box<dyn std::error::Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // After the name, which is in parentheses: the 12th and 13th fields are ticks of user and system time, 100 a
    // second.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    Ok(fields.map(str::parse::<f64>).sum::<Result<f64, _>>()? / 100.0)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>());
    let mut next = |default| arguments.next().unwrap_or(Ok(default));
    let (hosts_per_tor, threads, millis, payload) = (next(20)?, next(1)? as u16, next(5)?, next(76)?);
    let mut topology = Topology::cx4();
    if let Layout::TwoTier(layout) = &mut topology.layout {
        layout.hosts_per_tor = hosts_per_tor as u32;
    }
    let mut datacenter = Datacenter::new(&topology, CostModel::default(), 1)?;
    let hosts = topology.hosts();
    let all: Vec<_> =
        (0..hosts).flat_map(|host| (0..threads).map(move |thread| Datacenter::addr(host, thread))).collect();
    let mut seeds = Random::new(1);
    for host in 0..hosts {
        for thread in 0..threads {
            let mut transport = datacenter.bind(host, thread)?;
            let me = transport.local_addr();
            let routes =
                all.iter().filter(|addr| **addr != me).map(|addr| transport.resolve(addr)).collect::<Result<_, _>>()?;
            let random = Random::new(seeds.next());
            let mut flooder =
                Flooder { transport, routes, random, payload: vec![7; payload as usize], in_flight: 0, last: 0 };
            datacenter.spawn(host, thread, move || flooder.run())?;
        }
    }
    let start = cpu_seconds()?;
    datacenter.run_until(millis * 1_000_000);
    let took = cpu_seconds()? - start;
    let counters = datacenter.counters();
    println!("{hosts} hosts x {threads} threads, {millis} ms of virtual time in {took:.2} s of CPU time");
    println!("{counters:?}");
    println!(
        "{:.2} M packets/s of CPU time, {:.1} events per packet, {:.1} Mpps per host of virtual time",
        counters.received as f64 / took / 1e6,
        counters.events as f64 / counters.received as f64,
        counters.received as f64 / (millis as f64 * 1e3) / f64::from(hosts),
    );
    Ok(())
}
