//! Handles: one endpoint, used by many threads and by a tokio runtime.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dunlin_net::{Addr, AnyTransport, Transport};
use dunlin_rpc::{Endpoint, EndpointConfig, MsgBuf, Request};
use dunlin_serve::channel::{CallPolicy, ChannelConfig, Why};
use dunlin_serve::handle::{Handle, HandleConfig, HandleError};
use dunlin_serve::{Core, ServeConfig, ServeError, Server, Service, Site};
use futures::FutureExt;

const ADD: u8 = 1;
/// A request that is never answered.
const KEEP: u8 = 2;
const PATIENCE: Duration = Duration::from_secs(60);

struct Adder;
struct AdderCore;

impl Core for AdderCore {
    type Letter = ();
    type Plan = ();
    type Error = ServeError;
}

impl<T: Transport + 'static> Service<T> for Adder {
    type Core = AdderCore;
    type Ready = ();
    type Finish = ();

    fn build(&self, site: Site<T, ()>) -> Result<(AdderCore, ()), ServeError> {
        site.endpoint.register(ADD, |request| {
            let sum: u64 = request.payload().iter().copied().map(u64::from).sum();
            request.respond(&sum.to_le_bytes());
        })?;
        let kept = RefCell::new(Vec::new());
        site.endpoint.register(KEEP, move |request| kept.borrow_mut().extend(request.defer()))?;
        Ok((AdderCore, ()))
    }

    fn plan(&self, _: Vec<()>) -> Result<(), ServeError> {
        Ok(())
    }
}

fn address(name: &str) -> Addr {
    format!("shm:test-handle-{name}-{}", std::process::id()).parse().unwrap()
}

fn serve(listen: &Addr) -> Server<Adder> {
    let config = ServeConfig { listen: vec![listen.clone()], ..ServeConfig::named("adder") };
    Server::start(Arc::new(Adder), config).unwrap()
}

fn handle(listen: &Addr, calls_max: usize) -> Handle {
    let channel = ChannelConfig { timeout: Some(PATIENCE), ..ChannelConfig::default() };
    Handle::start(vec![listen.clone()], HandleConfig { channel, calls_max, ..HandleConfig::default() }).unwrap()
}

fn request(bytes: &[u8]) -> MsgBuf {
    MsgBuf::copy_from(bytes).unwrap()
}

#[test]
fn threads_and_tasks_of_a_runtime_share_one_endpoint() {
    fn assert_shareable<H: Clone + Send + Sync>(_: &H) {}
    let address = address("shared");
    let server = serve(&address);
    // Fewer than there are callers: the other callers wait.
    let handle = handle(&address, 3);
    assert_shareable(&handle);
    let call = |byte: u8| {
        let handle = handle.clone();
        move || {
            for more in 0..50 {
                let sum = handle.call_blocking(ADD, request(&[byte, more]), CallPolicy::default()).unwrap();
                assert_eq!(sum[..], (u64::from(byte) + u64::from(more)).to_le_bytes());
            }
        }
    };
    let threads: Vec<_> = (0..8).map(|byte| std::thread::spawn(call(byte))).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..20u8)
            .map(|byte| {
                let handle = handle.clone();
                tokio::spawn(async move { handle.call(ADD, request(&[byte]), CallPolicy::default()).await })
            })
            .collect();
        for (byte, task) in (0..20u64).zip(tasks) {
            assert_eq!(task.await.unwrap().unwrap()[..], byte.to_le_bytes());
        }
    });
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    drop(handle);
    server.stop().unwrap();
}

#[test]
fn a_service_that_is_not_there_is_an_error_and_one_that_comes_back_is_found() {
    let address = address("back");
    let handle = handle(&address, 8);
    let error = handle.call_blocking(ADD, request(&[1]), CallPolicy::default()).unwrap_err();
    let HandleError::Call(error) = error else { panic!("{error}") };
    assert!(matches!(error.why, Why::Connect(_)) && !error.may_have_run, "{error}");
    for _ in 0..2 {
        let server = serve(&address);
        assert_eq!(handle.call_blocking(ADD, request(&[1]), CallPolicy::repeatable()).unwrap()[..], 1u64.to_le_bytes());
        server.stop().unwrap();
    }
}

#[test]
fn the_time_of_a_call_counts_while_it_waits_for_others() {
    let address = address("waits");
    let server = serve(&address);
    let handle = handle(&address, 1);
    {
        let mut kept = pin!(handle.call(KEEP, request(&[1]), CallPolicy::default()));
        assert!(kept.as_mut().now_or_never().is_none());
        let policy = CallPolicy::default().within(Duration::from_millis(20));
        let error = handle.call_blocking(ADD, request(&[1]), policy).unwrap_err();
        let HandleError::Call(error) = error else { panic!("{error}") };
        assert!(matches!(error.why, Why::Late) && !error.may_have_run && error.attempts == 0, "{error}");
    }
    // The cancelled call leaves its place.
    assert_eq!(handle.call_blocking(ADD, request(&[1]), CallPolicy::default()).unwrap()[..], 1u64.to_le_bytes());
    drop(handle);
    server.stop().unwrap();
}

/// A server that calls itself, and lets other threads call through its endpoint. When they have gone, they leave
/// nothing behind there.
#[test]
fn threads_share_the_endpoint_of_a_thread_that_turns_it() {
    let (tell, told) = std::sync::mpsc::channel();
    let owner = std::thread::spawn(move || {
        let endpoint = Endpoint::new(AnyTransport::bind(&address("on")).unwrap(), EndpointConfig::default()).unwrap();
        let count = |request: Request<'_>| {
            let bytes = request.payload().len();
            request.respond(&[bytes as u8]);
        };
        endpoint.register(ADD, count).unwrap();
        let endpoint = Rc::new(endpoint);
        tell.send(Handle::on(&endpoint, endpoint.local_addrs().to_vec(), &HandleConfig::default()).unwrap()).unwrap();
        endpoint.run_until(|| Rc::strong_count(&endpoint) == 1);
        endpoint.stats().counters.requests_handled
    });
    let handle = told.recv().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    assert_eq!(handle.call_blocking(ADD, request(b"abc"), CallPolicy::default()).unwrap()[..], [3]);
                }
            });
        }
    });
    drop(handle);
    assert_eq!(owner.join().unwrap(), 100);
}

#[test]
fn a_handle_without_an_address_is_refused() {
    let endpoint = Endpoint::new(AnyTransport::bind(&address("none")).unwrap(), EndpointConfig::default()).unwrap();
    let refused = Handle::on(&Rc::new(endpoint), Vec::new(), &HandleConfig::default());
    assert!(matches!(refused, Err(ServeError::NoAddress)));
    assert!(matches!(Handle::start(Vec::new(), HandleConfig::default()), Err(ServeError::NoAddress)));
}
