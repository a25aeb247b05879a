//! Two servers of calls, and a client on another address of this host that takes as much as it can of one of them.

use std::time::Duration;

use dunlin_lab::peer::{Peer, Role};
use dunlin_lab::report::{Metric, RowBuilder, Target};
use dunlin_lab::spread;

use super::{Cost, Growth, SLICE, Seen, push, push_seen, sharing, slicing, with_threads};
use crate::rpc::roles::{
    AskCounted, BULK, BULK_BYTES, BULK_IN_BUFFERS, Both, Carrier, Claims, ConnectBursts, Counted, ForgedGuesses,
    ForgedUnreachables, Guesses, Hoarder, LimitedServer, Processes, RpcServing, Setup, Sliced, SlicedEchoes, Slicing,
};
use crate::rpc::runs::SMALL_BYTES;
use crate::{BenchError, Lab};

/// Limit of the server's message buffers, in bytes.
const BUFFER_BYTES_MAX: u64 = 64 << 20;
/// Limit of bytes that the server holds for other ends, of which one host gets half: three quarters of its buffers, as
/// without this limit.
const HELD_BYTES_MAX: u64 = BUFFER_BYTES_MAX / 4 * 3;
/// Sessions of the client that hoards large responses: with eight slots each they request over five times the server's
/// limit.
const HOARDING_SESSIONS: u32 = 32;
/// Limit of sessions of one host.
const SESSIONS_OF_HOST: u32 = 64;
/// CONNECTs in one datagram.
const CONNECTS: u32 = 700;
/// Sessions for which each end sizes its receive queue.
pub(super) const SESSIONS_PLANNED: u32 = 64;
/// Additional time limit of a server, for starting and ending its clients.
const CLIENT_SLACK: Duration = Duration::from_secs(60);
/// Memory that a server of calls needs besides its budget: sessions, and the one response that is made and refused.
pub(super) const BESIDE_BUDGET: u64 = (4 << 20) + BULK_BYTES as u64;

/// Minimum number of reports that the server must receive, and of guesses at open sessions that it must reject, during
/// a load, however short.
const REPORTS_MIN: u64 = 5;
const REJECTED: Enough = Enough::Of(20, |counted| counted.wrong_tags);
/// Loads after which no more is expected.
const LOADS_MAX: usize = 20;
/// Bytes that the server holds for working clients: a response for each of their slots.
const WORKING_BYTES: u64 = 1 << 20;

/// Calls of a working client, one at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Echo {
    pub name: &'static str,
    pub bytes: usize,
}

/// A call that needs nothing of the budget.
pub(super) const SMALL: Echo = Echo { name: "echo of 32 B", bytes: SMALL_BYTES };
/// A call whose request is held until it is complete, and whose response until it was fetched.
const LARGE: Echo = Echo { name: "echo of 100 kB", bytes: 100_000 };

/// Responses that a client makes the server keep, while it keeps its sessions alive: the application's own memory.
pub(super) fn responses(lab: &mut Lab) -> Result<(), BenchError> {
    hoarded(lab, "responses", BULK)
}

/// The same in message buffers, which have a server-wide limit.
pub(super) fn buffers(lab: &mut Lab) -> Result<(), BenchError> {
    hoarded(lab, "responses in message buffers", BULK_IN_BUFFERS)
}

fn hoarded(lab: &mut Lab, what: &str, request: u8) -> Result<(), BenchError> {
    let mib = u64::from(HOARDING_SESSIONS) * 8 * BULK_BYTES as u64 / (1 << 20);
    let case = with_threads(&format!("udp, {HOARDING_SESSIONS} sessions that have {mib} MiB of {what} kept"), 1);
    let echoes = [SMALL, LARGE];
    let role = |server| Hoarder { server, sessions: HOARDING_SESSIONS, request };
    let runs = rounds(lab, &case, &echoes, role, Enough::Always)?;
    push(
        lab,
        &case,
        (Metric::Rate, &echoes.map(|echo| echo.name)),
        &seen(&runs),
        (HELD_BYTES_MAX / 2 + BESIDE_BUDGET) as f64,
    )?;
    // Otherwise nothing is kept, and the rows above are meaningless.
    let held = spread(&runs, |run| run.after.held_bytes as f64)?;
    let row = RowBuilder::new(format!("{case}, counted by the server"), Metric::Memory, held);
    lab.push(row.target(Target::Absolute((HELD_BYTES_MAX / 2 + WORKING_BYTES) as f64)));
    let kept = runs.iter().map(|run| run.before.held_bytes.min(run.after.held_bytes) / BULK_BYTES as u64);
    // All but one of the responses that may be kept for one host.
    let asked = HELD_BYTES_MAX / 2 / BULK_BYTES as u64 - 1;
    push_seen(lab, format!("{case}, responses kept meanwhile"), asked, kept);
    Ok(())
}

