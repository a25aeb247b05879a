//! Part of `rein-sim-oracle`: other distributions of service time, and other readings of the thesis' setting at its 75
//! % load. The possible gain depends on them far more than on the order of service.

use dunlin_schedule::simulator::{Contender, Costs, Law, ReplicaChoice, Scheduled, Setting};
use dunlin_schedule::{Levels, Order, Policy};

use super::{idle, outcomes, push_all};
use crate::{BenchError, Lab};

const LAWS: [(&str, Law); 5] = [
    ("exponential", Law::Exponential),
    ("constant", Law::Constant),
    ("log-normal, sigma 1", Law::LogNormal { sigma: 1.0 }),
    ("by the size of values", Law::ValueSize),
    ("a third 20 times as long", Law::TwoTiers { slow: 0.33, times: 20.0 }),
];

/// The choice of the replica, and the rate of a server in slots that take 267 us.
const READINGS: [(&str, ReplicaChoice, u64); 4] = [
    ("a replica drawn", ReplicaChoice::Drawn, 8),
    ("replicas in turn", ReplicaChoice::RoundRobin, 8),
    ("a replica for each opset", ReplicaChoice::DrawnPerOpset, 8),
    ("replicas in turn, 3,750/s by server", ReplicaChoice::RoundRobin, 1),
];

/// Number of simulations: FIFO, the floor and Rein with each reading, and the others with the first.
pub const SIMULATIONS: usize = LAWS.len() * (READINGS.len() * 3 + OTHERS);
const OTHERS: usize = 4;

pub fn run(lab: &mut Lab, requests: u32) -> Result<(), BenchError> {
    let fifo_contender = Contender::of(Policy::Fifo);
    for (reading, choice, rate) in READINGS {
        for (law_name, law) in LAWS {
            let service = Setting::default().service * 8 / rate;
            let setting = Setting { requests, choice, law, service, ..Setting::default() };
            let name = format!("{reading}, {law_name}");
            let fifo = outcomes(lab, &format!("{name}: FIFO"), &setting, &fifo_contender)?;
            push_all(lab, &format!("{name}: floor"), &fifo, &idle(&setting), &fifo_contender)?;
            let rein = Contender::of(Policy::Rein(Levels::default()));
            push_all(lab, &format!("{name}: Rein"), &fifo, &setting, &rein)?;
            if choice == ReplicaChoice::Drawn {
                for (what, contender) in others() {
                    push_all(lab, &format!("{name}: {what}"), &fifo, &setting, &contender)?;
                }
            }
        }
    }
    Ok(())
}

/// Shortest total, with counts and with perfect estimates of costs.
fn others() -> [(&'static str, Contender); OTHERS] {
    let of =
        |order, costs| Contender::Scheduled(Scheduled { policy: Policy::ShortestTotal, order, damping: None, costs });
    let exact = Order::Exact { ageing: None };
    [
        ("exact", of(exact.clone(), Costs::Count)),
        ("exact, service times known", of(exact, Costs::ServiceTime)),
        ("learnt levels", of(Order::default(), Costs::Count)),
        ("learnt levels, service times known", of(Order::default(), Costs::ServiceTime)),
    ]
}
