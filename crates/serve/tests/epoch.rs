//! Requests of another epoch than the server's, on a clock that the test moves.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use dunlin_net::Addr;
use dunlin_net::loopback::{LoopbackConfig, LoopbackNetwork, LoopbackTransport};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_serve::channel::{CallPolicy, Channel, ChannelConfig};
use dunlin_serve::epoch::{EpochClient, EpochError, Found, admit, refusal, stamp};

const ECHO: u8 = 1;
const TURNS_MAX: u32 = 2_000_000;
const STEP: Duration = Duration::from_micros(10);

type End = Rc<Endpoint<LoopbackTransport>>;

struct World {
    network: LoopbackNetwork,
    server: End,
    client: End,
    /// That of the server, and that which is looked up.
    serves: Rc<Cell<u64>>,
    cluster: Rc<Cell<u64>>,
    ran: Rc<Cell<u32>>,
    look_ups: Rc<Cell<u32>>,
}

fn endpoint(network: &LoopbackNetwork, node: u32) -> End {
    let config = EndpointConfig { seed: Some(u64::from(node)), ..EndpointConfig::default() };
    Rc::new(Endpoint::new(network.endpoint(node).unwrap(), config).unwrap())
}

impl World {
    fn new(serves: u64, cluster: u64) -> World {
        let network = LoopbackNetwork::new(LoopbackConfig::default());
        let (server, client) = (endpoint(&network, 1), endpoint(&network, 100));
        let (serves, ran) = (Rc::new(Cell::new(serves)), Rc::<Cell<u32>>::default());
        let (epoch, count) = (serves.clone(), ran.clone());
        let handler = move |request: dunlin_rpc::Request<'_>| match admit(epoch.get(), request.payload()) {
            Ok(body) => {
                count.set(count.get() + 1);
                request.respond(body);
            }
            Err(refused) => refused.answer(request),
        };
        server.register(ECHO, handler).unwrap();
        let (cluster, look_ups) = (Rc::new(Cell::new(cluster)), Rc::default());
        World { network, server, client, serves, cluster, ran, look_ups }
    }

    fn channel(&self) -> Channel<LoopbackTransport> {
        Channel::new(&self.client, vec![Addr::Node(1)], ChannelConfig { seed: Some(1), ..ChannelConfig::default() })
    }

    fn run<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        for _ in 0..TURNS_MAX {
            self.server.run_once();
            if let Some(output) = self.client.poll_once(work.as_mut()) {
                return output;
            }
            self.network.advance(STEP);
        }
        panic!("it does not end");
    }
}

/// A client that looks up what the world says.
fn client(world: &World) -> EpochClient<LoopbackTransport, impl AsyncFn() -> Result<Found<LoopbackTransport>, String>> {
    let (channel, cluster, look_ups) = (world.channel(), world.cluster.clone(), world.look_ups.clone());
    EpochClient::new(async move || {
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
        assert!((2..10).contains(&world.look_ups.get()), "{} look-ups: less and less often", world.look_ups.get());
    });
}

#[test]
fn one_that_does_not_come_up_is_said_to_be_apart() {
    let world = World::new(9, 4);
    let client = client(&world);
    world.run(async {
        let error = client.call(ECHO, b"never", policy(200)).await.unwrap_err();
        assert!(matches!(error, EpochError::Apart { server: 9, cluster: 4 }), "{error}");
        world.cluster.set(0);
        let error = client.call(ECHO, b"never", policy(200)).await.unwrap_err();
        assert!(matches!(&error, EpochError::NotFound(why) if why == "nobody is there"), "{error}");
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
