//! Channels: servers that are restarted, busy, slow, elsewhere or gone, on a clock that the test moves.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use dunlin_net::Addr;
use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_rpc::{CallError, DeferredRequest, Endpoint, EndpointConfig};
use dunlin_serve::channel::{CallPolicy, Channel, ChannelConfig, Retry, SLOTS, Turning, Why};
use futures::future::join_all;

const ECHO: u8 = 1;
/// A request that is kept until the test answers it.
const KEEP: u8 = 2;
/// A request that is rejected as busy as often as the test wants.
const BUSY: u8 = 3;
/// Turns after which a test counts as stuck.
const TURNS_MAX: u32 = 2_000_000;

type End = Rc<Endpoint<LoopbackTransport>>;

#[derive(Clone, Default)]
struct Behaviour {
    /// How often to reject.
    busy: Rc<Cell<u32>>,
    kept: Rc<RefCell<Vec<DeferredRequest>>>,
    /// The time that the last handler had left.
    time_left: Rc<Cell<Option<Duration>>>,
    /// Requests that were answered or kept.
    ran: Rc<Cell<u32>>,
}

struct World {
    network: LoopbackNetwork,
    servers: RefCell<Vec<End>>,
    client: End,
    behaviour: Behaviour,
}

impl World {
    /// Starts servers at these nodes.
    fn new(nodes: &[u32]) -> World {
        let network = LoopbackNetwork::new(LoopbackConfig::default());
        let client = endpoint(&network, 100);
        let world = World { network, servers: RefCell::default(), client, behaviour: Behaviour::default() };
        nodes.iter().for_each(|node| world.start(*node));
        world
    }

    fn start(&self, node: u32) {
        let server = endpoint(&self.network, node);
        let Behaviour { busy, kept, time_left, ran } = self.behaviour.clone();
        let count = ran.clone();
        server
            .register(ECHO, move |request| {
                count.set(count.get() + 1);
                time_left.set(request.time_left());
                let payload = request.payload();
                request.respond(payload);
            })
            .unwrap();
        server
            .register(KEEP, move |request| {
                ran.set(ran.get() + 1);
                kept.borrow_mut().extend(request.defer());
            })
            .unwrap();
        server
            .register(BUSY, move |request| match busy.get() {
                0 => request.respond(b"at last"),
                left => {
                    busy.set(left - 1);
                    request.push_back();
                }
            })
            .unwrap();
        self.servers.borrow_mut().push(server);
    }

    fn channel(&self, nodes: &[u32], config: ChannelConfig) -> Channel<LoopbackTransport> {
        let config = ChannelConfig { seed: Some(1), turning: Turning::Always, ..config };
        Channel::new(&self.client, nodes.iter().copied().map(Addr::Node).collect(), config)
    }

    fn turn(&self) {
        self.network.advance(Duration::from_micros(10));
        self.servers.borrow().iter().for_each(|server| _ = server.run_once());
    }

    fn run<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        for _ in 0..TURNS_MAX {
            self.turn();
            if let Some(output) = self.client.poll_once(work.as_mut()) {
                return output;
            }
        }
        panic!("nothing goes on");
    }

    /// The same for a program of one thread, which turns its endpoint in its calls only.
    fn block_on<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        self.client.block_on(poll_fn(|context| {
            self.turn();
            context.waker().wake_by_ref();
            work.as_mut().poll(context)
        }))
    }

    /// Nobody turns the client for so long.
    fn pause(&self, time: Duration) {
        let end = self.network.now() + time.as_nanos() as u64;
        while self.network.now() < end {
            self.turn();
        }
    }

    fn run_for(&self, time: Duration) {
        self.run(self.client.timers().sleep(time));
    }

    fn sessions(&self) -> u32 {
        self.servers.borrow().iter().map(|server| server.stats().sessions).sum()
    }
}

