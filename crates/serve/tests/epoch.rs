//! Requests of another epoch than the server's, on a clock that the test moves.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use dunlin_net::Addr;
use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_rpc::{DeferredRequest, Endpoint, EndpointConfig};
use dunlin_serve::channel::{CallPolicy, Channel, ChannelConfig};
use dunlin_serve::epoch::{Cause, EpochClient, EpochError, Found, admit, refusal, stamp};

const ECHO: u8 = 1;
/// A request that is admitted like the others, and never answered.
const KEEP: u8 = 2;
const TURNS_MAX: u32 = 2_000_000;
const STEP: Duration = Duration::from_micros(10);

type End = Rc<Endpoint<LoopbackTransport>>;

struct World {
    network: LoopbackNetwork,
    server: RefCell<End>,
    /// A second one, if there is one.
    successor: RefCell<Option<End>>,
    client: End,
    /// The server's epoch, and the epoch that look-ups return.
    serves: Rc<Cell<u64>>,
    cluster: Rc<Cell<u64>>,
    ran: Rc<Cell<u32>>,
    look_ups: Rc<Cell<u32>>,
    kept: Rc<RefCell<Vec<DeferredRequest>>>,
}

fn endpoint(network: &LoopbackNetwork, node: u32) -> End {
    let config = EndpointConfig { seed: Some(u64::from(node)), ..EndpointConfig::default() };
    Rc::new(Endpoint::new(network.endpoint(node).unwrap(), config).unwrap())
}

impl World {
    fn new(serves: u64, cluster: u64) -> World {
        World::with(LoopbackConfig::default(), serves, cluster)
    }

    fn with(config: LoopbackConfig, serves: u64, cluster: u64) -> World {
        let network = LoopbackNetwork::new(config);
        let (server, client) = (RefCell::new(endpoint(&network, 1)), endpoint(&network, 100));
        let (serves, cluster) = (Rc::new(Cell::new(serves)), Rc::new(Cell::new(cluster)));
        let (ran, look_ups, kept) = (Rc::default(), Rc::default(), Rc::default());
        let successor = RefCell::default();
        let world = World { network, server, successor, client, serves, cluster, ran, look_ups, kept };
        world.register();
        world
    }

    fn register(&self) {
        let server = self.server.borrow();
        let (epoch, count) = (self.serves.clone(), self.ran.clone());
        let handler = move |request: dunlin_rpc::Request<'_>| match admit(epoch.get(), request.payload()) {
            Ok(body) => {
                count.set(count.get() + 1);
                request.respond(body);
            }
            Err(refused) => refused.answer(request),
        };
        server.register(ECHO, handler).unwrap();
        let (epoch, count, kept) = (self.serves.clone(), self.ran.clone(), self.kept.clone());
        let keep = move |request: dunlin_rpc::Request<'_>| match admit(epoch.get(), request.payload()).map(drop) {
            Ok(()) => {
                count.set(count.get() + 1);
                kept.borrow_mut().extend(request.defer());
            }
            Err(refused) => refused.answer(request),
        };
        server.register(KEEP, keep).unwrap();
    }

    fn channel(&self) -> Channel<LoopbackTransport> {
        Channel::new(&self.client, vec![Addr::Node(1)], ChannelConfig { seed: Some(1), ..ChannelConfig::default() })
    }

    /// The server dies with the requests it kept, and comes back in another epoch.
    fn restart(&self, epoch: u64) {
        // Its address is free once it is gone. If the requests were dropped first, they would be answered.
        drop(self.server.replace(endpoint(&self.network, 99)));
        self.kept.borrow_mut().clear();
        self.server.replace(endpoint(&self.network, 1));
        self.serves.set(epoch);
        self.register();
    }

    fn run<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        for _ in 0..TURNS_MAX {
            self.server.borrow().run_once();
            self.successor.borrow().iter().for_each(|server| _ = server.run_once());
            if let Some(output) = self.client.poll_once(work.as_mut()) {
                return output;
            }
            self.network.advance(STEP);
        }
        panic!("it does not end");
    }

    /// The same for a program of one thread, which turns its endpoint in its calls only.
    fn block_on<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        self.client.block_on(poll_fn(|context| {
            self.server.borrow().run_once();
            self.network.advance(STEP);
            context.waker().wake_by_ref();
            work.as_mut().poll(context)
        }))
    }
}

