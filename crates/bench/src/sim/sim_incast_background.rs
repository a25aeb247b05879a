//! `sim-incast-background`: section 6.5. During an incast of a hundred clients, one more thread on each of their hosts
//! calls the threads of the others, 64 kB in each direction, one call outstanding. They share no port with the incast's
//! queue except that of their own host, so their latency shows the effect of an incast on bystanders.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use dunlin_lab::measure::{Latencies, Percentiles};
use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_net::random::Random;
use dunlin_rpc::MsgBuf;
use dunlin_sim::CostModel;

use super::incast::{Control, Incast};
use super::paper;
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

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    let controls = [Control::Timely, Control::Ours];
    lab.expect_simulations(controls.len());
    let time = lab.virtual_time(TIME);
    let clients = if time < TIME_MIN { FEW_CLIENTS } else { paper::INCAST_CLIENTS_MAX };
    for control in controls {
        let incast = Incast { clients, control, time: time.max(TIME_MIN) };
        let case = format!("64 kB beside {clients} clients, {}", control.name());
        let seen = lab.simulate(&case, |trial| measure(trial, incast))?;
        let at = |figure: fn(&Percentiles) -> f64| seen.iter().map(figure).collect::<Vec<_>>();
        lab.push(RowBuilder::of_seeds(&case, Metric::LatencyP50, &at(|p| p.p50))?);
        let mut row =
            RowBuilder::of_seeds(&case, Metric::LatencyP99, &at(|p| p.p99))?.paper(Some(paper::BACKGROUND_P99));
        if control == Control::Ours {
            row = row.target(Target::Absolute(paper::BACKGROUND_P99.value));
        }
        lab.push(row);
    }
    Ok(())
}

fn measure(trial: Trial<'_>, incast: Incast) -> Result<Percentiles, BenchError> {
    let topology = incast.control.topology();
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
    latencies.borrow().percentiles()
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
