//! Hands requests to their handlers: in place, in bursts, as tasks, or to worker threads.

use std::rc::Rc;

use arrayvec::ArrayVec;
use dunlin_net::Transport;
use dunlin_net::transport::RX_BURST;

use super::Shared;
use super::handler::{Handler, OwnedRequest, ReplyRight, Request, RequestBurst};
use super::worker::Job;
use crate::core::serve::{Dispatch, ServeRef};
use crate::msgbuf::MsgBuf;
use crate::wire::Status;

/// Runs the handlers of a burst's requests, in order; consecutive requests of one type are handed over together if
/// their handler wants that. `passed` counts requests before their handler gets them, for the code that takes care of
/// the rest if a handler panics.
pub(crate) fn run_handlers<T: Transport>(
    shared: &Rc<Shared>,
    transport: &mut T,
    dispatches: &[(u8, Dispatch)],
    passed: &mut usize,
) {
    let mut rest = dispatches;
    while let Some((_, first)) = rest.first() {
        let req_type = first.req_type();
        let same = rest.iter().take_while(|(_, d)| d.req_type() == req_type).count();
        let (group, after) = rest.split_at(same);
        rest = after;
        let handler = shared.handlers.get(req_type as usize);
        match handler.as_ref().map(|handler| handler.try_borrow_mut()) {
            Some(Ok(mut handler)) => run_group(shared, transport, &mut handler, group, passed),
            _ => refuse(shared, group, passed),
        }
        if !shared.core.borrow().config.optimizations.transmit_batching.is_on() {
            shared.core.borrow_mut().transmit(transport);
        }
    }
}

#[cold]
fn refuse(shared: &Rc<Shared>, group: &[(u8, Dispatch)], passed: &mut usize) {
    *passed += group.len();
    for (_, dispatch) in group {
        shared.core.borrow_mut().respond_status(dispatch.serve, Status::NoHandler);
    }
}

/// Runs one handler for some requests.
fn run_group<T: Transport>(
    shared: &Rc<Shared>,
    packets: &T,
    handler: &mut Handler,
    group: &[(u8, Dispatch)],
    passed: &mut usize,
) {
    match handler {
        Handler::Dispatch(handle) => for_each(shared, packets, group, passed, |serve, payload, req_type| {
            handle(Request::new(shared, serve, payload, req_type));
        }),
        Handler::Burst(handle) => run_burst(shared, packets, group, passed, |requests, req_type| {
            handle(&mut RequestBurst::new(shared, requests, req_type));
        }),
        Handler::Async(start) => for_each(shared, packets, group, passed, |serve, payload, _| {
            if let Some(payload) = admit(shared, serve, payload) {
                let right = ReplyRight::new(shared, serve);
                let request = OwnedRequest::new(shared, serve, payload);
                shared.executor.spawn(start(request, right));
            }
        }),
        Handler::Worker { pool, handler } => for_each(shared, packets, group, passed, |serve, payload, _| {
            if let Some(request) = admit(shared, serve, payload) {
                pool.send(Job::new(shared, serve, request, handler.clone()));
            }
        }),
    }
}

/// Passes each request to `run`, unless its caller has given up meanwhile.
#[inline(always)]
fn for_each<T: Transport>(
    shared: &Rc<Shared>,
    packets: &T,
    group: &[(u8, Dispatch)],
    passed: &mut usize,
    mut run: impl FnMut(ServeRef, &[u8], u8),
) {
    for (i, dispatch) in group {
        *passed += 1;
        let buffer = take_buffer(shared, dispatch);
        if let Some(payload) = payload_of(packets, *i, dispatch, buffer.as_ref())
            && !is_over(shared, dispatch.serve)
        {
            run(dispatch.serve, payload, dispatch.req_type());
        }
    }
}

/// Passes all requests to `run` together, except those whose callers have given up meanwhile.
fn run_burst<T: Transport>(
    shared: &Rc<Shared>,
    packets: &T,
    group: &[(u8, Dispatch)],
    passed: &mut usize,
    run: impl FnOnce(&[(ServeRef, &[u8])], u8),
) {
    let buffers: ArrayVec<_, RX_BURST> = group.iter().map(|(_, dispatch)| take_buffer(shared, dispatch)).collect();
    let mut batch = ArrayVec::<(ServeRef, &[u8]), RX_BURST>::new();
    for ((i, dispatch), buffer) in group.iter().zip(&buffers) {
        if let Some(payload) = payload_of(packets, *i, dispatch, buffer.as_ref())
            && !is_over(shared, dispatch.serve)
        {
            batch.push((dispatch.serve, payload));
        }
    }
    // If anything panics from here on, the burst's `Drop` answers its requests.
    *passed += group.len();
    if let Some((_, first)) = group.first()
        && !batch.is_empty()
    {
        run(&batch, first.req_type());
    }
}

/// The buffer of a request that is not used in place.
#[inline]
fn take_buffer(shared: &Rc<Shared>, dispatch: &Dispatch) -> Option<MsgBuf> {
    if dispatch.in_packet().is_some() {
        return None;
    }
    let serve = &mut shared.core.borrow_mut().serves[dispatch.serve.place()];
    // A later packet of the burst may have begun the slot's next request; the buffer is then that one's.
    if serve.generation == dispatch.serve.generation() { serve.request.take() } else { None }
}

#[inline]
fn payload_of<'a, T: Transport>(
    transport: &'a T,
    i: u8,
    dispatch: &Dispatch,
    buffer: Option<&'a MsgBuf>,
) -> Option<&'a [u8]> {
    match dispatch.in_packet() {
        Some((start, len)) => {
            let bytes = transport.rx_packet(i as usize).bytes()?;
            bytes.get(start..start + len)
        }
        None => buffer.map(|buffer| &buffer[..]),
    }
}

/// Whether the caller has given up already, by its deadline or by a later packet of the same burst; nothing then runs.
#[inline]
fn is_over(shared: &Rc<Shared>, serve: ServeRef) -> bool {
    let mut core = shared.core.borrow_mut();
    let entry = &core.serves[serve.place()];
    if entry.generation != serve.generation() {
        return true;
    }
    if entry.deadline > core.now {
        return false;
    }
    core.counters.requests_expired += 1;
    core.respond_status(serve, Status::Expired);
    true
}

/// Copies a request for a handler that outlives the burst and has not started, or pushes it back if there are too many
/// such requests.
fn admit(shared: &Rc<Shared>, serve: ServeRef, payload: &[u8]) -> Option<MsgBuf> {
    let request = keep(shared, serve, payload);
    if request.is_none() {
        push_back(shared, serve);
    }
    request
}

/// Copies a request that will outlive the burst, unless there are too many such requests.
pub(crate) fn keep(shared: &Rc<Shared>, serve: ServeRef, payload: &[u8]) -> Option<MsgBuf> {
    let request = MsgBuf::copy_from(payload).ok()?;
    may_defer(shared, serve).then_some(request)
}

/// Whether one more request may be held; if so, notes that this one is.
pub(crate) fn may_defer(shared: &Rc<Shared>, serve: ServeRef) -> bool {
    let mut core = shared.core.borrow_mut();
    let fits_share = core.may_defer(serve);
    core.counters.requests_over_deferred_share += u64::from(!fits_share);
    let may = fits_share && core.deferred + shared.at_workers.get() < core.config.deferred_requests_max;
    if may {
        core.note_deferred(serve);
    }
    may
}

pub(crate) fn push_back(shared: &Rc<Shared>, serve: ServeRef) {
    let mut core = shared.core.borrow_mut();
    core.counters.requests_pushed_back += 1;
    core.respond_status(serve, Status::Busy);
}
