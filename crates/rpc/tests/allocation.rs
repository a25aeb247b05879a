//! A small call in steady state allocates nothing, on either side: a counting allocator checks that.

mod pair;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;

use dunlin_rpc::{Completion, MsgBuf, RequestBuffer, Session};
use pair::Lab;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
}

// SAFETY: every method passes its arguments to the system's allocator and only counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        count();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, len) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const ECHO: u8 = 1;
const BURST: u8 = 2;
/// Enough for every pool to reach its size, and for ticks, releases and timers to have run.
const WARM_UP_CALLS: u32 = 200_000;
const COUNTED_CALLS: u32 = 50_000;
const IN_FLIGHT: u32 = 20;

fn lab() -> (Lab, Session) {
    let lab = Lab::pair();
    lab.server()
        .register(ECHO, |request| {
            let payload = request.payload();
            request.respond(payload);
        })
        .unwrap();
    let answer_all = |burst: &mut dunlin_rpc::RequestBurst<'_>| {
        for i in 0..burst.len() {
            burst.respond(i, burst.payload(i));
        }
    };
    lab.server().register_burst(BURST, answer_all).unwrap();
    let session = lab.connect();
    (lab, session)
}

/// Allocations of `work` in steady state.
fn allocations_of(mut work: impl FnMut(u32)) -> u64 {
    work(WARM_UP_CALLS);
    let before = ALLOCATIONS.get();
    work(COUNTED_CALLS);
    ALLOCATIONS.get() - before
}

fn callbacks_allocate(req_type: u8, len: usize) -> u64 {
    let (lab, session) = lab();
    // Buffers ready for the next call.
    let idle: Rc<RefCell<Vec<MsgBuf>>> = Rc::default();
    let payload = vec![3; len];
    for _ in 0..IN_FLIGHT {
        idle.borrow_mut().push(MsgBuf::copy_from(&payload).unwrap());
    }
    let at = idle.clone();
    let done = Rc::new(Cell::new(0));
    let counter = done.clone();
    let continuation = lab.client().register_continuation(move |completion: Completion| {
        // The last calls end with their endpoint.
        let Ok(response) = completion.result else { return };
        assert_eq!(&response[..], &payload[..]);
        let request = MsgBuf::from_payload(completion.request).expect("the kind of buffer that was given");
        at.borrow_mut().push(request);
        counter.set(counter.get() + 1);
    });
    allocations_of(|calls| {
        let end = done.get() + calls;
        while done.get() < end {
            while let Some(request) = idle.borrow_mut().pop() {
                session.enqueue_request(req_type, request, continuation, 0).unwrap();
            }
            lab.turn();
        }
    })
}

#[test]
fn a_callback_allocates_nothing() {
    assert_eq!(callbacks_allocate(ECHO, 32), 0, "with a dispatch handler");
    assert_eq!(callbacks_allocate(BURST, 32), 0, "with a burst handler");
}

#[test]
fn a_callback_of_several_packets_allocates_nothing() {
    assert_eq!(callbacks_allocate(ECHO, 10_000), 0);
}

#[test]
fn an_awaited_call_allocates_nothing() {
    for req_type in [ECHO, BURST] {
        let (lab, session) = lab();
        let mut idle = Some(MsgBuf::copy_from(&[3; 32]).unwrap());
        let allocations = allocations_of(|calls| {
            for _ in 0..calls {
                let request = idle.take().unwrap();
                let mut call = pin!(session.call(req_type, request));
                let reply = loop {
                    lab.server().run_once();
                    if let Some(reply) = lab.client().poll_once(call.as_mut()) {
                        break reply.unwrap();
                    }
                    lab.network.advance(std::time::Duration::from_micros(1));
                };
                assert_eq!(&reply.response[..], &[3; 32]);
                idle = Some(reply.request);
            }
        });
        assert_eq!(allocations, 0, "request type {req_type}");
    }
}

#[test]
fn tasks_that_call_many_times_allocate_nothing_per_call() {
    let (lab, session) = lab();
    let done = Rc::new(Cell::new(0));
    for _ in 0..IN_FLIGHT {
        let (session, done) = (session.clone(), done.clone());
        lab.client().spawn(async move {
            let mut request = MsgBuf::copy_from(&[3; 32]).unwrap();
            loop {
                let reply = session.call(ECHO, request).await.unwrap();
                request = reply.request;
                done.set(done.get() + 1);
            }
        });
    }
    let allocations = allocations_of(|calls| {
        let end = done.get() + calls;
        while done.get() < end {
            lab.turn();
        }
    });
    assert_eq!(allocations, 0);
}
