//! `sim-incast-background`: section 6.5. During an incast of a hundred clients, one more thread on each of their hosts
//! calls the threads of the others, 64 kB in each direction, one call outstanding. They share no port with the incast's
//! queue except that of their own host, so their latency shows the effect of an incast on bystanders.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_lab::measure::{Latencies, Percentiles};
use dunlin_lab::report::Metric;
use dunlin_lab::{Cases, Figure};
use dunlin_net::random::Random;
use dunlin_rpc::MsgBuf;
use dunlin_sim::CostModel;

use super::incast::{CLIENTS_MAX, Control, Incast};
use crate::datacenter::{Cluster, Member, SINK};
use crate::{BenchError, Lab, Trial};

/// Measured virtual time for each second of the run length, and its minimum.
const TIME: Duration = Duration::from_millis(5);
const TIME_MIN: u64 = 500_000;
const BYTES: usize = 64_000;
const THREAD: u16 = 1;
/// The partners of each thread, in random order: the threads of the hosts at these distances in the order of clients.
const PARTNERS: [usize; 8] = [1, 7, 18, 29, 43, 58, 71, 86];
/// Clients of a run that is too short to be meaningful.
const FEW_CLIENTS: u32 = 20;

type Column = Figure<Control, Percentiles>;

/// At most the paper's figure, for our algorithm.
const FIGURES: [Column; 2] = [
    Column::new(Metric::LatencyP50, |_, p| p.p50),
    Column::new(Metric::LatencyP99, |_, p| p.p99)
        .like_paper(|control| (*control == Control::Ours).then_some(0.0..=1.0)),
];

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let time = lab.virtual_time(TIME);
    let clients = if time < TIME_MIN { FEW_CLIENTS } else { CLIENTS_MAX };
    let name = |control: &Control| format!("64 kB beside {clients} clients, {}", control.name());
    let cases = Cases::along("congestion control", [Control::Timely, Control::Ours], name);
    lab.simulate_each(&cases, &FIGURES, |trial, control| {
        measure(trial, Incast { clients, control: *control, time: time.max(TIME_MIN) })
    })
}

fn measure(trial: Trial<'_>, incast: Incast) -> Result<Percentiles, BenchError> {
    let topology = incast.topology(trial);
    let mut cluster = Cluster::of_trial(trial, &topology, CostModel::default())?;
    let mut members = Vec::new();
    for number in 0..incast.clients {
        let host = Incast::host(number, incast.clients, topology.hosts());
        let member = cluster.join(host, THREAD, incast.config())?;
        member.serve(BYTES, 0)?;
        members.push(member);
    }
    let latencies = Rc::new(RefCell::new(Latencies::new()));
    let from = cluster.now() + incast.settling();
    for (number, member) in members.iter().enumerate() {
        let partners = PARTNERS.map(|step| &members[(number + step) % members.len()]);
        call(member, partners, cluster.random(), (from, &latencies));
    }
    let _incast = incast.start(&mut cluster, trial)?;
    trial.run_for(&mut cluster, incast.settling() + incast.time)?;
    Ok(latencies.borrow().percentiles()?)
}

/// Makes calls from a member to its partners, one at a time, and records those that begin at a time or after it.
fn call(
    member: &Member,
    partners: [&Member; PARTNERS.len()],
    mut random: Random,
    tally: (u64, &Rc<RefCell<Latencies>>),
) {
    let connecting = partners.map(|partner| member.connect(partner.addr()));
    let (from, latencies) = (tally.0, tally.1.clone());
    let clock = member.clock();
    member.spawn(async move {
        let mut sessions = Vec::new();
        for session in connecting {
            sessions.push(session.await?);
        }
        let mut request = MsgBuf::with_len(BYTES)?;
        loop {
            let session = &sessions[random.below(sessions.len() as u64) as usize];
            let start = clock.now();
            request = session.call(SINK, request).await.map_err(|failure| failure.error)?.request;
            if start >= from {
                latencies.borrow_mut().record(clock.now() - start);
            }
        }
    });
}
