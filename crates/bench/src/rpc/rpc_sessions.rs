//! `rpc-sessions`: section 6.3, which is comparable in the share of the rate that many sessions keep: the paper's rate
//! is that of ten threads at a NIC. Calls on random ones of 20,000 sessions between two endpoints, against 100
//! sessions, and the memory of an idle session after use. Then 500 sessions in use with 10,000 idle ones, against 20
//! alone, on the sockets of an unprivileged user.

use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::spread;

use super::runs;
use crate::rpc::roles::{Carrier, Hints, Load, SessionFigures, SessionsClient, Setup};
use crate::{BenchError, Lab};

/// Sessions of a node in the paper.
const MANY: usize = 20_000;
const FEW: usize = 100;
/// Requests in a batch, as in the paper.
const BATCH: usize = 3;
/// Required share of the rate of few sessions for many.
const RATE_SHARE: f64 = 0.85;
/// Sessions of a default server: idle, in use besides them, and in use without others.
const IDLE: usize = 10_000;
const USED: usize = 500;
const USED_FEW: usize = 20;
/// Required share of the rate of few sessions.
const CROWD_SHARE: f64 = 0.9;
/// Memory limit of an idle session, in bytes.
const SESSION_BYTES_MAX: f64 = 1024.0;

pub(super) fn run(lab: &mut Lab) -> Result<(), BenchError> {
    lab.expect_cases(Carrier::ALL.len() * 4 + 2);
    for carrier in Carrier::ALL {
        let one_credit = one_credit(carrier);
        let few_case = format!("{} {FEW} sessions", carrier.name());
        let many_case = format!("{} {MANY} sessions", carrier.name());
        if lab.wants_any([few_case.as_str(), &many_case]) {
            let few = measure(lab, &few_case, &one_credit, FEW, Hints::Given)?;
            lab.push(RowBuilder::new(&few_case, Metric::Rate, spread(&few, |figures| figures.rate)?));
        }
        if lab.wants(&many_case) {
            let many = measure(lab, &many_case, &one_credit, MANY, Hints::Given)?;
            lab.push(
                RowBuilder::new(&many_case, Metric::Rate, spread(&many, |figures| figures.rate)?)
                    .target(Target::CaseTimes { case: few_case, factor: RATE_SHARE }),
            );
            push_memory(lab, &many_case, &many)?;
        }

        let case = format!("{} {MANY} sessions, no prefetch hints", carrier.name());
        if lab.wants(&case) {
            let unhinted = measure(lab, &case, &one_credit, MANY, Hints::None)?;
            lab.push(RowBuilder::new(&case, Metric::Rate, spread(&unhinted, |figures| figures.rate)?));
        }

        let case = format!("{} {MANY} sessions, default config", carrier.name());
        if lab.wants(&case) {
            let shipped = measure(lab, &case, &Setup::as_shipped(carrier, MANY as u32 + 64), MANY, Hints::None)?;
            lab.push(RowBuilder::new(&case, Metric::Rate, spread(&shipped, |figures| figures.rate)?));
            push_memory(lab, &case, &shipped)?;
        }
    }
    crowd(lab)
}

/// Sessions in use besides idle ones, with default settings, on the sockets of an unprivileged user: 184 places.
fn crowd(lab: &mut Lab) -> Result<(), BenchError> {
    let setup = Setup { unprivileged: true, ..Setup::as_shipped(Carrier::Udp, 0) };
    let few_case = format!("udp, a user's socket, {USED_FEW} sessions");
    let case = format!("udp, a user's socket, {USED} of {} sessions", USED + IDLE);
    if !lab.wants_any([few_case.as_str(), &case]) {
        return Ok(());
    }
    let few = measure(lab, &few_case, &setup, Sessions { open: USED_FEW, used: USED_FEW }, Hints::None)?;
    lab.push(RowBuilder::new(&few_case, Metric::Rate, spread(&few, |figures| figures.rate)?));
    let many = measure(lab, &case, &setup, Sessions { open: USED + IDLE, used: USED }, Hints::None)?;
    lab.push(
        RowBuilder::new(&case, Metric::Rate, spread(&many, |figures| figures.rate)?)
            .target(Target::CaseTimes { case: few_case, factor: CROWD_SHARE }),
    );
    push_memory(lab, &case, &many)
}

/// How many sessions are opened, and how many are used.
struct Sessions {
    open: usize,
    used: usize,
}

impl From<usize> for Sessions {
    fn from(all: usize) -> Sessions {
        Sessions { open: all, used: all }
    }
}

/// One credit each: what the paper recommends for very many sessions.
fn one_credit(carrier: Carrier) -> Setup {
    Setup { credits: 1, sessions: MANY as u32 + 64, ..Setup::new(carrier) }
}

fn push_memory(lab: &mut Lab, case: &str, measured: &[SessionFigures]) -> Result<(), BenchError> {
    for (end, spread) in [
        ("client", spread(measured, |figures| figures.client_bytes)?),
        ("server", spread(measured, |figures| figures.server_bytes)?),
    ] {
        let row = RowBuilder::new(format!("{case}, {end}, each used once"), Metric::SessionMemory, spread);
        lab.push(row.target(Target::Absolute(SESSION_BYTES_MAX)));
    }
    Ok(())
}

fn measure(
    lab: &mut Lab,
    case: &str,
    setup: &Setup,
    sessions: impl Into<Sessions>,
    hints: Hints,
) -> Result<Vec<SessionFigures>, BenchError> {
    let Sessions { open, used } = sessions.into();
    lab.case(case, |lab| {
        runs::with_server(lab, setup, |server| {
            let load = Load { hints, ..runs::small_load(lab, BATCH) };
            let client = SessionsClient { setup: setup.clone(), server, sessions: open, active: used, load };
            lab.client(client, lab.run_length())?.result()
        })
    })
}