/// A client that looks up what the world says.
fn client(world: &World) -> EpochClient<LoopbackTransport, String> {
    let (channel, cluster, look_ups) = (world.channel(), world.cluster.clone(), world.look_ups.clone());
    EpochClient::new(&world.client, async move || {
        look_ups.set(look_ups.get() + 1);
        match cluster.get() {
            0 => Err("nobody is there".to_owned()),
            epoch => Ok(Found { epoch, channel: channel.clone() }),
        }
    })
}

fn policy(millis: u64) -> CallPolicy {
    CallPolicy::default().within(Duration::from_millis(millis))
}

#[test]
fn a_request_of_an_older_epoch_is_refused_and_asked_again_in_the_later_one() {
    let world = World::new(3, 3);
    let client = client(&world);
    world.run(async {
        assert_eq!(&client.call(ECHO, b"one", policy(100)).await.unwrap()[..], b"one");
        world.serves.set(5);
        world.cluster.set(5);
        assert_eq!(&client.call(ECHO, b"two", policy(100)).await.unwrap()[..], b"two");
        assert_eq!((client.epoch(), world.ran.get(), world.look_ups.get()), (Some(5), 2, 2));
        assert_eq!(&client.call(ECHO, b"", policy(100)).await.unwrap()[..], b"");
        assert_eq!(world.look_ups.get(), 2, "it is looked up when it is refused");
    });
}

#[test]
fn a_server_that_is_behind_is_waited_for() {
    let world = World::new(3, 4);
    let client = client(&world);
    world.run(async {
        let catches_up = async {
            world.client.timers().sleep(Duration::from_millis(50)).await;
            assert_eq!(world.ran.get(), 0);
            world.serves.set(4);
        };
        let (response, ()) = futures::join!(client.call(ECHO, b"late", policy(1000)), catches_up);
        assert_eq!(&response.unwrap()[..], b"late");
        assert_eq!(world.look_ups.get(), 1, "it is looked up again when that takes longer");
    });
}

#[test]
fn one_that_does_not_come_up_is_said_to_be_apart() {
    let world = World::new(9, 4);
    let client = client(&world);
    world.run(async {
        let error = client.call(ECHO, b"never", policy(200)).await.unwrap_err();
        assert!(
            matches!(error, EpochError { why: Cause::Apart { server: 9, cluster: 4 }, may_have_run: false }),
            "{error}"
        );
        assert!(error.to_string().ends_with("(nothing ran)"), "{error}");
        world.cluster.set(0);
        let error = client.call(ECHO, b"never", policy(200)).await.unwrap_err();
        assert!(matches!(&error.why, Cause::NotFound(why) if why == "nobody is there"), "{error}");
        assert_eq!(world.ran.get(), 0);
    });
}

#[test]
fn any_bytes_are_admitted_or_refused() {
    let world = World::new(3, 3);
    let channel = world.channel();
    let refused = |request: Vec<u8>| {
        let error = world.run(channel.call(ECHO, request)).unwrap_err();
        let dunlin_serve::channel::Why::Call(why) = error.why else { panic!("{error}") };
        refusal(&why)
    };
    for request in [vec![], vec![3], vec![3; 7], vec![0xff; 20], stamp(2, b"older").unwrap().to_vec()] {
        assert_eq!(refused(request), Some(3));
    }
    assert_eq!(&world.run(channel.call(ECHO, stamp(3, b"").unwrap())).unwrap()[..], b"");
    assert_eq!(world.ran.get(), 1);
}

/// The milliseconds that a failing call takes, and its error.
fn failing<F: Future<Output = Result<dunlin_rpc::MsgBuf, E>>, E>(world: &World, call: F) -> (u64, E) {
    let begun = world.client.now();
    let Err(error) = world.run(call) else { panic!("it succeeds") };
    ((world.client.now() - begun) / 1_000_000, error)
}

#[test]
fn the_time_of_a_call_counts_all_attempts() {
    let world = World::new(3, 4);
    let client = client(&world);
    let comes_up = async {
        world.client.timers().sleep(Duration::from_millis(80)).await;
        world.serves.set(4);
    };
    let (took, error) =
        failing(&world, async { futures::join!(client.call(KEEP, b"never answered", policy(200)), comes_up).0 });
    assert!(world.ran.get() == 1 && error.may_have_run, "{error}");
    assert!((200..205).contains(&took), "{took} ms");
}