fn endpoint(network: &LoopbackNetwork, node: u32) -> End {
    let config = EndpointConfig {
        seed: Some(node.into()),
        peer_timeout: Duration::from_millis(50),
        connect_timeout: Duration::from_millis(50),
        ..EndpointConfig::default()
    };
    Rc::new(Endpoint::new(network.endpoint(node).unwrap(), config).unwrap())
}

#[test]
fn a_restarted_service_is_found_again() {
    let world = World::new(&[1]);
    let channel = world.channel(&[1], ChannelConfig::default());
    assert_eq!(world.run(channel.call(ECHO, vec![1])).unwrap()[..], [1]);
    world.servers.borrow_mut().clear();
    world.start(1);
    assert_eq!(world.run(channel.call(ECHO, vec![2])).unwrap()[..], [2]);
}

#[test]
fn a_call_that_may_have_run_is_repeated_only_if_that_does_no_harm() {
    for (policy, runs) in [(CallPolicy::default(), 1), (CallPolicy::repeatable(), 2)] {
        let world = World::new(&[1, 2]);
        let channel = world.channel(&[1, 2], ChannelConfig::default());
        let work = async { channel.call_with(KEEP, vec![1], policy).await };
        let mut work = pin!(work);
        while world.behaviour.ran.get() == 0 {
            world.turn();
            assert!(world.client.poll_once(work.as_mut()).is_none());
        }
        // It dies with the request; another server does the same.
        drop(world.servers.borrow_mut().remove(0));
        world.behaviour.kept.borrow_mut().clear();
        let result = world.run(async {
            let answer = async {
                while world.behaviour.kept.borrow().is_empty() {
                    world.client.timers().sleep(Duration::from_millis(1)).await;
                }
                let kept = world.behaviour.kept.borrow_mut().pop().unwrap();
                kept.enqueue_response(b"here".to_vec()).unwrap();
                std::future::pending::<()>().await;
            };
            tokio::select! {
                result = work => result,
                () = answer => unreachable!(),
            }
        });
        assert_eq!(world.behaviour.ran.get(), runs);
        match result {
            Ok(response) => assert_eq!((&response[..], runs), (&b"here"[..], 2)),
            Err(error) => {
                assert!(error.may_have_run && error.attempts == 1 && matches!(error.why, Why::Call(_)), "{error}");
                assert_eq!(runs, 1);
            }
        }
    }
}

#[test]
fn a_busy_service_is_asked_again_and_not_for_ever() {
    let world = World::new(&[1]);
    let retry = Retry { budget: 3, ..Retry::default() };
    let channel = world.channel(&[1], ChannelConfig { retry, ..ChannelConfig::default() });
    world.behaviour.busy.set(2);
    assert_eq!(&world.run(channel.call(BUSY, vec![1])).unwrap()[..], b"at last");
    world.behaviour.busy.set(u32::MAX);
    let error = world.run(channel.call(BUSY, vec![1])).unwrap_err();
    assert!(matches!(error.why, Why::Call(CallError::Busy)) && !error.may_have_run, "{error}");
    assert_eq!(error.attempts, 2, "what was left of the budget");
    let error = world.run(channel.call(BUSY, vec![1])).unwrap_err();
    assert_eq!(error.attempts, 1, "none is left");
}

#[test]
fn another_address_is_tried_when_one_does_not_answer() {
    let world = World::new(&[2]);
    let channel = world.channel(&[1, 2], ChannelConfig::default());
    assert_eq!(world.run(channel.call(ECHO, vec![1])).unwrap()[..], [1]);
    let none = world.channel(&[1, 3], ChannelConfig::default());
    let error = world.run(none.call(ECHO, vec![1])).unwrap_err();
    assert!(matches!(error.why, Why::Connect(_)) && !error.may_have_run && error.attempts == 4, "{error}");
    let error = world.run(world.channel(&[], ChannelConfig::default()).call(ECHO, vec![1])).unwrap_err();
    assert!(matches!(error.why, Why::NoAddress), "{error}");
}

