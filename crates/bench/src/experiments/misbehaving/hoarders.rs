//! A server of calls, and a client on another address of this host that takes what it can get.

use std::time::Duration;

use super::{Growth, Seen, Work, push, sharing};
use crate::BenchError;
use crate::experiments::runs::SMALL_BYTES;
use crate::lab::{Lab, spread};
use crate::peer::{Peer, Role};
use crate::report::{Metric, RowBuilder, Target};
use crate::roles::{
    BULK_BYTES, Carrier, Claims, ConnectBursts, ForgedUnreachables, Hoarder, LatencyClient, LimitedServer, RpcServing, Setup,
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
    let seen =
        lab.case(&case, |lab| round(lab, |server| Hoarder { server, sessions: HOARDING_SESSIONS }).map(|(seen, ())| seen))?;
    push(lab, &case, Metric::Rate, &seen, (HELD_BYTES_MAX / 2 + BESIDE_BUDGET) as f64)
}

/// Datagrams of CONNECTs.
pub(super) fn connects(lab: &mut Lab) -> Result<(), BenchError> {
    let case = format!("udp, datagrams of {CONNECTS} CONNECTs");
    let runs = lab.case(&case, |lab| {
        let (seen, Claims { accepted }) = round(lab, |server| ConnectBursts { server, connects: CONNECTS })?;
        Ok((seen, accepted))
    })?;
    let seen: Vec<Seen> = runs.iter().map(|(seen, _)| *seen).collect();
    push(lab, &case, Metric::Rate, &seen, BESIDE_BUDGET as f64)?;
    let accepted = spread(&runs, |(_, accepted)| f64::from(*accepted))?;
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
    let seen = lab.case(case, |lab| round(lab, |server| ForgedUnreachables { server }).map(|(seen, _)| seen))?;
    push(lab, case, Metric::Rate, &seen, BESIDE_BUDGET as f64)
}

/// One run beside a client of any kind, which is given the server's address.
pub(super) fn round<M: Role<Ready = ()>>(
    lab: &Lab,
    role: impl FnOnce(String) -> M,
) -> Result<(Seen, M::Output), BenchError> {
    let mut server = server(lab, Carrier::Udp, 2 * lab.run_length())?;
    let RpcServing { address, process } = server.ready()?;
    let work = || echoes(lab, Carrier::Udp, &address, lab.run_length());
    let alone = work()?;
    let growth = Growth::of(process)?;
    let mut misbehaving = lab.client(role(address.clone()), 4 * lab.run_length())?;
    misbehaving.ready()?;
    let (beside, taken) = sharing(&[misbehaving.id()], work)?;
    let grown = growth.most()?;
    let output = misbehaving.stop()?;
    server.stop()?;
    Ok((Seen { alone, beside, taken, grown }, output))
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