#[test]
fn a_look_up_that_does_not_end_is_given_up_with_the_call() {
    let world = World::new(3, 3);
    let client = EpochClient::new(&world.client, async || {
        std::future::pending::<()>().await;
        Err::<Found<LoopbackTransport>, String>("never".into())
    });
    let (took, error) = failing(&world, client.call(ECHO, b"", policy(20)));
    assert!(matches!(error, EpochError { why: Cause::Late, may_have_run: false }), "{error}");
    assert!((20..25).contains(&took), "{took} ms");
}

#[test]
fn a_refusal_after_an_attempt_that_may_have_run_does_not_undo_it() {
    let world = World::new(4, 4);
    let client = client(&world);
    let policy = CallPolicy::repeatable().within(Duration::from_secs(20));
    let dies = async {
        while world.ran.get() == 0 {
            world.client.timers().sleep(Duration::from_millis(1)).await;
        }
        world.restart(9);
    };
    let (_, error) = failing(&world, async { futures::join!(client.call(KEEP, b"", policy), dies).0 });
    assert!(matches!(error, EpochError { why: Cause::Apart { server: 9, cluster: 4 }, may_have_run: true }), "{error}");
    assert!(error.to_string().ends_with("(it may have run)"), "{error}");
    // Nor does a look-up that fails after it.
    world.restart(4);
    world.ran.set(0);
    let dies = async {
        while world.ran.get() == 0 {
            world.client.timers().sleep(Duration::from_millis(1)).await;
        }
        world.restart(9);
        world.cluster.set(0);
    };
    let (_, error) = failing(&world, async { futures::join!(client.call(KEEP, b"", policy), dies).0 });
    assert!(matches!(error, EpochError { why: Cause::NotFound(_), may_have_run: true }), "{error}");
    assert_eq!(world.ran.get(), 1);
}

/// Another call, which was refused and has only one attempt, learns that nothing ran.
#[test]
fn a_channel_knows_that_nothing_ran_when_it_is_refused() {
    let world = World::new(4, 4);
    let channel = world.channel();
    let error = world.run(channel.call(ECHO, stamp(3, b"").unwrap())).unwrap_err();
    assert!(!error.may_have_run, "{error}");
}

/// What a handler answers says nothing of who serves, and other errors little.
#[test]
fn other_errors_cost_no_look_up_or_one_in_a_second() {
    let world = World::new(3, 3);
    let failing =
        world.server.borrow().register(3, |request| request.fail(17, "no")).map_err(|error| error.to_string());
    failing.unwrap();
    let busy = world.server.borrow().register(4, |request| request.push_back()).map_err(|error| error.to_string());
    busy.unwrap();
    let client = client(&world);
    world.run(async {
        world.client.timers().sleep(Duration::from_secs(5)).await;
        for _ in 0..5_000 {
            let error = client.call(3, b"", policy(100)).await.unwrap_err();
            assert!(error.to_string().contains("no"), "{error}");
            world.client.timers().sleep(Duration::from_millis(1)).await;
        }
        assert_eq!((world.look_ups.get(), client.epoch()), (1, Some(3)));
        for _ in 0..1_000 {
            client.call(4, b"", policy(3)).await.unwrap_err();
            client.call(KEEP, b"", policy(1)).await.unwrap_err();
            client.call(5, b"", policy(1)).await.unwrap_err();
        }
    });
    assert!((2..=7).contains(&world.look_ups.get()), "{} look-ups", world.look_ups.get());
}