#[test]
fn an_address_that_is_silent_leaves_time_for_the_next() {
    let mut world = World::new(&[2]);
    // It waits for one address longer than a call takes.
    let config = EndpointConfig { seed: Some(101), ..EndpointConfig::default() };
    assert!(Some(config.connect_timeout) > ChannelConfig::default().timeout);
    world.client = Rc::new(Endpoint::new(world.network.endpoint(101).unwrap(), config).unwrap());
    let channel = world.channel(&[1, 2], ChannelConfig::default());
    assert_eq!(world.run(channel.call(ECHO, vec![1])).unwrap()[..], [1]);
    // If the time is too short for two addresses, the next call continues where this one gave up.
    let channel = world.channel(&[1, 2], ChannelConfig::default());
    let policy = CallPolicy::default().within(Duration::from_millis(20));
    let error = world.run(channel.call_with(ECHO, vec![2], policy)).unwrap_err();
    assert!(matches!(error.why, Why::Late), "{error}");
    assert_eq!(world.run(channel.call_with(ECHO, vec![3], policy)).unwrap()[..], [3]);
}

#[test]
fn more_sessions_are_opened_when_calls_need_them_up_to_the_limit() {
    let world = World::new(&[1]);
    let channel = world.channel(&[1], ChannelConfig { sessions_max: 3, ..ChannelConfig::default() });
    let kept = || world.behaviour.kept.borrow().len();
    let mut calls = Vec::new();
    for _ in 0..10 {
        // They come one after the other, like calls of many clients.
        calls.extend((0..4).map(|_| Box::pin(channel.call(KEEP, vec![1]))));
        for call in &mut calls {
            world.turn();
            assert!(world.client.poll_once(call.as_mut()).is_none());
        }
        world.run_for(Duration::from_millis(1));
    }
    assert_eq!((channel.sessions(), world.sessions(), kept()), (3, 3, 3 * SLOTS as usize));
    let answering = async {
        let mut answered = 0;
        while answered < 40 {
            for request in world.behaviour.kept.take() {
                request.enqueue_response(vec![1]).unwrap();
                answered += 1;
            }
            world.client.timers().sleep(Duration::from_micros(50)).await;
        }
    };
    let (results, ()) = world.run(async { futures::join!(join_all(calls), answering) });
    assert!(results.iter().all(Result::is_ok));
    // Dropping the last handle closes them.
    let clone = channel.clone();
    drop(channel);
    world.run_for(Duration::from_millis(1));
    assert_eq!(world.sessions(), 3);
    drop(clone);
    world.run_for(Duration::from_millis(1));
    assert_eq!(world.sessions(), 0);
}

#[test]
fn deadlines_count_all_attempts_and_are_passed_on() {
    let world = World::new(&[1]);
    let channel =
        world.channel(&[1], ChannelConfig { timeout: Some(Duration::from_millis(20)), ..ChannelConfig::default() });
    world.run(channel.call(ECHO, vec![1])).unwrap();
    let left = world.behaviour.time_left.get().unwrap();
    assert!(left <= Duration::from_millis(20) && left > Duration::from_millis(15), "{left:?}");
    let begun = world.client.now();
    let error = world.run(channel.call(KEEP, vec![1])).unwrap_err();
    assert!(matches!(error.why, Why::Call(CallError::DeadlineExceeded)) && error.may_have_run, "{error}");
    let took = world.client.now() - begun;
    assert!((20_000_000..22_000_000).contains(&took), "{took} ns");
    // The handshake gets no answer.
    let elsewhere = world.channel(&[1], ChannelConfig::default());
    let silent = world.servers.take();
    let policy = CallPolicy::default().within(Duration::from_millis(5));
    let error = world.run(elsewhere.call_with(ECHO, vec![1], policy)).unwrap_err();
    assert!(matches!(error.why, Why::Late) && !error.may_have_run, "{error}");
    drop(silent);
}

