//! The driver for tokio: an endpoint beside other tasks of a runtime of one thread.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dunlin_net::{Addr, AnyTransport, PollPolicy};
use dunlin_rpc::{CallError, Endpoint, EndpointConfig, Session};
use dunlin_serve::drive::drive;
use futures::future::join_all;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::{JoinHandle, LocalSet, spawn_local, yield_now};
use tokio::time::{sleep, timeout};

const ECHO: u8 = 1;
/// A request that is answered when the test says so.
const WAIT: u8 = 2;
/// Long enough for a busy machine; a test that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than an idle driver takes to fall asleep.
const REST: Duration = Duration::from_millis(2);

type AnyEndpoint = Endpoint<AnyTransport>;

fn shm(name: &str) -> Addr {
    format!("shm:test-drive-{name}-{}", std::process::id()).parse().unwrap()
}

fn udp() -> Addr {
    "udp://127.0.0.1:0".parse().unwrap()
}

/// An endpoint that echoes.
fn endpoint(addrs: &[Addr], config: EndpointConfig) -> Rc<AnyEndpoint> {
    let endpoint = Endpoint::new(AnyTransport::bind_all(addrs).unwrap(), config).unwrap();
    endpoint
        .register(ECHO, |request| {
            let payload = request.payload();
            request.respond(payload);
        })
        .unwrap();
    Rc::new(endpoint)
}

fn polling(poll: PollPolicy) -> EndpointConfig {
    EndpointConfig { poll, ..EndpointConfig::default() }
}

fn start_driver(endpoint: &Rc<AnyEndpoint>) -> JoinHandle<()> {
    let endpoint = endpoint.clone();
    spawn_local(async move {
        drive(&endpoint).await.unwrap();
    })
}

/// Runs a test in a runtime of one thread, like a tokio program.
fn in_runtime(test: impl AsyncFnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let within = LocalSet::new().block_on(&runtime, async { timeout(PATIENCE, test()).await });
    within.expect("it hangs");
}

async fn echo(session: &Session) {
    assert_eq!(session.call(ECHO, b"here".to_vec()).await.unwrap().response[..], *b"here");
}

/// Registers [`WAIT`]: each request waits for a permit of a tokio semaphore. Returns the semaphore, and what is
/// notified when a request begins to wait.
fn register_wait(endpoint: &AnyEndpoint) -> (Rc<Semaphore>, Rc<Notify>) {
    let (gate, begun) = (Rc::new(Semaphore::new(0)), Rc::new(Notify::new()));
    let (waited, notified) = (gate.clone(), begun.clone());
    let handler = move |request: dunlin_rpc::OwnedRequest| {
        let (gate, begun) = (waited.clone(), notified.clone());
        async move {
            begun.notify_one();
            gate.acquire().await.unwrap().forget();
            request.into_payload()
        }
    };
    endpoint.register_async(WAIT, handler).unwrap();
    (gate, begun)
}

/// A lost wake-up costs a tenth of a second: [`dunlin_net::SLEEP_MAX`] ends the sleep then.
#[test]
fn a_driver_that_sleeps_is_woken_by_packets_tasks_and_threads() {
    const ROUNDS: u32 = 50;
    for addrs in [vec![udp()], vec![shm("wake")], vec![shm("wake"), udp()]] {
        in_runtime(async || {
            let endpoint = endpoint(&addrs, polling(PollPolicy::Sleep));
            let driver = start_driver(&endpoint);
            let address = endpoint.local_addr();
            let (ask, asked) = std::sync::mpsc::channel::<oneshot::Sender<()>>();
            let other_process = thread::spawn(move || {
                let client =
                    Endpoint::new(AnyTransport::for_peer(&address).unwrap(), EndpointConfig::default()).unwrap();
                while let Ok(done) = asked.recv() {
                    // It was silent for a while, so it connects again.
                    let session = client.block_on(client.connect(&address)).unwrap();
                    client.block_on(echo(&session));
                    done.send(()).unwrap();
                }
            });
            let session = endpoint.connect(&endpoint.local_addr()).await.unwrap();
            let slept_before = endpoint.stats().transport.waits;
            // Half of what it takes if each wake-up is lost. Again if the machine was too busy.
            let limit = 3 * ROUNDS * Duration::from_millis(50);
            let mut times = Vec::new();
            while times.len() < 3 && times.last().is_none_or(|time| *time >= limit) {
                let begun = Instant::now();
                for _ in 0..ROUNDS {
                    sleep(REST).await;
                    // A packet.
                    let (done, is_done) = oneshot::channel();
                    ask.send(done).unwrap();
                    is_done.await.unwrap();
                    sleep(REST).await;
                    // A call of another task of this thread.
                    echo(&session).await;
                    sleep(REST).await;
                    // Another thread, which wakes a task of the endpoint.
                    let (wake, woken) = oneshot::channel();
                    let (tell, told) = oneshot::channel();
                    endpoint.spawn(async move {
                        woken.await.unwrap();
                        tell.send(()).unwrap();
                    });
                    thread::spawn(move || {
                        thread::sleep(REST);
                        wake.send(()).unwrap();
                    });
                    told.await.unwrap();
                }
                times.push(begun.elapsed());
            }
            assert!(times.last().is_some_and(|time| *time < limit), "{addrs:?}: {times:?}");
            assert!(endpoint.stats().transport.waits >= slept_before + u64::from(ROUNDS), "it never slept");
            drop(ask);
            other_process.join().unwrap();
            driver.abort();
        });
    }
}