/// Calls of a type until one reaches the successor of a server, which says no more who serves.
fn reaches_the_successor(req_type: u8, fault: impl Fn(&World)) {
    let world = World::new(3, 3);
    let (cluster, look_ups, endpoint) = (world.cluster.clone(), world.look_ups.clone(), world.client.clone());
    let client = EpochClient::new(&world.client, async move || {
        look_ups.set(look_ups.get() + 1);
        let at = Addr::Node(if cluster.get() == 3 { 1 } else { 2 });
        let config = ChannelConfig { seed: Some(1), ..ChannelConfig::default() };
        Ok::<_, String>(Found { epoch: cluster.get(), channel: Channel::new(&endpoint, vec![at], config) })
    });
    world.run(client.call(ECHO, b"", policy(100))).unwrap();
    fault(&world);
    // The manager has not noticed yet.
    for _ in 0..3 {
        world.run(client.call(req_type, b"", policy(20))).unwrap_err();
    }
    let successor = self::endpoint(&world.network, 2);
    for req_type in [ECHO, KEEP] {
        let handler = |request: dunlin_rpc::Request<'_>| match admit(4, request.payload()) {
            Ok(_) => request.respond(b"successor"),
            Err(refused) => refused.answer(request),
        };
        successor.register(req_type, handler).unwrap();
    }
    world.successor.replace(Some(successor));
    world.cluster.set(4);
    let begun = world.client.now();
    let response = world.run(async {
        loop {
            if let Ok(response) = client.call(req_type, b"", policy(20)).await {
                return response;
            }
            let took = Duration::from_nanos(world.client.now() - begun);
            assert!(took < Duration::from_secs(2), "it stays with the server that was");
            world.client.timers().sleep(Duration::from_millis(20)).await;
        }
    });
    assert_eq!((&response[..], client.epoch()), (&b"successor"[..], Some(4)));
    assert!(world.look_ups.get() <= 5, "{} look-ups", world.look_ups.get());
}

#[test]
fn another_process_at_the_address_of_a_server_does_not_hide_its_successor() {
    reaches_the_successor(ECHO, |world| {
        drop(world.server.replace(endpoint(&world.network, 99)));
        world.server.replace(endpoint(&world.network, 1));
    });
}

#[test]
fn a_server_whose_handlers_hang_does_not_hide_its_successor() {
    reaches_the_successor(KEEP, |_| ());
}

/// A server that is gone may have a successor.
#[test]
fn a_server_that_cannot_be_reached_is_looked_up_again() {
    let world = World::new(3, 3);
    let client = client(&world);
    world.run(client.call(ECHO, b"", policy(100))).unwrap();
    drop(world.server.replace(endpoint(&world.network, 99)));
    world.run(client.call(ECHO, b"", policy(5_000))).unwrap_err();
    assert_eq!((world.look_ups.get(), client.epoch()), (1, None));
    world.server.replace(endpoint(&world.network, 1));
    world.register();
    world.run(client.call(ECHO, b"", policy(100))).unwrap();
    assert_eq!(world.look_ups.get(), 2);
}

#[test]
fn calls_that_are_refused_together_share_a_look_up() {
    let world = World::new(3, 3);
    let client = client(&world);
    let calls = || futures::future::join_all((0..100).map(|_| client.call(ECHO, b"", policy(2_000))));
    world.run(client.call(ECHO, b"", policy(100))).unwrap();
    world.serves.set(4);
    world.cluster.set(4);
    assert!(world.run(calls()).iter().all(Result::is_ok));
    assert_eq!(world.look_ups.get(), 2);
    // Another client finds that the server is behind for a while.
    let world = World::new(4, 5);
    let client = self::client(&world);
    let calls = || futures::future::join_all((0..100).map(|_| client.call(ECHO, b"", policy(2_000))));
    let catches_up = async {
        world.client.timers().sleep(Duration::from_millis(500)).await;
        world.serves.set(5);
    };
    let (results, ()) = world.run(async { futures::join!(calls(), catches_up) });
    assert!(results.iter().all(Result::is_ok));
    assert!((1..8).contains(&world.look_ups.get()), "{} look-ups", world.look_ups.get());
}

#[test]
fn an_older_look_up_that_comes_late_does_not_undo_a_later_one() {
    let world = World::new(6, 5);
    let (channel, timers) = (world.channel(), world.client.timers());
    let (cluster, look_ups) = (world.cluster.clone(), world.look_ups.clone());
    let client = EpochClient::new(&world.client, async move || {
        let epoch = cluster.get();
        // The first one is slow.
        if look_ups.replace(look_ups.get() + 1) == 0 {
            timers.sleep(Duration::from_millis(20)).await;
        }
        Ok::<_, String>(Found { epoch, channel: channel.clone() })
    });
    let late = async {
        world.client.timers().sleep(Duration::from_millis(1)).await;
        world.cluster.set(6);
        client.call(ECHO, b"two", policy(1000)).await
    };
    // When its look-up ends, its time is over, too.
    let (_, late) = world.run(async { futures::join!(client.call(ECHO, b"one", policy(21)), late) });
    assert_eq!((&late.unwrap()[..], client.epoch()), (&b"two"[..], Some(6)));
    assert_eq!(world.look_ups.get(), 2);
}