#[test]
fn many_calls_wait_for_one_handshake() {
    let world = World::new(&[1]);
    let channel = world.channel(&[1], ChannelConfig { sessions_max: 1, ..ChannelConfig::default() });
    let results = world.run(join_all((0..100).map(|i| channel.call(ECHO, vec![i]))));
    assert!((0..100).zip(results).all(|(i, result)| result.unwrap()[..] == [i]));
    assert_eq!(world.sessions(), 1);
}

#[test]
fn sessions_that_nobody_turned_are_opened_anew_before_anything_is_sent() {
    let world = World::new(&[1]);
    let config = ChannelConfig { turning: Turning::DuringCalls, seed: Some(1), ..ChannelConfig::default() };
    let channel = Channel::new(&world.client, vec![Addr::Node(1)], config);
    world.run(channel.call(ECHO, vec![1])).unwrap();
    // The client is not turned, and its server gives it up.
    for _ in 0..100_000 {
        world.turn();
    }
    assert_eq!(world.sessions(), 0);
    // It succeeds at once. On a session that is over it would have failed, and the client could not tell whether it had
    // run.
    assert_eq!(world.run(channel.call(ECHO, vec![2])).unwrap()[..], [2]);
}

#[test]
fn a_call_that_takes_long_keeps_its_sessions_for_itself_and_later_calls() {
    let world = World::new(&[1]);
    let timeout = Some(Duration::from_secs(10));
    let config = ChannelConfig { turning: Turning::DuringCalls, seed: Some(1), timeout, ..ChannelConfig::default() };
    let channel = Channel::new(&world.client, vec![Addr::Node(1)], config);
    let answer = world.run(async {
        let long = channel.call(KEEP, vec![1]);
        let later = async {
            // Longer than unused sessions are trusted.
            world.client.timers().sleep(Duration::from_secs(1)).await;
            channel.call(ECHO, vec![2]).await.unwrap();
            let kept = world.behaviour.kept.borrow_mut().pop().unwrap();
            kept.enqueue_response(vec![3]).unwrap();
        };
        futures::join!(long, later).0
    });
    assert_eq!(answer.unwrap()[..], [3]);
    assert_eq!(world.sessions(), 1);
}

/// A server that is draining rejects new calls and answers those in progress.
#[test]
fn a_server_that_shuts_down_keeps_its_calls_and_the_next_ones_go_elsewhere() {
    let world = World::new(&[1, 2]);
    let channel = world.channel(&[1, 2], ChannelConfig { sessions_max: 1, ..ChannelConfig::default() });
    let draining = world.servers.borrow()[0].clone();
    let long = channel.call(KEEP, vec![1]);
    let later = async {
        while world.behaviour.kept.borrow().is_empty() {
            world.client.timers().sleep(Duration::from_millis(1)).await;
        }
        let shut_down = draining.shutdown(Duration::from_secs(1));
        let calls = async {
            // The server begins to drain in its next turn.
            world.client.timers().sleep(Duration::from_millis(1)).await;
            let responses = join_all((0..20).map(|i| channel.call(ECHO, vec![i]))).await;
            assert!((0..20).zip(responses).all(|(i, response)| response.unwrap()[..] == [i]));
            assert_eq!(world.servers.borrow()[1].stats().sessions, 1);
            let kept = world.behaviour.kept.borrow_mut().pop().unwrap();
            kept.enqueue_response(vec![3]).unwrap();
        };
        futures::join!(shut_down, calls).0
    };
    let (answer, unfinished) = world.run(async { futures::join!(long, later) });
    assert_eq!(answer.unwrap()[..], [3]);
    assert!(unfinished.is_nothing(), "{unfinished:?}");
    // The sessions with the server that shut down are closed with the last call on them.
    assert_eq!((world.sessions(), channel.sessions()), (1, 1));
}

