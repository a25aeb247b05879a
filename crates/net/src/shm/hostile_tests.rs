//! An endpoint whose region another process overwrites at random while it runs: nothing but packets may suffer.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::shm::cell::{Origin, Published, seq_of};
use crate::shm::file::path_of;
use crate::shm::layout::{CELL_BYTES, Layout, header};
use crate::shm::{ShmConfig, ShmTransport};
use crate::{Addr, PeerHealth, Route, ShmName, Transport, TxPacket};

fn config(directory: &str, name: &str) -> ShmConfig {
    let mut config = ShmConfig::named(ShmName::new(name).unwrap());
    config.directory = PathBuf::from(format!("/dev/shm/dunlin-test-{}-{directory}", std::process::id()));
    std::fs::create_dir_all(&config.directory).unwrap();
    (config.queue_len, config.bulk_buffers, config.senders_max, config.mtu) = (64, 32, 8, 2000);
    config
}

/// xorshift64*
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 16) % n
    }
}

/// One write: a random value anywhere, or a nearly valid value where it does most harm.
fn scribble(file: &File, layout: &Layout, random: &mut Random) {
    let word = |offset: usize| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, offset as u64).unwrap();
        u64::from_le_bytes(bytes)
    };
    let write = |offset: usize, value: u64| file.write_all_at(&value.to_le_bytes(), offset as u64).unwrap();
    let head = word(header::HEAD);
    match random.below(8) {
        0 => write(random.below(layout.file_bytes as u64 / 8) as usize * 8, random.next()),
        1 => write(random.below(header::BYTES as u64 / 8) as usize * 8, random.next()),
        2 => write(header::TAIL, head.wrapping_add(random.below(130))),
        3 => write(header::HEAD, word(header::TAIL).wrapping_sub(random.below(130))),
        4 => write(layout.slots + random.below((layout.owners - layout.slots) as u64 / 8) as usize * 8, random.next()),
        5 => write(layout.owners + random.below(16) as usize * 8, random.below(1 << 20)),
        _ => {
            // A cell that the receiver will take for published.
            let ticket = head.wrapping_add(random.below(8));
            let offset = layout.cells + (ticket % 64) as usize * CELL_BYTES;
            let (len, slot) = (random.below(2200) as u16, random.below(10) as u16);
            write(offset + 8, Origin { generation: random.below(3) as u32, bulk: random.below(40) as u32 }.pack());
            write(offset, Published { seq: seq_of(ticket), len, slot }.pack());
        }
    }
}

/// Calls everything an endpoint offers, once.
fn exercise(endpoint: &mut ShmTransport, routes: &[Route], random: &mut Random) {
    let bytes = [random.next() as u8; 2000];
    for &route in routes {
        let len = random.below(2000) as usize;
        endpoint.tx_burst(&[TxPacket { route, header: &bytes[..16], payload: &bytes[16..16.max(len)] }; 3]);
        endpoint.peer_health(route);
    }
    let before = Instant::now();
    for i in 0..endpoint.rx_burst() {
        let packet = endpoint.rx_packet(i);
        let mut to = vec![0; packet.len()];
        packet.copy_to(0, &mut to);
        assert!(packet.len() <= endpoint.mtu());
        endpoint.rx_source(i);
    }
    assert!(before.elapsed() < Duration::from_secs(2), "a burst must end, whatever is in the region");
    if random.below(20) == 0 {
        endpoint.wait(Duration::from_micros(50));
    }
}

#[test]
fn scribbling_over_a_region_harms_nothing_but_packets() {
    for seed in 1..=6 {
        let server_config = config(&format!("scribble{seed}"), "server");
        let client_config = ShmConfig { name: Some(ShmName::new("client").unwrap()), ..server_config.clone() };
        let layout = Layout::new(server_config.sizes().unwrap()).unwrap();
        let mut server = ShmTransport::new(&server_config).unwrap();
        let mut client = ShmTransport::new(&client_config).unwrap();
        let server_addr = server.local_addr();
        let path = path_of(&server_config.directory, server_config.name.as_ref().unwrap());
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random(seed);
                while !stop.load(Ordering::Relaxed) {
                    scribble(&file, &layout, &mut random);
                }
            });
            scope.spawn(|| {
                let mut random = Random(seed + 1000);
                while !stop.load(Ordering::Relaxed) {
                    // The header may be invalid at this moment: the call must return an error, or work.
                    let route = client.resolve(&server_addr).ok();
                    for _ in 0..50 {
                        exercise(&mut client, route.as_slice(), &mut random);
                    }
                    route.into_iter().for_each(|r| client.release(r));
                }
            });
            let mut random = Random(seed + 2000);
            let own: Vec<_> = server.resolve(&server_addr).into_iter().collect();
            let end = Instant::now() + Duration::from_millis(150);
            while Instant::now() < end {
                exercise(&mut server, &own, &mut random);
            }
            stop.store(true, Ordering::Relaxed);
        });
        drop(server);
        let mut server = ShmTransport::new(&server_config).unwrap();
        let route = client.resolve(&server_addr).unwrap();
        for i in 0..200u8 {
            client.tx_burst(&[TxPacket { route, header: &[i; 8], payload: &[i; 600] }]);
            assert_eq!(server.rx_burst(), 1);
            assert_eq!(server.rx_packet(0).head()[..8], [i; 8]);
        }
        assert_eq!(client.peer_health(route), PeerHealth::Alive);
        drop((server, client));
        let _ = std::fs::remove_dir_all(&server_config.directory);
    }
}

#[test]
fn a_region_with_a_scribbled_header_is_refused() {
    let server_config = config("header", "server");
    let layout = Layout::new(server_config.sizes().unwrap()).unwrap();
    let server = ShmTransport::new(&server_config).unwrap();
    let path = path_of(&server_config.directory, server_config.name.as_ref().unwrap());
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut other = ShmTransport::new(&config("header", "other")).unwrap();
    let addr: Addr = server.local_addr();
    for offset in
        [header::MAGIC, header::VERSION, header::QUEUE_LEN, header::BULK_BUFFERS, header::MTU, header::SENDERS_MAX]
    {
        let mut good = [0; 8];
        file.read_exact_at(&mut good, offset as u64).unwrap();
        for bad in [0, 3 << 20, u32::MAX as u64, u64::MAX] {
            file.write_all_at(&bad.to_le_bytes(), offset as u64).unwrap();
            let error = other.resolve(&addr).unwrap_err().to_string();
            assert!(error.contains("not usable") && error.contains("server"), "{error}");
        }
        file.write_all_at(&good, offset as u64).unwrap();
        let route = other.resolve(&addr).unwrap();
        other.release(route);
    }
    file.set_len(100).unwrap();
    assert!(other.resolve(&addr).unwrap_err().to_string().contains("only 100 bytes"));
    file.set_len(layout.file_bytes as u64).unwrap();
    drop((server, other));
    let _ = std::fs::remove_dir_all(&server_config.directory);
}