#[test]
fn a_shutdown_beside_a_driver_answers_what_is_in_progress() {
    in_runtime(async || {
        let server = endpoint(&[shm("shutdown")], EndpointConfig::default());
        let (gate, begun) = register_wait(&server);
        let client = endpoint(&[shm("shutdown-client")], EndpointConfig::default());
        let drivers = [start_driver(&server), start_driver(&client)];
        let session = client.connect(&server.local_addr()).await.unwrap();
        let in_progress = spawn_local({
            let session = session.clone();
            async move { session.call(WAIT, b"late".to_vec()).await }
        });
        begun.notified().await;
        let stopping = spawn_local({
            let server = server.clone();
            async move { server.shutdown(PATIENCE).await }
        });
        yield_now().await;
        assert!(!stopping.is_finished(), "a request is in progress");
        gate.add_permits(1);
        assert_eq!(in_progress.await.unwrap().unwrap().response[..], *b"late");
        assert!(stopping.await.unwrap().is_nothing());
        assert_eq!(session.call(ECHO, Vec::new()).await.unwrap_err().error, CallError::Closed);
        drivers.iter().for_each(JoinHandle::abort);
    });
}

/// A driver is an ordinary future: a program may drop it at any await, and start another.
#[test]
fn a_call_outlives_its_driver() {
    in_runtime(async || {
        let endpoint = endpoint(&[shm("again"), udp()], EndpointConfig::default());
        let (gate, begun) = register_wait(&endpoint);
        let first = start_driver(&endpoint);
        let session = endpoint.connect(&endpoint.local_addr()).await.unwrap();
        let call = spawn_local({
            let session = session.clone();
            async move { session.call(WAIT, b"kept".to_vec()).await }
        });
        begun.notified().await;
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        gate.add_permits(1);
        sleep(REST).await;
        assert!(!call.is_finished(), "nothing turns the endpoint");
        let second = start_driver(&endpoint);
        assert_eq!(call.await.unwrap().unwrap().response[..], *b"kept");
        second.abort();
    });
}

/// The endpoint never sleeps and always has packets; tasks and sockets beside it make progress all the same.
#[test]
fn tasks_beside_a_busy_driver_have_their_turn() {
    const TURNS: u32 = 200;
    in_runtime(async || {
        let endpoint = endpoint(&[shm("busy")], polling(PollPolicy::Spin));
        let driver = start_driver(&endpoint);
        let (address, stop) = (endpoint.local_addr(), Arc::new(AtomicBool::new(false)));
        let stopped = stop.clone();
        let flood = thread::spawn(move || {
            let client = Endpoint::new(AnyTransport::for_peer(&address).unwrap(), EndpointConfig::default()).unwrap();
            let session = client.block_on(client.connect(&address)).unwrap();
            while !stopped.load(Ordering::Relaxed) {
                client.block_on(join_all((0..8).map(|_| echo(&session))));
            }
        });
        let (mut near, mut far) = tokio::net::UnixStream::pair().unwrap();
        for turn in 0..TURNS {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            near.write_u32(turn).await.unwrap();
            assert_eq!(far.read_u32().await.unwrap(), turn);
            sleep(Duration::from_micros(1)).await;
        }
        stop.store(true, Ordering::Relaxed);
        // Its last calls are answered.
        while !flood.is_finished() {
            yield_now().await;
        }
        flood.join().unwrap();
        driver.abort();
    });
}

/// Handlers that wait for something of tokio's hold no more requests than the endpoint allows; callers are told to
/// retry later, and everything that was held is answered.
#[test]
fn requests_beyond_what_handlers_may_hold_are_pushed_back() {
    const HELD_MAX: u32 = 5;
    const CALLS: usize = 8;
    in_runtime(async || {
        let config = EndpointConfig { deferred_requests_max: HELD_MAX, ..EndpointConfig::default() };
        let server = endpoint(&[shm("held")], config);
        let (gate, _) = register_wait(&server);
        let client = endpoint(&[shm("held-client")], EndpointConfig::default());
        let drivers = [start_driver(&server), start_driver(&client)];
        let session = client.connect(&server.local_addr()).await.unwrap();
        let (pushed_back, answered) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())));
        let calls = (0..CALLS).map(|number| {
            let (session, pushed_back, answered) = (session.clone(), pushed_back.clone(), answered.clone());
            spawn_local(async move {
                match session.call(WAIT, vec![number as u8]).await {
                    Ok(reply) => answered.borrow_mut().extend_from_slice(&reply.response),
                    Err(failure) => {
                        assert_eq!(failure.error, CallError::Busy);
                        pushed_back.set(pushed_back.get() + 1);
                    }
                }
            })
        });
        let calls: Vec<_> = calls.collect();
        while pushed_back.get() < CALLS - HELD_MAX as usize {
            yield_now().await;
        }
        assert!(answered.borrow().is_empty());
        gate.add_permits(CALLS);
        for call in calls {
            call.await.unwrap();
        }
        assert_eq!((answered.borrow().len(), pushed_back.get()), (HELD_MAX as usize, CALLS - HELD_MAX as usize));
        drivers.iter().for_each(JoinHandle::abort);
    });
}