/// A program of one thread turns its endpoint in its calls only.
#[test]
fn a_client_whose_calls_are_far_apart_finds_its_service() {
    let world = World::new(3, 3);
    let (channel, timers) = (world.channel(), world.client.timers());
    let client = EpochClient::new(&world.client, async move || {
        timers.sleep(Duration::from_millis(1)).await;
        Ok::<_, String>(Found { epoch: 3, channel: channel.clone() })
    });
    for _ in 0..3 {
        world.network.advance(Duration::from_secs(10));
        let response = world.block_on(client.call(ECHO, b"again", policy(100)));
        assert_eq!(&response.unwrap()[..], b"again");
    }
}

/// A look-up that takes longer than the calls that need it goes on while any of them waits. One that hangs does not
/// hold them for good.
#[test]
fn a_look_up_that_takes_longer_than_its_calls_serves_the_next_ones() {
    const CALLS: u32 = 3000;
    // Milliseconds that the first look-up takes, and how many of the calls may fail, one in each.
    for (first, failures_max) in [(60, 60), (u64::MAX, 1100)] {
        let world = World::new(3, 3);
        let (channel, look_ups, timers) = (world.channel(), world.look_ups.clone(), world.client.timers());
        let client = Rc::new(EpochClient::new(&world.client, async move || {
            let is_first = look_ups.replace(look_ups.get() + 1) == 0;
            timers.sleep(Duration::from_millis(if is_first { first } else { 5 })).await;
            Ok::<_, String>(Found { epoch: 3, channel: channel.clone() })
        }));
        let (succeeded, ended) = (Rc::<Cell<u32>>::default(), Rc::<Cell<u32>>::default());
        world.run(async {
            for _ in 0..CALLS {
                let (client, succeeded, ended) = (client.clone(), succeeded.clone(), ended.clone());
                world.client.spawn(async move {
                    let is_ok = client.call(ECHO, b"", policy(20)).await.is_ok();
                    succeeded.set(succeeded.get() + u32::from(is_ok));
                    ended.set(ended.get() + 1);
                });
                world.client.timers().sleep(Duration::from_millis(1)).await;
            }
            while ended.get() < CALLS {
                world.client.timers().sleep(Duration::from_millis(1)).await;
            }
        });
        let failed = CALLS - succeeded.get();
        assert!(failed <= failures_max, "{failed} calls failed after a look-up of {first} ms");
        assert!(world.look_ups.get() <= 2, "{} look-ups", world.look_ups.get());
    }
}

/// A program of one thread makes its calls one after the other. What goes on between them ends with the client.
#[test]
fn a_look_up_goes_on_with_the_next_call_of_a_sequence() {
    let world = World::new(3, 3);
    let (channel, look_ups, timers) = (world.channel(), world.look_ups.clone(), world.client.timers());
    let alive = Rc::new(());
    let held = alive.clone();
    let client = EpochClient::new(&world.client, async move || {
        let (_held, is_first) = (held.clone(), look_ups.replace(look_ups.get() + 1) == 0);
        timers.sleep(Duration::from_millis(60)).await;
        Ok::<_, String>(Found { epoch: if is_first { 3 } else { 4 }, channel: channel.clone() })
    });
    let succeeded: Vec<_> = (0..5).map(|_| world.block_on(client.call(ECHO, b"", policy(20))).is_ok()).collect();
    assert!(succeeded[3..].iter().all(|is_ok| *is_ok), "{succeeded:?}");
    assert_eq!((world.look_ups.get(), Rc::strong_count(&alive)), (1, 2));
    // The next look-up is left half-way.
    world.serves.set(4);
    world.run(client.call(ECHO, b"", policy(20))).unwrap_err();
    assert_eq!((world.look_ups.get(), Rc::strong_count(&alive)), (2, 3));
    drop(client);
    assert_eq!(Rc::strong_count(&alive), 1, "it outlives its client");
}

