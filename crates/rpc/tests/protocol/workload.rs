//! What happens at random times: sessions, calls, cancellations, restarts, silences.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::fault::Faults;
use dunlin_rpc::{CallError, CallOptions, MsgBuf, Payload, RequestBuffer, Session};

use crate::cancel::cancellable;
use crate::handlers::{self, Local, TYPES, msgbuf};
use crate::ledger::{Behaviour, Record};
use crate::messages::{self, NAMED_BYTES_MIN};
use crate::random::Random;
use crate::scenario::Roughness;
use crate::world::{World, address};

/// How a call ended.
pub struct Outcome {
    result: Result<MsgBuf, CallError>,
    request: Payload,
}

/// Does one thing.
pub fn step(world: &mut World) {
    let node = world.random.index(world.nodes.len());
    let is_rough = world.scenario.roughness != Roughness::Steady;
    match world.random.between(0, 99) {
        0..=11 => connect(world, node),
        12..=79 => {
            // Several at once fill slots, queues and bursts.
            for _ in 0..world.random.between(1, 12) {
                call(world, node);
            }
        }
        80..=87 => cancel(world),
        88..=90 => _ = world.nodes[node].local.settle_deferred(),
        91..=92 => _ = world.nodes[node].local.run_workers(),
        93..=94 if is_rough => close(world, node),
        95 if is_rough => restart(world, node),
        96 if is_rough => silence(world, node),
        97 if is_rough => {
            world.nodes[node].stopped_until = world.now() + world.random.between(1, 60_000_000);
        }
        _ => weather(world, node),
    }
}

fn connect(world: &mut World, node: usize) {
    let to = world.random.index(world.nodes.len());
    let endpoint = world.nodes[node].endpoint();
    let connecting = endpoint.connect(&address(to));
    let (local, incarnation) = (world.nodes[node].local.clone(), world.nodes[node].local.incarnation);
    local.connecting.set(local.connecting.get() + 1);
    // One in ten is given up at once, or after its first packets.
    if world.random.chance(10) {
        let (task, handle) = cancellable(connecting);
        endpoint.spawn(async move {
            let opened = task.await;
            local.connecting.set(local.connecting.get() - 1);
            if let Some(Ok(session)) = opened {
                local.open(to, session);
            }
        });
        let end = world.now() + world.random.between(0, 200_000);
        world.run_until(end, |_| false);
        // The endpoint may have been replaced meanwhile only by another step, and none ran.
        assert_eq!(world.nodes[node].local.incarnation, incarnation);
        handle.cancel();
        return;
    }
    let strict = world.scenario.roughness == Roughness::Steady;
    endpoint.spawn(async move {
        let opened = connecting.await;
        local.connecting.set(local.connecting.get() - 1);
        match opened {
            Ok(session) => local.open(to, session),
            Err(error) => {
                use dunlin_rpc::ConnectError::*;
                let explained = matches!(error, NoCredits { .. } | Refused { .. });
                assert!(!strict || explained, "a session did not open: {error}");
            }
        }
    });
}

fn close(world: &mut World, node: usize) {
    let Some(session) = random_session(world, node) else { return };
    let local = world.nodes[node].local.clone();
    local.closing.set(local.closing.get() + 1);
    let closing = session.close();
    world.nodes[node].endpoint().spawn(async move {
        closing.await;
        local.closing.set(local.closing.get() - 1);
    });
}

/// A session of a node, opened by either side.
fn random_session(world: &mut World, node: usize) -> Option<Session> {
    let local = world.nodes[node].local.clone();
    local.outbound.borrow_mut().retain(Session::is_open);
    local.inbound.borrow_mut().retain(Session::is_open);
    let outbound = local.outbound.borrow();
    let inbound = local.inbound.borrow();
    let from = if world.random.chance(70) || inbound.is_empty() { &outbound } else { &inbound };
    world.random.pick(from).cloned()
}

