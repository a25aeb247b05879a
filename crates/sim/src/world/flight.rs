//! The way of a packet: transmit queue, wire, switches, receive queue.

use super::World;
use crate::engine::Event;
use crate::engine::time::{NEVER, Picos};
use crate::fabric::link::Node;
use crate::fabric::packet::Packet;
use crate::fabric::switch::Admission;
use crate::host::nic::Turn;
use crate::host::thread::{Arrived, State};
use crate::trace::CapturePoint;

/// The two ends of a flow, as a transport knows them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flow {
    pub from: u32,
    pub to: u32,
    pub to_host: u16,
    pub hash: u32,
}

impl World {
    /// Hands a packet to the NIC of its sender, at the time of the sender's clock, once its transmit queue has room.
    #[inline]
    pub fn send(&mut self, flow: Flow, header: &[u8], payload: &[u8]) {
        let len = header.len() + payload.len();
        let mut buffer = self.packets.buffers.take(len);
        buffer[..header.len()].copy_from_slice(header);
        buffer[header.len()..len].copy_from_slice(payload);
        let packet = self.packets.insert(Packet {
            buffer,
            len: len as u16,
            marked: false,
            to_host: flow.to_host,
            from: flow.from,
            to: flow.to,
            flow: flow.hash,
        });
        self.counters.sent += 1;
        let thread = &self.threads[flow.from as usize];
        let (host, number) = (thread.host, thread.number);
        let nic = &mut self.hosts[host as usize].nic;
        thread.clock.spin_until(nic.room_at(number));
        // The cable of host `h` is link `h`.
        let line = &self.links[host as usize];
        let time = line.serialization(len as u64 + self.wire_overhead);
        let ready = nic.queue(number, packet, thread.clock.picos(), time, line.free_at);
        self.schedule_transmit(host, ready);
    }

    /// Lets a NIC transmit at `ready`, or when its line is free.
    #[inline]
    fn schedule_transmit(&mut self, host: u16, ready: Picos) {
        let time = ready.max(self.links[host as usize].free_at);
        let nic = &mut self.hosts[host as usize].nic;
        if time < nic.next_transmit {
            nic.next_transmit = time;
            self.events.push(time, Event::Transmit { host });
        }
    }

    /// A NIC's line is free, and something may be ready for it.
    pub fn transmit(&mut self, host: u16) {
        let now = self.now();
        let nic = &mut self.hosts[host as usize].nic;
        if nic.next_transmit != now {
            return;
        }
        nic.next_transmit = NEVER;
        let next_ready = match nic.next(now) {
            Turn::Later(time) => time,
            Turn::Send { packet } => {
                let next_ready = nic.next_ready();
                self.capture(CapturePoint::Sent, packet);
                let bytes = u64::from(self.packets[packet].len) + self.wire_overhead;
                let line = &mut self.links[host as usize];
                let departs = line.enqueue(bytes, now + line.serialization(bytes));
                self.put_on_wire(host, packet, departs);
                next_ready
            }
        };
        if next_ready != NEVER {
            self.schedule_transmit(host, next_ready);
        }
    }

    /// The last bit of a packet leaves on a link at `departs`.
    #[inline]
    pub fn put_on_wire(&mut self, link: u16, packet: u32, departs: Picos) {
        let line = &self.links[link as usize];
        let arrival = departs + line.propagation;
        if line.is_faulty {
            return self.put_on_faulty_wire(link, packet, arrival);
        }
        self.events.push(arrival, Event::Arrive { link, packet });
    }

    /// The last bit of a packet is at the far end of a link.
    #[inline]
    pub fn arrive(&mut self, link: u16, packet: u32) {
        let line = &self.links[link as usize];
        if line.is_down {
            return self.lose(link, packet);
        }
        match line.to {
            Node::Switch(switch) => self.forward(switch, link, packet),
            Node::Host(host) => self.deliver(host, packet),
        }
    }

    fn forward(&mut self, switch: u16, link: u16, packet: u32) {
        let now = self.now();
        let Packet { len, flow, to_host, .. } = self.packets[packet];
        let bytes = u64::from(len) + self.wire_overhead;
        let switch = &mut self.switches[switch as usize];
        let out = switch.route(to_host, flow, &self.links);
        let Admission::Queued { marked } = switch.admit(out, bytes, now, &self.links, &mut self.random) else {
            self.links[out as usize].dropped += 1;
            self.counters.dropped_buffer += 1;
            return self.packets.discard(packet);
        };
        let time_in = self.links[link as usize].serialization(bytes);
        let port = &mut self.links[out as usize];
        if marked {
            self.packets[packet].marked = true;
            port.marked += 1;
            self.counters.marked += 1;
        }
        let earliest = switch.earliest_departure(now, time_in, port.serialization(bytes));
        let departs = port.enqueue(bytes, earliest);
        self.put_on_wire(out, packet, departs);
    }

    /// A packet is at its host's NIC.
    fn deliver(&mut self, host: u16, packet: u32) {
        let index = self.packets[packet].to;
        let thread = &mut self.threads[index as usize];
        if thread.transport.is_none() || !self.hosts[host as usize].is_up {
            self.counters.dropped_nobody += 1;
            return self.packets.discard(packet);
        }
        if thread.rx.len() >= self.rx_descriptors {
            thread.rx_dropped += 1;
            self.counters.dropped_descriptors += 1;
            return self.packets.discard(packet);
        }
        self.capture(CapturePoint::Received, packet);
        let thread = &mut self.threads[index as usize];
        let visible = self.now.get() + self.rx_latency;
        thread.rx.push_back(Arrived { visible, packet });
        if thread.state == State::Listening {
            self.run_by(index, visible);
        }
    }
}
