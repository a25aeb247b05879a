//! Programs that tests run on hosts.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::cell::RefCell;
use std::rc::Rc;

use dunlin_net::{Addr, Transport, TxPacket};
use dunlin_sim::{Datacenter, Next, SimTransport};

/// A packet that was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    pub time: u64,
    pub from: Addr,
    pub bytes: Vec<u8>,
    pub marked: bool,
}

pub type Log<T> = Rc<RefCell<Vec<T>>>;

/// A program that receives, and logs when.
pub fn listen(datacenter: &mut Datacenter, host: u32, thread: u16) -> Log<Received> {
    let log = Log::default();
    let logged = log.clone();
    datacenter
        .spawn_from(host, thread, move |mut transport: SimTransport| {
            let log = logged.clone();
            move || {
                receive(&mut transport, &log);
                Next::OnPacket { or_at: None }
            }
        })
        .unwrap();
    log
}

/// Receives all waiting packets.
pub fn receive(transport: &mut SimTransport, log: &Log<Received>) {
    loop {
        let time = transport.now();
        let count = transport.rx_burst();
        for i in 0..count {
            let packet = transport.rx_packet(i);
            log.borrow_mut().push(Received {
                time,
                from: transport.rx_source(i).unwrap(),
                bytes: packet.bytes().unwrap().to_vec(),
                marked: packet.ecn_marked(),
            });
        }
        if count == 0 {
            return;
        }
    }
}

/// A program that sends every packet back.
pub fn echo(datacenter: &mut Datacenter, host: u32, thread: u16) {
    datacenter
        .spawn_from(host, thread, |mut transport: SimTransport| {
            move || {
                loop {
                    let count = transport.rx_burst();
                    if count == 0 {
                        return Next::OnPacket { or_at: None };
                    }
                    let burst: Vec<_> = (0..count)
                        .map(|i| (transport.rx_source(i).unwrap(), transport.rx_packet(i).bytes().unwrap().to_vec()))
                        .collect();
                    for (to, bytes) in burst {
                        transport.tx_to(&to, &bytes).unwrap();
                    }
                }
            }
        })
        .unwrap();
}

/// A program that sends to an echo, one packet at a time, and logs each round-trip time.
pub fn ping(datacenter: &mut Datacenter, host: u32, thread: u16, to: u32, bytes: usize) -> Log<u64> {
    let log = Log::default();
    let logged = log.clone();
    let mut transport = datacenter.bind(host, thread).unwrap();
    let mut sent_at = None;
    datacenter
        .spawn(host, thread, move || {
            let answered = transport.rx_burst() > 0;
            if let (Some(sent_at), true) = (sent_at, answered) {
                logged.borrow_mut().push(transport.now() - sent_at);
            }
            if sent_at.is_none() || answered {
                sent_at = Some(transport.now());
                send(&mut transport, to, &vec![7; bytes]);
            }
            Next::OnPacket { or_at: None }
        })
        .unwrap();
    log
}

/// A program that sends packets of 1,500 B on the wire to a host's thread 0 forever, as fast as its NIC accepts them.
pub fn flood(datacenter: &mut Datacenter, host: u32, to: u32) {
    let mut transport = datacenter.bind(host, 0).unwrap();
    datacenter
        .spawn(host, 0, move || {
            send(&mut transport, to, &[9; 1434]);
            Next::Soon
        })
        .unwrap();
}

pub fn send(transport: &mut SimTransport, to: u32, bytes: &[u8]) {
    send_to(transport, to, 0, bytes);
}

pub fn send_to(transport: &mut SimTransport, to: u32, thread: u16, bytes: &[u8]) {
    let route = transport.resolve(&Datacenter::addr(to, thread)).unwrap();
    transport.tx_burst(&[TxPacket { route, header: &[], payload: bytes }]);
    transport.release(route);
}