/// Datagrams of CONNECTs.
pub(super) fn connects(lab: &mut Lab) -> Result<(), BenchError> {
    let case = with_threads(&format!("udp, datagrams of {CONNECTS} CONNECTs"), 1);
    // At least those of one datagram.
    let asked = Enough::Of(u64::from(CONNECTS - SESSIONS_OF_HOST), |counted| counted.refused);
    let runs = rounds(lab, &case, &[SMALL], |server| ConnectBursts { server, connects: CONNECTS }, asked)?;
    push(lab, &case, (Metric::Rate, &[SMALL.name]), &seen(&runs), BESIDE_BUDGET as f64)?;
    push_counted(lab, format!("{case}, refused meanwhile"), asked, &runs);
    let accepted = spread(&runs, |run| {
        let Claims { accepted } = run.output;
        f64::from(accepted)
    })?;
    let row = RowBuilder::new(format!("{case}, accepted"), Metric::Sessions, accepted);
    lab.push(row.target(Target::Absolute(f64::from(SESSIONS_OF_HOST))));
    Ok(())
}

/// Forged ICMP messages that report clients of the server as unreachable.
pub(super) fn unreachable(lab: &mut Lab) -> Result<(), BenchError> {
    let case = with_threads("udp, forged ICMP port-unreachables", 1);
    if let Err(error) = ForgedUnreachables::check_allowed() {
        lab.note(format!("{case} was skipped: {error}."));
        return Ok(());
    }
    let asked = Enough::Of(REPORTS_MIN, |counted| counted.reports);
    let runs = rounds(lab, &case, &[SMALL], |server| ForgedUnreachables { server }, asked)?;
    push(lab, &case, (Metric::Rate, &[SMALL.name]), &seen(&runs), BESIDE_BUDGET as f64)?;
    push_counted(lab, format!("{case}, heard by the server meanwhile"), asked, &runs);
    Ok(())
}

/// Guessed tags of the sessions of other clients, from the guesser's own address.
pub(super) fn guesses(lab: &mut Lab) -> Result<(), BenchError> {
    let case = with_threads("udp, guessed tags of others' sessions", 1);
    let runs = rounds(lab, &case, &[SMALL], |server| Guesses { server }, REJECTED)?;
    push_guesses(lab, &case, &runs)
}

/// The same from the addresses of those clients, at the maximum rate at which a session still accepts packets.
pub(super) fn guesses_in_name(lab: &mut Lab) -> Result<(), BenchError> {
    let case = with_threads("udp, guessed tags of others' sessions, from their addresses", 1);
    if let Err(error) = ForgedGuesses::check_allowed() {
        lab.note(format!("{case} was skipped: {error}."));
        return Ok(());
    }
    let runs = rounds(lab, &case, &[SMALL], |server| ForgedGuesses { server }, REJECTED)?;
    push_guesses(lab, &case, &runs)
}

fn push_guesses<O>(lab: &mut Lab, case: &str, runs: &[Round<O>]) -> Result<(), BenchError> {
    push(lab, case, (Metric::Rate, &[SMALL.name]), &seen(runs), BESIDE_BUDGET as f64)?;
    push_counted(lab, format!("{case}, at open sessions, rejected meanwhile"), REJECTED, runs);
    let taken = spread(runs, |run| run.after.bulk as f64)?;
    lab.push(RowBuilder::new(format!("{case}, taken"), Metric::Calls, taken).target(Target::Absolute(0.0)));
    Ok(())
}

/// What the server must count during a load, so that the load is one beside misbehaving clients.
#[derive(Clone, Copy)]
pub(super) enum Enough {
    /// Nothing.
    Always,
    /// This many.
    Of(u64, fn(&Counted) -> u64),
}

impl Enough {
    /// What was counted, and what is asked.
    fn of(self, before: &Counted, after: &Counted) -> (u64, u64) {
        match self {
            Enough::Always => (0, 0),
            Enough::Of(asked, count) => (count(after) - count(before), asked),
        }
    }
}