fn random_len(random: &mut Random, packet: usize, max: usize) -> usize {
    let len = match random.between(0, 9) {
        0 => random.index(NAMED_BYTES_MIN + 1),
        1..=5 => random.index(packet + 1),
        6 => packet * random.between(1, 4) as usize,
        7 | 8 => random.index(packet * 5),
        _ => random.index(max + 1),
    };
    len.min(max)
}

/// Writes a call into the ledger, and makes its request.
fn plan(local: &Local, random: &mut Random, req_type: u8, packet: usize, max: usize, deadline: bool) -> (u64, Vec<u8>) {
    let len = random_len(random, packet, max);
    let response_len = random_len(random, packet, max);
    let behaviour =
        TYPES.iter().find(|(known, _)| *known == req_type).map_or(Behaviour::Missing, |(_, behaviour)| *behaviour);
    let record = Record {
        issuer: (local.index, local.incarnation),
        behaviour,
        named: len >= NAMED_BYTES_MIN,
        response_len,
        has_deadline: deadline,
        runs: 0,
        ended: None,
        cancelled: false,
    };
    let number = local.ledger.borrow_mut().add(record);
    (number, messages::request(number, len, response_len))
}

/// The same bytes in a buffer of a random kind.
pub fn payload(random: &mut Random, bytes: Vec<u8>) -> Payload {
    match random.between(0, 2) {
        0 => Payload::from(bytes),
        1 => Payload::from(bytes::Bytes::from(bytes)),
        _ => msgbuf(&bytes).into(),
    }
}

fn start<B: RequestBuffer + 'static>(
    session: &Session,
    req_type: u8,
    request: B,
    options: CallOptions,
) -> Pin<Box<dyn Future<Output = Outcome>>> {
    let call = session.call_with(req_type, request, options);
    Box::pin(async move {
        match call.await {
            Ok(reply) => Outcome { result: Ok(reply.response), request: reply.request.into() },
            Err(failure) => Outcome { result: Err(failure.error), request: failure.request.into() },
        }
    })
}

/// Checks how a call ended.
pub fn finish(local: &Local, number: u64, result: Result<MsgBuf, CallError>, request: &Payload) {
    let mut ledger = local.ledger.borrow_mut();
    let record = &ledger.records[number as usize];
    let expected = messages::request(number, request.len(), record.response_len);
    assert_eq!(request.as_slice(), expected, "call {number} gave another buffer back");
    match &result {
        Ok(response) => ledger.ended(number, Ok(response)),
        Err(error) => ledger.ended(number, Err(*error)),
    }
}

fn call(world: &mut World, node: usize) {
    let Some(session) = random_session(world, node) else { return };
    let Some(stats) = session.stats() else { return };
    let local = world.nodes[node].local.clone();
    let random = &mut world.random;
    let req_type = if random.chance(50) { handlers::DISPATCH } else { TYPES[random.index(TYPES.len())].0 };
    let uses_callback = random.chance(30);
    let timeout = (!uses_callback && random.chance(25))
        .then(|| Duration::from_nanos(*random.pick(&[0, 10_000, 1_000_000, 20_000_000, 400_000_000]).unwrap()));
    let max = stats.message_bytes_max.min(world.scenario.message_bytes_max);
    let (number, bytes) = plan(&local, random, req_type, stats.packet_data_bytes, max, timeout.is_some());
    let endpoint = world.nodes[node].endpoint();
    if uses_callback {
        let request = payload(random, bytes);
        if let Err(failure) = session.enqueue_request(req_type, request, world.nodes[node].continuation, number) {
            finish(&local, number, Err(failure.error), &failure.request);
        }
        return;
    }
    let mut options = CallOptions::default();
    options.timeout = timeout;
    let future = match random.between(0, 3) {
        0 => start(&session, req_type, bytes, options),
        1 => start(&session, req_type, bytes::Bytes::from(bytes), options),
        2 => start(&session, req_type, msgbuf(&bytes), options),
        _ => start(&session, req_type, Payload::from(bytes), options),
    };
    let (task, handle) = cancellable(future);
    endpoint.spawn(async move {
        if let Some(outcome) = task.await {
            finish(&local, number, outcome.result, &outcome.request);
        }
    });
    if random.chance(40) {
        world.cancels.push((number, handle));
    }
}

