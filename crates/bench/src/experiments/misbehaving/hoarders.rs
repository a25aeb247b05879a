//! A server of calls, and a client on another address of this host that takes what it can get.

use std::time::Duration;

use super::{Growth, Seen, Work, push, push_seen, sharing};
use crate::BenchError;
use crate::experiments::runs::SMALL_BYTES;
use crate::lab::{Lab, spread};
use crate::peer::{Peer, Role};
use crate::report::{Metric, RowBuilder, Target};
use crate::roles::{
    AskCounted, BULK_BYTES, Carrier, Claims, ConnectBursts, Counted, ForgedUnreachables, Guesses, Hoarder, LatencyClient,
    LimitedServer, RpcServing, Setup,
};

/// Bytes that other ends may make the server hold, of which one host gets half.
const HELD_BYTES_MAX: u64 = 64 << 20;
/// Sessions of the client that has large responses kept: with eight slots each they ask for four times what the server may hold.
const HOARDING_SESSIONS: u32 = 32;
/// Sessions that one host may open.
const SESSIONS_OF_HOST: u32 = 64;
/// CONNECTs in one datagram.
const CONNECTS: u32 = 700;
/// Sessions for which either end plans its receive queue.
pub(super) const SESSIONS_PLANNED: u32 = 64;
/// Time a server waits for its clients to come and go.
const CLIENT_SLACK: Duration = Duration::from_secs(60);
/// What a server of calls needs beside its budget: sessions, and the one response that is made and refused.
pub(super) const BESIDE_BUDGET: u64 = (4 << 20) + BULK_BYTES as u64;

/// Responses that a client has the server keep, while it says that it is alive.
pub(super) fn responses(lab: &mut Lab) -> Result<(), BenchError> {
    let mib = u64::from(HOARDING_SESSIONS) * 8 * BULK_BYTES as u64 / (1 << 20);
    let case = format!("udp, {HOARDING_SESSIONS} sessions that have {mib} MiB of responses kept");
    let runs = lab.case(&case, |lab| round(lab, |server| Hoarder { server, sessions: HOARDING_SESSIONS }))?;
    push(lab, &case, Metric::Rate, &seen(&runs), (HELD_BYTES_MAX / 2 + BESIDE_BUDGET) as f64)?;
    // Else nothing is kept, and the rows above show nothing.
    let held = spread(&runs, |run| run.after.held_bytes as f64)?;
    let row = RowBuilder::new(format!("{case}, counted by the server"), Metric::Memory, held);
    lab.push(row.target(Target::Absolute((HELD_BYTES_MAX / 2) as f64)));
    let kept = runs.iter().map(|run| run.before.held_bytes.min(run.after.held_bytes) / BULK_BYTES as u64);
    push_seen(lab, format!("{case}, responses kept meanwhile"), kept);
    Ok(())
}

/// Datagrams of CONNECTs.
pub(super) fn connects(lab: &mut Lab) -> Result<(), BenchError> {
    let case = format!("udp, datagrams of {CONNECTS} CONNECTs");
    let runs = lab.case(&case, |lab| round(lab, |server| ConnectBursts { server, connects: CONNECTS }))?;
    push(lab, &case, Metric::Rate, &seen(&runs), BESIDE_BUDGET as f64)?;
    let refused = runs.iter().map(|run| run.after.refused - run.before.refused);
    push_seen(lab, format!("{case}, refused meanwhile"), refused);
    let accepted = spread(&runs, |run| {
        let Claims { accepted } = run.output;
        f64::from(accepted)
    })?;
    let row = RowBuilder::new(format!("{case}, accepted"), Metric::Sessions, accepted);
    lab.push(row.target(Target::Absolute(f64::from(SESSIONS_OF_HOST))));
    Ok(())
}