/// A row of the events that the server counted during the working load with misbehaving clients.
fn push_counted<O>(lab: &mut Lab, case: String, enough: Enough, runs: &[Round<O>]) {
    let Enough::Of(asked, _) = enough else { return };
    push_seen(lab, case, asked, runs.iter().map(|run| enough.of(&run.before, &run.after).0));
}

/// One run, with the server's counters before and after the working load with misbehaving clients.
pub(super) struct Round<O> {
    seen: Seen,
    before: Counted,
    after: Counted,
    /// The output of the misbehaving clients.
    pub output: O,
}

pub(super) fn seen<O>(runs: &[Round<O>]) -> Vec<Seen> {
    runs.iter().map(|run| run.seen.clone()).collect()
}

/// The runs of a case with a misbehaving client of any kind, which gets the server's address.
pub(super) fn rounds<M: Role<Ready = (), Error = BenchError>>(
    lab: &mut Lab,
    case: &str,
    works: &[Echo],
    role: impl Fn(String) -> M,
    enough: Enough,
) -> Result<Vec<Round<M::Output>>, BenchError> {
    super::check_wanted(lab, case)?;
    lab.case(case, |lab| round(lab, works, &role, enough))
}

fn round<M: Role<Ready = (), Error = BenchError>>(
    lab: &Lab,
    works: &[Echo],
    role: impl Fn(String) -> M,
    enough: Enough,
) -> Result<Round<M::Output>, BenchError> {
    let time = works.len() as u32 * slicing(lab, SLICE, Processes::default()).length();
    let mut beside = server(lab, Carrier::Udp, time)?;
    let mut alone = server(lab, Carrier::Udp, time)?;
    let (RpcServing { address, process }, other) = (beside.ready()?, alone.ready()?);
    let growth = Growth::of(process)?;
    let mut misbehaving = lab.client(role(address.clone()), 4 * time + CLIENT_SLACK)?;
    misbehaving.ready()?;
    let processes = Processes { beside: vec![misbehaving.id(), process], led: Vec::new(), alone: vec![other.process] };
    let slicing = slicing(lab, SLICE, processes);
    let servers = Both { beside: address.clone(), alone: other.address };
    let before = counted(lab, &address)?;
    let mut measured = (Vec::new(), 0.0);
    let mut after = before;
    // On a busy machine the misbehaving client may hardly have run.
    for _ in 0..LOADS_MAX {
        measured = sharing(&[misbehaving.id()], || {
            works.iter().map(|work| echoes(lab, Carrier::Udp, &servers, (work, &slicing))).collect()
        })?;
        after = counted(lab, &address)?;
        let (seen, asked) = enough.of(&before, &after);
        if seen >= asked {
            break;
        }
    }
    let (works, taken) = measured;
    let grown = growth.most()?;
    let output = misbehaving.stop()?;
    beside.stop()?;
    alone.stop()?;
    Ok(Round { seen: Seen { works, cost: Cost { taken, grown } }, before, after, output })
}

/// The server's counters now.
fn counted(lab: &Lab, server: &str) -> Result<Counted, BenchError> {
    let setup = Setup::as_shipped(Carrier::Udp, SESSIONS_PLANNED);
    lab.client(AskCounted { setup, server: server.to_owned() }, Duration::ZERO)?.result()
}

/// A server for working loads of this total length.
pub(super) fn server(lab: &Lab, carrier: Carrier, work: Duration) -> Result<Peer<LimitedServer>, BenchError> {
    let role = LimitedServer {
        setup: Setup::as_shipped(carrier, SESSIONS_PLANNED),
        held_bytes_max: HELD_BYTES_MAX,
        buffer_bytes_max: BUFFER_BYTES_MAX,
        sessions_of_host: SESSIONS_OF_HOST,
    };
    lab.server(role, 2 * work + CLIENT_SLACK)
}

/// Echoes, one at a time.
pub(super) fn echoes(
    lab: &Lab,
    carrier: Carrier,
    servers: &Both<String>,
    (echo, slicing): (&Echo, &Slicing),
) -> Result<Sliced, BenchError> {
    let setup = Setup::as_shipped(carrier, SESSIONS_PLANNED);
    let client = SlicedEchoes { setup, servers: servers.clone(), size: echo.bytes, slicing: slicing.clone() };
    lab.client(client, slicing.length())?.result()
}