/// While a call was in progress, the endpoint was turned all the time.
#[test]
fn long_calls_one_after_the_other_share_a_session() {
    let world = World::new(&[1]);
    let config = ChannelConfig { turning: Turning::DuringCalls, seed: Some(1), ..ChannelConfig::default() };
    let channel = Channel::new(&world.client, vec![Addr::Node(1)], config);
    for round in 0..3 {
        let answering = async {
            // Longer than unused sessions are trusted.
            world.client.timers().sleep(Duration::from_millis(300)).await;
            let kept = world.behaviour.kept.borrow_mut().pop().unwrap();
            kept.enqueue_response(vec![round]).unwrap();
        };
        let (answer, ()) = world.run(async { futures::join!(channel.call(KEEP, vec![1]), answering) });
        assert_eq!(answer.unwrap()[..], [round]);
    }
    assert_eq!(world.client.stats().counters.sessions_opened, 1);
}

#[test]
fn a_retry_for_which_there_is_no_time_costs_nothing() {
    let world = World::new(&[1]);
    let retry = Retry { budget: 1, pause: Duration::from_millis(50), ..Retry::default() };
    let channel = world.channel(&[1], ChannelConfig { retry, ..ChannelConfig::default() });
    world.behaviour.busy.set(4);
    for _ in 0..3 {
        let policy = CallPolicy::default().within(Duration::from_millis(10));
        let error = world.run(channel.call_with(BUSY, vec![1], policy)).unwrap_err();
        assert_eq!(error.attempts, 1, "{error}");
    }
    assert_eq!(&world.run(channel.call(BUSY, vec![1])).unwrap()[..], b"at last", "its retry is there still");
}

/// The server has forgotten all sessions of a client that stood still, and reports one at a time.
#[test]
fn a_client_that_its_server_gave_up_reaches_it_with_one_call() {
    let mut world = World::new(&[1]);
    let config = EndpointConfig { seed: Some(101), ..EndpointConfig::default() };
    world.client = Rc::new(Endpoint::new(world.network.endpoint(101).unwrap(), config).unwrap());
    let channel = world.channel(&[1], ChannelConfig::default());
    let mut calls = Vec::new();
    while channel.sessions() < 4 {
        calls.push(Box::pin(channel.call(KEEP, vec![1])));
        for call in &mut calls {
            assert!(world.client.poll_once(call.as_mut()).is_none());
        }
        world.run_for(Duration::from_micros(100));
    }
    let mut unanswered = calls.len();
    let answering = async {
        while unanswered > 0 {
            for request in world.behaviour.kept.take() {
                request.enqueue_response(vec![1]).unwrap();
                unanswered -= 1;
            }
            world.client.timers().sleep(Duration::from_micros(100)).await;
        }
    };
    let (results, ()) = world.run(async { futures::join!(join_all(calls), answering) });
    assert!(results.iter().all(Result::is_ok));
    for _ in 0..200_000 {
        world.turn();
    }
    assert_eq!((channel.sessions(), world.sessions()), (4, 0));
    assert_eq!(world.run(channel.call_with(ECHO, vec![2], CallPolicy::repeatable())).unwrap()[..], [2]);
}

/// The endpoint has not been turned since the response came.
#[test]
fn a_client_that_stood_still_while_its_call_ended_opens_its_sessions_anew() {
    for others in [0, 1] {
        let world = World::new(&[1]);
        let config = ChannelConfig { turning: Turning::DuringCalls, seed: Some(1), ..ChannelConfig::default() };
        let channel = Channel::new(&world.client, vec![Addr::Node(1)], config);
        let mut calls = Box::pin(join_all((0..1 + others).map(|_| channel.call(KEEP, vec![1]))));
        while world.behaviour.kept.borrow().len() <= others {
            world.turn();
            assert!(world.client.poll_once(calls.as_mut()).is_none());
        }
        let kept = world.behaviour.kept.borrow_mut().remove(0);
        kept.enqueue_response(vec![1]).unwrap();
        for _ in 0..200_000 {
            world.turn();
        }
        world.behaviour.kept.borrow_mut().clear();
        assert_eq!(world.sessions(), 0);
        // It is turned again, and the other call is still in flight.
        world.client.run_once();
        assert_eq!(world.run(channel.call(ECHO, vec![2])).unwrap()[..], [2], "{others} other calls");
        assert_eq!(world.run(calls)[0].as_ref().unwrap()[..], [1]);
    }
}

