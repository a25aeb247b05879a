//! One bottleneck and its senders, packet by packet: enough of a network to show how an algorithm behaves. For tests
//! only.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::pacing::Gate;
use super::{Algorithm, CongestionControl, Controller, Sample};
use crate::timer::TICK_NANOS;

/// A port of a switch, and the path through it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Port {
    /// Bytes per nanosecond.
    pub rate: f64,
    /// Round trip without a queue, nanoseconds.
    pub base_rtt: u64,
    /// Packets are marked with a probability that grows from 0 to `mark_share` between these queue lengths in bytes,
    /// and always above the second.
    pub mark_from: u64,
    pub mark_to: u64,
    pub mark_share: f64,
}

impl Port {
    /// 25 Gbit/s and 6 us; marking as DCQCN's authors recommend, scaled to this rate.
    pub fn cx4() -> Port {
        Port { rate: 3.125, base_rtt: 6_000, mark_from: 5_000, mark_to: 200_000, mark_share: 0.01 }
    }

    pub fn without_marks(self) -> Port {
        Port { mark_from: u64::MAX, mark_to: u64::MAX, ..self }
    }
}

/// Bytes of every packet on the wire.
const PACKET: u64 = 1088;

struct Flow {
    controller: Option<Controller>,
    credits: u32,
    in_flight: u32,
    gate: Gate,
    /// Whether a wake-up is pending.
    waiting: bool,
    active: bool,
    delivered: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A sender may send again.
    Wake { flow: usize },
    /// A packet is at the port.
    Arrive { flow: usize, sent: u64 },
    /// Its answer is at the sender.
    Answer { flow: usize, sent: u64, marked: bool },
}

pub(super) struct Model {
    port: Port,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    flows: Vec<Flow>,
    /// Which packets windows count.
    pub packets: Packets,
    /// When the port will have sent everything that it holds.
    free_at: u64,
    random: u64,
    rtts: Vec<u64>,
    measured_from: u64,
}

/// What the senders send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packets {
    /// Packets that are answered at once: windows count them.
    OfLongMessages,
    /// Single-packet requests that a handler answers: they are only paced.
    Requests,
}

/// What was measured since the last [`Model::measure`].
#[derive(Debug)]
pub(super) struct Outcome {
    /// Gbit/s, headers included.
    pub bandwidth: f64,
    /// Microseconds.
    pub rtt_p50: f64,
    pub rtt_p99: f64,
    /// Jain's index over the active flows: 1 if all get the same.
    pub fairness: f64,
}

impl Model {
    pub fn new(port: Port, control: &CongestionControl, flows: usize, credits: u16) -> Model {
        let flow = |_| Flow {
            controller: control.controller(credits, Some(port.base_rtt), 0),
            credits: u32::from(credits),
            in_flight: 0,
            gate: Gate::default(),
            waiting: false,
            active: true,
            delivered: 0,
        };
        let mut model = Model {
            port,
            now: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            flows: (0..flows).map(flow).collect(),
            packets: Packets::OfLongMessages,
            free_at: 0,
            random: 0x5eed,
            rtts: Vec::new(),
            measured_from: 0,
        };
        for flow in 0..flows {
            model.at(0, Event::Wake { flow });
        }
        model
    }

    fn at(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((time, self.sequence, event)));
    }

    fn random_below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }

    /// Lets a flow send, or not.
    pub fn set_active(&mut self, flow: usize, active: bool) {
        self.flows[flow].active = active;
        self.send(flow);
    }

    /// Stops the port for a time, like a peer that does not run.
    pub fn pause(&mut self, nanos: u64) {
        self.free_at = self.free_at.max(self.now) + nanos;
    }

    pub fn controller(&self, flow: usize) -> &Controller {
        self.flows[flow].controller.as_ref().expect("the model was made with an algorithm")
    }

    fn send(&mut self, index: usize) {
        loop {
            let now = self.now;
            let flow = &mut self.flows[index];
            let counts = self.packets == Packets::OfLongMessages;
            let window = flow.controller.as_ref().filter(|_| counts).map_or(u32::MAX, Algorithm::window);
            if !flow.active || flow.in_flight >= flow.credits.min(window) {
                return;
            }
            if !flow.gate.is_open(now) {
                let due = flow.gate.opens_at().next_multiple_of(TICK_NANOS);
                if !flow.waiting {
                    flow.waiting = true;
                    self.at(due, Event::Wake { flow: index });
                }
                return;
            }
            let spacing = flow.controller.as_ref().map_or(0, |controller| controller.spacing(PACKET as u32));
            flow.gate.pass(now, spacing);
            flow.in_flight += 1;
            let arrival = now + self.port.base_rtt / 2 + self.random_below(500);
            self.at(arrival, Event::Arrive { flow: index, sent: now });
        }
    }

    fn is_marked(&mut self, queue: u64) -> bool {
        let Port { mark_from, mark_to, mark_share, .. } = self.port;
        if queue <= mark_from || queue >= mark_to {
            return queue > mark_from;
        }
        let share = mark_share * (queue - mark_from) as f64 / (mark_to - mark_from) as f64;
        (self.random_below(1 << 32) as f64) < share * (1u64 << 32) as f64
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Wake { flow } => {
                self.flows[flow].waiting = false;
                self.send(flow);
            }
            Event::Arrive { flow, sent } => {
                let backlog = self.free_at.saturating_sub(self.now);
                let marked = self.is_marked((backlog as f64 * self.port.rate) as u64);
                self.free_at = self.free_at.max(self.now) + (PACKET as f64 / self.port.rate) as u64;
                self.at(self.free_at + self.port.base_rtt / 2, Event::Answer { flow, sent, marked });
            }
            Event::Answer { flow, sent, marked } => {
                let rtt = self.now - sent;
                self.rtts.push(rtt);
                let sample = Sample {
                    now: self.now,
                    rtt,
                    is_marked: marked,
                    credits: self.flows[flow].credits as u16,
                    bytes: PACKET as u32,
                };
                let to = &mut self.flows[flow];
                to.in_flight -= 1;
                to.delivered += PACKET;
                if let Some(controller) = &mut to.controller {
                    controller.on_answer(&sample);
                }
                self.send(flow);
            }
        }
    }

    pub fn run_for(&mut self, nanos: u64) {
        let end = self.now + nanos;
        while let Some(Reverse((time, _, event))) = self.events.peek().copied().filter(|next| next.0.0 <= end) {
            self.events.pop();
            self.now = time;
            self.step(event);
        }
        self.now = end;
    }

    /// What was measured since the last call.
    pub fn measure(&mut self) -> Outcome {
        let time = (self.now - self.measured_from) as f64;
        let rates: Vec<f64> =
            self.flows.iter().filter(|flow| flow.active).map(|flow| flow.delivered as f64 * 8.0 / time).collect();
        let (sum, squares) = rates.iter().fold((0.0, 0.0), |(sum, squares), rate| (sum + rate, squares + rate * rate));
        self.rtts.sort_unstable();
        let percentile = |share: f64| self.rtts[(self.rtts.len() as f64 * share) as usize] as f64 / 1e3;
        let outcome = Outcome {
            bandwidth: self.flows.iter().map(|flow| flow.delivered as f64 * 8.0 / time).sum(),
            rtt_p50: percentile(0.5),
            rtt_p99: percentile(0.99),
            fairness: sum * sum / (rates.len() as f64 * squares),
        };
        self.flows.iter_mut().for_each(|flow| flow.delivered = 0);
        self.rtts.clear();
        self.measured_from = self.now;
        outcome
    }
}
