//! `seq-rate`: Figure 4.16 of Kalia's thesis for one server core. Numbers per second that one client core gets, step by
//! step: an answer for each request by itself, answers in bursts, one addition for a burst, and Spec-S0. Each run takes
//! Spec-S0 between two measurements of the floor, of which the faster one counts, and then the steps of RPC that it is
//! compared with. So the ratios that have targets compare measurements taken close together.
//!
//! The paper's rates are of 70 clients over InfiniBand, so only its gain by batching stands beside ours. Ours is a
//! lower bound of the server's gain: one client core sends all requests, and may be busy before the server core is.

use dunlin_lab::measure::Measured;
use dunlin_lab::report::{Metric, RowBuilder, Target};

use super::seq_runs;
use crate::rpc::roles::{Carrier, Factor, Load, RateClient, RateFloor, Setup};
use crate::rpc::runs;
use crate::seq::roles::{Answers, SeqCallers, SeqServing};
use crate::{BenchError, Lab};

/// Requests in flight.
const IN_FLIGHT: usize = 128;
/// Sessions for them: half of their slots stay free, so that few calls wait for a slot of the session drawn for them.
const SESSIONS: usize = 32;
/// Bytes of an echo: as many as an answer with a number has. A request has 16.
const ECHO_BYTES: usize = 8;
/// The required rate of Spec-S0, as a share of bare echoes over shared memory.
const SHARE_OF_BARE: f64 = 0.6;
/// The required rate of Spec-S0 against RPC.
const TIMES_RPC: f64 = 2.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Packets of the size of Spec-S0's, in bursts of the same size, sent back as they came: Spec-S0 without its protocol,
    /// its counter and its calls.
    Packets,
    Echo,
    /// One addition for each request, and one transmit burst for each answer.
    AnswerEach,
    /// One addition for each request.
    AdditionEach,
    Bursts,
    /// Concurrent callers of one client share requests.
    Shared,
    DirectEach,
    Direct,
    /// Answers leave by two queues in turn.
    DirectInTurn,
}

impl Step {
    const ALL: [Step; 9] = [
        Step::Packets,
        Step::Echo,
        Step::AnswerEach,
        Step::AdditionEach,
        Step::Bursts,
        Step::Shared,
        Step::DirectEach,
        Step::Direct,
        Step::DirectInTurn,
    ];

    /// In the order in which they are measured.
    const IN_TURN: [Step; 9] = [
        Step::Packets,
        Step::Direct,
        Step::Echo,
        Step::Bursts,
        Step::AnswerEach,
        Step::AdditionEach,
        Step::Shared,
        Step::DirectEach,
        Step::DirectInTurn,
    ];

    fn name(self) -> &'static str {
        match self {
            Step::Packets => "packets of 20 B, sent back by the transport",
            Step::Echo => "RPC echoes of 8 B",
            Step::AnswerEach => "RPC, an addition and a burst for each answer",
            Step::AdditionEach => "RPC, an addition for each answer",
            Step::Bursts => "RPC, an addition for each burst",
            Step::Shared => "RPC, 128 callers that share requests",
            Step::DirectEach => "Spec-S0, an addition and a burst for each answer",
            Step::Direct => "Spec-S0, an addition for each burst",
            Step::DirectInTurn => "Spec-S0, an addition for each burst, two queues in turn",
        }
    }

    fn metric(self) -> Metric {
        if matches!(self, Step::Packets | Step::Echo) { Metric::Rate } else { Metric::Operations }
    }

    fn serving(self) -> SeqServing {
        match self {
            Step::AnswerEach | Step::AdditionEach => SeqServing::Rpc(Answers::Single),
            Step::Packets | Step::Echo | Step::Bursts | Step::Shared => SeqServing::Rpc(Answers::Bursts),
            Step::DirectEach => SeqServing::Direct { answers: Answers::Single, queues: 1 },
            Step::Direct => SeqServing::Direct { answers: Answers::Bursts, queues: 1 },
            Step::DirectInTurn => SeqServing::Direct { answers: Answers::Bursts, queues: 2 },
        }
    }

    /// Its rate in one run.
    fn measure(self, lab: &Lab, carrier: Carrier) -> Result<f64, BenchError> {
        let setup = Setup::new(carrier);
        let run = lab.run_length();
        let by_calls = |server, load: Load| {
            let client = RateClient { setup: setup.clone(), server, sessions: SESSIONS, load };
            Ok(lab.client(client, run)?.result()?.rate)
        };
        match self {
            Step::Packets => seq_runs::packets(lab, &setup, IN_FLIGHT),
            Step::Echo => {
                runs::with_server(lab, &setup, |server| by_calls(server, Load::uniform(1, IN_FLIGHT, ECHO_BYTES, run)))
            }
            Step::AnswerEach | Step::AdditionEach | Step::Bursts => {
                // The client keeps its bursts: only the server's differ.
                let without = if self == Step::AnswerEach { vec![Factor::TransmitBatching] } else { Vec::new() };
                let serving = Setup { without, ..setup.clone() };
                let load = Load::numbers(IN_FLIGHT, run);
                Ok(seq_runs::with_sequencer(lab, &serving, self.serving(), 0, |server| by_calls(server, load))?.0)
            }
            Step::Shared => {
                let call = |server| {
                    let client = SeqCallers { setup: setup.clone(), server, callers: IN_FLIGHT, timed: false, run };
                    Ok(lab.client(client, run)?.result()?.rate)
                };
                Ok(seq_runs::with_sequencer(lab, &setup, self.serving(), 0, call)?.0)
            }
            Step::DirectEach | Step::Direct | Step::DirectInTurn => {
                let (in_flight, timed) = (IN_FLIGHT, false);
                let load = seq_runs::DirectLoad { clients: 1, in_flight, timed, start: 0, beyond: 0, run };
                Ok(seq_runs::direct(lab, &setup, self.serving(), &load)?.0.rate)
            }
        }
    }
}