/// Handlers that wait for each other's slots would wait for ever; so nested calls give up after this time.
const NESTED_TIMEOUT: Duration = Duration::from_millis(10);

/// A call from inside a handler, for no longer than its own caller waits.
pub async fn nested_call(local: &Rc<Local>, session: &Session, time_left: Option<Duration>) {
    let Some(stats) = session.stats() else { return };
    let (number, bytes) = {
        let random = &mut local.random.borrow_mut();
        let max = stats.message_bytes_max.min(4 * stats.packet_data_bytes);
        plan(local, random, handlers::DISPATCH, stats.packet_data_bytes, max, true)
    };
    let mut options = CallOptions::default();
    options.timeout = Some(time_left.map_or(NESTED_TIMEOUT, |left| left.min(NESTED_TIMEOUT)));
    let outcome = start(session, handlers::DISPATCH, bytes, options).await;
    finish(local, number, outcome.result, &outcome.request);
}

fn cancel(world: &mut World) {
    for _ in 0..world.random.between(1, 4) {
        if world.cancels.is_empty() {
            return;
        }
        let at = world.random.index(world.cancels.len());
        let (number, handle) = world.cancels.swap_remove(at);
        if handle.cancel() {
            world.ledger.borrow_mut().cancelled(number);
        }
    }
}

/// Replaces an endpoint by a new one at the same address. Half of the time the old one dies without a word.
fn restart(world: &mut World, node: usize) {
    let crashes = world.random.chance(50);
    let old = &mut world.nodes[node];
    let issuer = (node, old.local.incarnation);
    if crashes {
        let all_lost = Faults { drop: 1.0, ..Faults::default() };
        old.endpoint().with_transport(|transport| transport.set_faults(all_lost).unwrap());
    }
    old.endpoint = None;
    // Workers know nothing of it, and go on.
    old.local.run_workers();
    // Handles may outlive their endpoint.
    for session in old.local.outbound.borrow().iter() {
        assert!(!session.is_open());
    }
    world.ledger.borrow_mut().abandon(issuer);
    if world.random.chance(50) {
        let end = world.now() + world.random.between(0, 3_000_000);
        let rest: Vec<_> = world.nodes.drain(node..).collect();
        let mut rest = rest.into_iter();
        let dead = rest.next();
        world.nodes.extend(rest);
        world.run_until(end, |_| false);
        let tail: Vec<_> = world.nodes.drain(node..).collect();
        world.nodes.extend(dead);
        world.nodes.extend(tail);
    }
    let new = world.start(node, issuer.1 + 1);
    world.nodes[node] = new;
}

fn silence(world: &mut World, node: usize) {
    let until = world.now() + world.random.between(1_000_000, 1_500_000_000);
    world.nodes[node].silent_until = until;
    let all_lost = Faults { drop: 1.0, ..Faults::default() };
    world.nodes[node].endpoint().with_transport(|transport| transport.set_faults(all_lost).unwrap());
    // Long silences are lived through, since steps are short.
    if world.random.chance(50) {
        world.run_until(until, |_| false);
    }
}

/// Other faults from now on.
fn weather(world: &mut World, node: usize) {
    let faults = if world.random.chance(30) {
        Faults::default()
    } else {
        world.scenario.faults[world.random.index(world.nodes.len())]
    };
    let node = &mut world.nodes[node];
    node.faults = faults;
    if node.silent_until == 0 {
        node.endpoint().with_transport(|transport| transport.set_faults(faults).unwrap());
    }
}
