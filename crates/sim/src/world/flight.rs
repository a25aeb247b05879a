//! The path of a packet: transmit queue, wire, switches, receive queue.

use super::World;
use crate::engine::Event;
use crate::engine::time::{NEVER, Picos};
use crate::fabric::link::Node;
use crate::fabric::packet::{Packet, Transit};
use crate::fabric::switch::Admission;
use crate::host::nic::Turn;
use crate::host::thread::{Arrived, State, Thread};
use crate::trace::CapturePoint;

impl World {
    /// Hands a packet to its sender's NIC, at the time of the sender's clock, once its transmit queue has room.
    #[inline]
    pub fn send(&mut self, from: u32, to: u32, header: &[u8], payload: &[u8]) {
        let len = header.len() + payload.len();
        let mut buffer = self.packets.buffers.take(len);
        buffer[..header.len()].copy_from_slice(header);
        buffer[header.len()..len].copy_from_slice(payload);
        let number = self.packets.insert(Packet { buffer, from });
        self.counters.sent += 1;
        let thread = &self.threads[from as usize];
        let Thread { host, number: thread_number, .. } = *thread;
        let to_place = self.places[to as usize];
        // The cable of host `h` is link `h`.
        let transit = Transit::new(number, (host, len as u16), to_place, flow(from, to));
        let nic = &mut self.hosts[host as usize].nic;
        thread.clock.spin_until(nic.room_at(thread_number));
        let line = &self.links[host as usize];
        let time = line.serialization(len as u64 + self.wire_overhead);
        let ready = nic.queue(thread_number, transit, thread.clock.picos(), time, line.free_at);
        self.schedule_transmit(host, ready);
    }

    /// Schedules a NIC's transmission at `ready`, or when its line is free.
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
            Turn::Send(transit) => {
                let next_ready = nic.next_ready();
                nic.prefetch();
                self.capture(CapturePoint::Sent, transit);
                let bytes = u64::from(transit.len()) + self.wire_overhead;
                let line = &mut self.links[host as usize];
                let departs = line.enqueue(bytes, now + line.serialization(bytes));
                self.put_on_wire(transit, departs);
                next_ready
            }
        };
        if next_ready != NEVER {
            self.schedule_transmit(host, next_ready);
        }
    }

    /// The last bit of a packet leaves on its link at `departs`.
    #[inline]
    pub fn put_on_wire(&mut self, transit: Transit, departs: Picos) {
        let line = &self.links[transit.link() as usize];
        let arrival = departs + line.propagation;
        if line.is_faulty {
            return self.put_on_faulty_wire(transit, arrival);
        }
        self.events.push(arrival, Event::Arrive(transit));
    }

    /// Handles a packet whose last bit is at the far end of its link.
    #[inline]
    pub fn arrive(&mut self, transit: Transit) {
        let line = &self.links[transit.link() as usize];
        if line.is_down {
            return self.lose(transit);
        }
        match line.to {
            Node::Switch(switch) => self.forward(switch, transit),
            Node::Host(host) => self.deliver(host, transit),
        }
    }

    fn forward(&mut self, switch: u16, transit: Transit) {
        let now = self.now();
        let bytes = u64::from(transit.len()) + self.wire_overhead;
        let switch = &mut self.switches[switch as usize];
        let out = switch.route(transit.to_host(), transit.flow(), &self.links);
        let Admission::Queued { marked } = switch.admit(out, bytes, now, &self.links, &mut self.random) else {
            self.links[out as usize].dropped += 1;
            self.counters.dropped_buffer += 1;
            return self.packets.discard(transit.number());
        };
        let time_in = self.links[transit.link() as usize].serialization(bytes);
        let port = &mut self.links[out as usize];
        if marked {
            port.marked += 1;
            self.counters.marked += 1;
        }
        let earliest = switch.earliest_departure(now, time_in, port.serialization(bytes));
        let departs = port.enqueue(bytes, earliest);
        if matches!(port.to, Node::Host(_)) {
            self.packets.prefetch(transit.number());
        }
        self.put_on_wire(transit.onto(out, marked), departs);
    }

    /// Hands a packet to its destination host's NIC.
    fn deliver(&mut self, host: u16, transit: Transit) {
        let number = transit.number();
        let index = self.hosts[host as usize].threads[transit.to_thread() as usize].unwrap_or(u32::MAX);
        let Some(thread) = self.threads.get_mut(index as usize).filter(|thread| thread.transport.is_some()) else {
            self.counters.dropped_nobody += 1;
            return self.packets.discard(number);
        };
        if thread.rx.len() >= self.rx_descriptors {
            thread.rx_dropped += 1;
            self.counters.dropped_descriptors += 1;
            return self.packets.discard(number);
        }
        self.capture(CapturePoint::Received, transit);
        self.packets.prefetch_bytes(number);
        let thread = &mut self.threads[index as usize];
        let visible = self.now.get() + self.rx_latency;
        thread.rx.push_back(Arrived { visible, packet: number, len: transit.len(), marked: transit.is_marked() });
        if thread.state == State::Listening {
            self.run_by(index, visible);
        }
    }
}

/// The hash of a flow, from its two ends.
fn flow(from: u32, to: u32) -> u16 {
    let ends = u64::from(from) << 32 | u64::from(to);
    (ends.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16
}