/// The rates of one run.
#[derive(Debug, Clone, Copy)]
struct Rates([f64; Step::ALL.len()]);

impl Rates {
    fn of(&self, step: Step) -> f64 {
        self.0[step as usize]
    }
}

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len());
    for carrier in Carrier::ALL {
        ladder(lab, carrier)?;
    }
    lab.note(
        "The thesis has 7.0, 16.6 and 27.4 M/s for the steps of RPC by one server core (Figure 4.16), and the article 16.5 \
         M/s for Spec-S0 by one: it gains there with more cores only. 70 clients ask over InfiniBand. Here one client core \
         asks over shared memory or loopback, so only two ratios stand beside ours: the gain by batching, 2.4x, and \
         Spec-S0 over RPC, 0.99x, or 0.60x of RPC by several queues.",
    );
    lab.note(
        "An answer each by Spec-S0 is also an addition each. Packets sent back are what the transport carries: Spec-S0 \
         without a protocol, a counter and calls.",
    );
    lab.note(
        "The bare echoes are 64 B messages. Over UDP two trains of 64 datagrams are in flight, each sent by one system \
         call that the kernel cuts (segmentation offload). Spec-S0 sends 20 B packets, up to 64 joined in one datagram. \
         So over UDP the floor is another way to send packets, and no upper bound: there is no target against it.",
    );
    lab.note(
        "The thesis compares with a sequencer by atomics of a NIC (2.24 M/s). It is not measured: that needs RDMA \
         hardware, or the software NIC, which does not exist yet.",
    );
    Ok(())
}

fn ladder(lab: &mut Lab, carrier: Carrier) -> Result<(), BenchError> {
    let name = carrier.name();
    let per_echo = |floor: &Rates| 1.0 / floor.0[0];
    let measured = lab.case_beside_floor(&format!("{name} all steps"), per_echo, |lab| {
        let floor = || {
            let floor = RateFloor { carrier, in_flight: IN_FLIGHT, cores: lab.cores()?, run: lab.run_length() };
            lab.anywhere(floor, lab.run_length())?.result()
        };
        let before = floor()?;
        let (mut rates, mut after) = ([0.0; Step::ALL.len()], before);
        for step in Step::IN_TURN {
            rates[step as usize] = step.measure(lab, carrier)?;
            if step == Step::Direct {
                after = floor()?;
            }
        }
        let floor = before.max(after);
        Ok(Measured { ours: Rates(rates), floor: Rates([floor; Step::ALL.len()]) })
    })?;
    for step in Step::ALL {
        let mut row = runs::row(&format!("{name} {}", step.name()), step.metric(), &measured, |rates| rates.of(step))?;
        if (carrier, step) == (Carrier::Shm, Step::Direct) {
            row = row.target(Target::FloorTimes(SHARE_OF_BARE)).limit(
                "the transport: the row of packets sent back shows what it carries without a sequencer, and the floor a \
                 ring without one",
            );
        }
        lab.push(row);
    }
    let gain = |of: Step, to: Step| measured.spread(|rates| rates.of(of) / rates.of(to));
    let by_rpc = gain(Step::Bursts, Step::AnswerEach)?.ours;
    let by_datagrams = gain(Step::Direct, Step::DirectEach)?.ours;
    // Against echoes and numbers, whichever is faster in the run.
    let rpc = |rates: &Rates| rates.of(Step::Echo).max(rates.of(Step::Bursts));
    let over_rpc = measured.spread(|rates| rates.of(Step::Direct) / rpc(rates))?.ours;
    let row = |case: &str, gain| RowBuilder::new(format!("{name} {case}"), Metric::Advantage, gain);
    lab.push(row("RPC, bursts over an answer each", by_rpc));
    lab.push(row("Spec-S0, bursts over an answer each", by_datagrams));
    lab.push(row("Spec-S0 over RPC", over_rpc).target(Target::Absolute(TIMES_RPC)));
    lab.push(row("Spec-S0 over packets sent back by the transport", gain(Step::Direct, Step::Packets)?.ours));
    Ok(())
}