/// Forged ICMP messages that say that clients of the server are not there.
pub(super) fn unreachable(lab: &mut Lab) -> Result<(), BenchError> {
    let case = "udp, forged ICMP port-unreachables";
    if let Err(error) = ForgedUnreachables::check_allowed() {
        lab.note(format!("{case} was skipped: {error}."));
        return Ok(());
    }
    let runs = lab.case(case, |lab| round(lab, |server| ForgedUnreachables { server }))?;
    push(lab, case, Metric::Rate, &seen(&runs), BESIDE_BUDGET as f64)?;
    let pings = runs.iter().map(|run| run.after.pings - run.before.pings);
    push_seen(lab, format!("{case}, pings of the server meanwhile"), pings);
    Ok(())
}

/// Guessed tags of the sessions of other clients, from an address of the guesser's own.
pub(super) fn guesses(lab: &mut Lab) -> Result<(), BenchError> {
    let case = "udp, guessed tags of others' sessions";
    let runs = lab.case(case, |lab| round(lab, |server| Guesses { server }))?;
    push(lab, case, Metric::Rate, &seen(&runs), BESIDE_BUDGET as f64)?;
    let rejected = runs.iter().map(|run| run.after.unknown_session - run.before.unknown_session);
    push_seen(lab, format!("{case}, rejected meanwhile"), rejected);
    let taken = spread(&runs, |run| run.after.bulk as f64)?;
    lab.push(RowBuilder::new(format!("{case}, taken"), Metric::Calls, taken).target(Target::Absolute(0.0)));
    Ok(())
}

/// One run, with what the server had counted before and after the working load beside misbehaving clients.
pub(super) struct Round<O> {
    seen: Seen,
    before: Counted,
    after: Counted,
    /// What the misbehaving clients say.
    pub output: O,
}

pub(super) fn seen<O>(runs: &[Round<O>]) -> Vec<Seen> {
    runs.iter().map(|run| run.seen).collect()
}

/// One run beside a client of any kind, which is given the server's address.
pub(super) fn round<M: Role<Ready = ()>>(lab: &Lab, role: impl FnOnce(String) -> M) -> Result<Round<M::Output>, BenchError> {
    let mut server = server(lab, Carrier::Udp, 2 * lab.run_length())?;
    let RpcServing { address, process } = server.ready()?;
    let work = || echoes(lab, Carrier::Udp, &address, lab.run_length());
    let alone = work()?;
    let growth = Growth::of(process)?;
    let mut misbehaving = lab.client(role(address.clone()), 4 * lab.run_length())?;
    misbehaving.ready()?;
    let before = counted(lab, &address)?;
    let (beside, taken) = sharing(&[misbehaving.id()], work)?;
    let after = counted(lab, &address)?;
    let grown = growth.most()?;
    let output = misbehaving.stop()?;
    server.stop()?;
    Ok(Round { seen: Seen { alone, beside, taken, grown }, before, after, output })
}

/// What the server has counted until now.
fn counted(lab: &Lab, server: &str) -> Result<Counted, BenchError> {
    let setup = Setup::as_shipped(Carrier::Udp, SESSIONS_PLANNED);
    lab.client(AskCounted { setup, server: server.to_owned() }, Duration::ZERO)?.result()
}

/// A server for working loads of this length together.
pub(super) fn server(lab: &Lab, carrier: Carrier, work: Duration) -> Result<Peer<LimitedServer>, BenchError> {
    let setup = Setup::as_shipped(carrier, SESSIONS_PLANNED);
    let role = LimitedServer { setup, held_bytes_max: HELD_BYTES_MAX, sessions_of_host: SESSIONS_OF_HOST };
    lab.server(role, 2 * work + CLIENT_SLACK)
}

/// Small echoes, one at a time.
pub(super) fn echoes(lab: &Lab, carrier: Carrier, server: &str, run: Duration) -> Result<Work, BenchError> {
    let setup = Setup::as_shipped(carrier, SESSIONS_PLANNED);
    let client = LatencyClient { setup, server: server.to_owned(), size: SMALL_BYTES, run };
    let latency = lab.client(client, run)?.result()?;
    Ok(Work { rate: latency.count as f64 / run.as_secs_f64(), p99: latency.p99 })
}