#[test]
fn a_look_up_has_the_time_of_the_most_patient_call_that_waits_for_it() {
    // The time of calls that follow each other, and that of a call which joins the first of them, in milliseconds.
    for (short, long) in [(100, Some(5_000)), (100, None)] {
        let world = World::new(3, 3);
        let (channel, look_ups, timers) = (world.channel(), world.look_ups.clone(), world.client.timers());
        let client = EpochClient::new(&world.client, async move || {
            look_ups.set(look_ups.get() + 1);
            timers.sleep(Duration::from_millis(1_500)).await;
            Ok::<_, String>(Found { epoch: 3, channel: channel.clone() })
        });
        let begun = world.client.now();
        let took = || Duration::from_nanos(world.client.now() - begun);
        let shorts = async {
            while client.call(ECHO, b"", policy(short)).await.is_err() {
                assert!(took() < Duration::from_secs(5), "no look-up ends");
            }
        };
        let longer = async {
            let Some(long) = long else { return };
            world.client.timers().sleep(Duration::from_millis(1)).await;
            client.call(ECHO, b"", policy(long)).await.unwrap();
        };
        world.run(async { futures::join!(shorts, longer) });
        // Without a patient call, the second look-up has twice the time of the first.
        let (look_ups, most) = if long.is_some() { (1, 1_600) } else { (2, 2_600) };
        assert!(took() < Duration::from_millis(most), "{:?}", took());
        assert_eq!(world.look_ups.get(), look_ups);
    }
}

/// What it waited for has failed meanwhile, most likely.
#[test]
fn a_look_up_that_stood_still_for_long_begins_anew() {
    let world = World::new(3, 3);
    let (channel, look_ups, timers) = (world.channel(), world.look_ups.clone(), world.client.timers());
    let client = EpochClient::new(&world.client, async move || {
        look_ups.set(look_ups.get() + 1);
        let begun = timers.now();
        timers.sleep(Duration::from_millis(60)).await;
        match Duration::from_nanos(timers.now() - begun) {
            took if took < Duration::from_secs(1) => Ok(Found { epoch: 3, channel: channel.clone() }),
            took => Err(format!("no answer for {took:?}")),
        }
    });
    world.block_on(client.call(ECHO, b"", policy(20))).unwrap_err();
    world.network.advance(Duration::from_secs(10));
    world.block_on(client.call(ECHO, b"", policy(200))).unwrap();
    assert_eq!(world.look_ups.get(), 2);
}

/// It ends the call that met it, as if that call were alone.
#[test]
fn a_look_up_that_panics_leaves_the_other_calls_alone() {
    let world = World::new(3, 3);
    let (channel, look_ups, timers) = (world.channel(), world.look_ups.clone(), world.client.timers());
    let client = Rc::new(EpochClient::new(&world.client, async move || {
        let is_first = look_ups.replace(look_ups.get() + 1) == 0;
        timers.sleep(Duration::from_millis(5)).await;
        assert!(!is_first, "the first look-up fails");
        Ok::<_, String>(Found { epoch: 3, channel: channel.clone() })
    }));
    let succeeded = Rc::<Cell<u32>>::default();
    for _ in 0..3 {
        let (client, succeeded) = (client.clone(), succeeded.clone());
        world.client.spawn(async move {
            client.call(ECHO, b"", policy(100)).await.unwrap();
            succeeded.set(succeeded.get() + 1);
        });
    }
    world.run(world.client.timers().sleep(Duration::from_millis(20)));
    assert_eq!((succeeded.get(), world.client.stats().counters.panics_caught), (2, 1));
    world.run(client.call(ECHO, b"", policy(100))).unwrap();
    assert_eq!(world.look_ups.get(), 2);
}

/// A look-up and a handshake take longer together than a call may.
#[test]
fn a_call_that_ends_while_it_connects_does_not_cost_the_next_one_a_look_up() {
    let world = World::with(LoopbackConfig { delay: Duration::from_millis(10), ..LoopbackConfig::default() }, 3, 3);
    let (channel, look_ups, timers) = (world.channel(), world.look_ups.clone(), world.client.timers());
    let client = EpochClient::new(&world.client, async move || {
        look_ups.set(look_ups.get() + 1);
        timers.sleep(Duration::from_millis(30)).await;
        Ok::<_, String>(Found { epoch: 3, channel: channel.clone() })
    });
    let succeeded: Vec<_> = (0..5).map(|_| world.run(client.call(ECHO, b"", policy(65))).is_ok()).collect();
    assert_eq!((succeeded, world.look_ups.get()), (vec![false, true, true, true, true], 1));
}

/// A handler passes on the time that it has left, and its caller has given up already.
#[test]
fn calls_without_time_cost_one_look_up_in_a_second() {
    let world = World::new(3, 3);
    let client = client(&world);
    world.run(async {
        client.call(ECHO, b"", policy(100)).await.unwrap();
        for _ in 0..1_500 {
            client.call(ECHO, b"", policy(0)).await.unwrap_err();
            world.client.timers().sleep(Duration::from_millis(1)).await;
        }
    });
    assert!((2..=3).contains(&world.look_ups.get()), "{} look-ups", world.look_ups.get());
}