/// Their time begins with them, not with the last turn of the endpoint.
#[test]
fn calls_after_pauses_have_their_whole_time_and_cost_no_retries() {
    let world = World::new(&[1]);
    let retry = Retry { budget: 0, ..Retry::default() };
    let config = ChannelConfig { turning: Turning::DuringCalls, seed: Some(1), retry, ..ChannelConfig::default() };
    let channel = Channel::new(&world.client, vec![Addr::Node(1), Addr::Node(2)], config);
    for round in 0..30 {
        world.pause(Duration::from_millis(300));
        let policy = CallPolicy::default().within(Duration::from_millis(200));
        assert_eq!(world.block_on(channel.call_with(ECHO, vec![round], policy)).unwrap()[..], [round]);
    }
}

/// A task of a foreign event loop begins calls while the endpoint sleeps.
#[test]
fn a_call_that_begins_outside_of_a_turn_has_its_whole_time() {
    let world = World::new(&[1]);
    let channel = world
        .channel(&[1], ChannelConfig { retry: Retry { budget: 0, ..Retry::default() }, ..ChannelConfig::default() });
    world.run_for(Duration::from_millis(1));
    world.pause(Duration::from_secs(10));
    let mut call = pin!(channel.call(ECHO, vec![1]));
    assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(world.run(call).unwrap()[..], [1]);
}

/// A look at the sessions turns nobody, so their server may have given them up all the same.
#[test]
fn a_look_at_sessions_does_not_renew_trust_in_them() {
    let world = World::new(&[1]);
    let config = ChannelConfig { turning: Turning::DuringCalls, seed: Some(1), ..ChannelConfig::default() };
    let channel = Channel::new(&world.client, vec![Addr::Node(1)], config);
    world.run(channel.call(ECHO, vec![1])).unwrap();
    for _ in 0..20 {
        world.pause(Duration::from_millis(100));
        channel.sessions();
    }
    assert_eq!((channel.sessions(), world.sessions()), (0, 0));
    assert_eq!(world.run(channel.call(ECHO, vec![2])).unwrap()[..], [2]);
}

/// Calls begin more often than handshakes end. Most of those that wait have too little time left for one.
#[test]
fn a_service_that_comes_back_is_reached_under_steady_load() {
    const TURNS: u32 = 40;
    let network = LoopbackNetwork::new(LoopbackConfig { delay: Duration::from_micros(500), ..Default::default() });
    let config = EndpointConfig { seed: Some(100), ..EndpointConfig::default() };
    let client = Rc::new(Endpoint::new(network.endpoint(100).unwrap(), config).unwrap());
    let world = World { network, servers: RefCell::default(), client, behaviour: Behaviour::default() };
    let channel = world.channel(&[1], ChannelConfig::default());
    let policy = CallPolicy::default().within(Duration::from_millis(50));
    let succeeded = Rc::<Cell<u32>>::default();
    for i in 0..1_500 {
        match i {
            500 => world.start(1),
            1_000 => succeeded.set(0),
            _ => {}
        }
        let (channel, succeeded) = (channel.clone(), succeeded.clone());
        world.client.spawn(async move {
            let is_ok = channel.call_with(ECHO, vec![1], policy).await.is_ok();
            succeeded.set(succeeded.get() + u32::from(is_ok));
        });
        for _ in 0..TURNS {
            world.turn();
            world.client.run_once();
        }
    }
    // The last ones have no answer yet.
    assert!(succeeded.get() >= 497, "{} of 500 calls succeeded", succeeded.get());
    world.run_for(Duration::from_millis(100));
    assert_eq!(world.sessions() as usize, channel.sessions(), "abandoned attempts left sessions");
}