/// A client of a cluster that does not know it yet lets one of its operations find out, for example.
#[test]
fn a_look_up_that_no_call_waits_for_keeps_no_lock() {
    let world = World::new(3, 3);
    let (channel, look_ups, timers) = (world.channel(), world.look_ups.clone(), world.client.timers());
    let lock = Rc::<tokio::sync::Mutex<()>>::default();
    let looking = lock.clone();
    let client = EpochClient::new(&world.client, async move || {
        look_ups.set(look_ups.get() + 1);
        let _locked = looking.lock().await;
        timers.sleep(Duration::from_millis(60)).await;
        Ok::<_, String>(Found { epoch: 3, channel: channel.clone() })
    });
    world.run(client.call(ECHO, b"", policy(20))).unwrap_err();
    let begun = world.client.now();
    drop(world.run(lock.lock()));
    let took = Duration::from_nanos(world.client.now() - begun);
    assert!(took < Duration::from_millis(45), "{took:?}");
    // The next call has what it found.
    world.run(client.call(ECHO, b"", policy(20))).unwrap();
    assert_eq!(world.look_ups.get(), 1);
}

#[test]
fn a_look_up_that_no_call_waits_for_ends_once() {
    let world = World::new(3, 3);
    let (channel, look_ups, timers) = (world.channel(), world.look_ups.clone(), world.client.timers());
    let alive = Rc::new(());
    let held = alive.clone();
    let client = EpochClient::new(&world.client, async move || {
        let _held = held.clone();
        match look_ups.replace(look_ups.get() + 1) {
            0 => std::future::pending().await,
            1 => {
                timers.sleep(Duration::from_millis(60)).await;
                Err("of an hour ago".to_owned())
            }
            2 => {
                timers.sleep(Duration::from_millis(60)).await;
                panic!("the third look-up fails");
            }
            _ => Ok(Found { epoch: 3, channel: channel.clone() }),
        }
    });
    for (look_ups, millis) in [(1, 1_100), (2, 100), (3, 100)] {
        world.run(client.call(ECHO, b"", policy(20))).unwrap_err();
        world.run(world.client.timers().sleep(Duration::from_millis(millis)));
        assert_eq!((world.look_ups.get(), Rc::strong_count(&alive)), (look_ups, 2), "it has ended, and none began");
    }
    assert_eq!(world.client.stats().counters.panics_caught, 1);
    world.run(client.call(ECHO, b"", policy(20))).unwrap();
    // The channel notes for a while that it is in use.
    world.run(world.client.timers().sleep(Duration::from_millis(300)));
    assert_eq!((world.look_ups.get(), world.client.stats().tasks), (4, 0));
}

/// Not even if nobody turns the endpoint any more.
#[test]
fn a_look_up_keeps_nothing_of_a_client_that_is_gone() {
    let world = World::new(3, 3);
    let (channel, tasks) = (world.channel(), || world.client.stats().tasks);
    let (alive, before) = (Rc::strong_count(&world.client), tasks());
    let client = EpochClient::new(&world.client, async move || {
        let _held = &channel;
        std::future::pending::<Result<Found<LoopbackTransport>, String>>().await
    });
    world.run(client.call(ECHO, b"", policy(20))).unwrap_err();
    assert!(tasks() > before, "it goes on");
    drop(client);
    assert_eq!(Rc::strong_count(&world.client), alive - 1, "it holds the endpoint");
    world.client.run_once();
    assert_eq!(tasks(), before);
}

/// A task of a foreign event loop begins calls while the endpoint sleeps.
#[test]
fn a_call_that_begins_outside_of_a_turn_has_its_whole_time() {
    let world = World::new(3, 3);
    let (channel, timers) = (world.channel(), world.client.timers());
    let client = EpochClient::new(&world.client, async move || {
        timers.sleep(Duration::from_millis(1)).await;
        Ok::<_, String>(Found { epoch: 3, channel: channel.clone() })
    });
    world.run(world.client.timers().sleep(Duration::from_millis(1)));
    world.network.advance(Duration::from_secs(10));
    let mut call = pin!(client.call(ECHO, b"here", policy(50)));
    assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(world.run(call).unwrap()[..], *b"here");
}
