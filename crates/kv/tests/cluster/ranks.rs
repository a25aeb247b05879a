//! Ranks on their way to a server, and what it says of where requests waited.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use dunlin_kv::KvCluster;
use dunlin_kv::cluster::{Description, ServerPlace};
use dunlin_kv::routing::Routing;
use dunlin_kv::wire::{
    Limits, MAP, MultiGet, RANKED_MULTI_GET, RANKED_OPERATE, REPLICA, Ranked, ReplicaInfo, ReplicaState, ServerMap,
    Status, WAITED_BYTES, Waited,
};
use dunlin_net::fault::Faults;
use dunlin_schedule::{Levels, Policy};

use crate::proxy::{Proxy, read_until, say};
use crate::world::{World, config};

type Ranks = Rc<RefCell<Vec<Ranked>>>;

/// Makes the only server of a cluster: it finds nothing, says that each request has waited, and records the ranks.
fn recording(world: &World) -> (Description, Ranks) {
    let server = world.another_end();
    let address = server.local_addr().clone();
    let place = ServerPlace { name: "s".into(), address: address.clone() };
    let cluster = Description::new("ranked", 3, vec![place], 1, 64).unwrap();
    let routing = Routing::new([1; 16], 1).unwrap();
    let limits = Limits { value_bytes_max: 1 << 20 };
    let map = ServerMap { incarnation: 5, routing, limits, addresses: vec![vec![address.to_string()]] };
    let mut bytes = vec![0; map.encoded_len()];
    map.encode(&mut bytes);
    server.register(MAP, move |request| request.respond(&bytes)).unwrap();
    let info = ReplicaInfo {
        state: ReplicaState::Open,
        is_safe: true,
        fingerprint: cluster.fingerprint(),
        incarnation: 5,
        epoch: 0,
        changed: 0,
        server: "s".into(),
    };
    server.register(REPLICA, move |request| request.respond(&info.encode())).unwrap();
    let recorded = Ranks::default();
    for (req_type, is_many) in [(RANKED_OPERATE, false), (RANKED_MULTI_GET, true)] {
        let ranks = recorded.clone();
        let handler = move |request: dunlin_rpc::Request<'_>| {
            let (ranked, rest) = Ranked::parse(request.payload()).unwrap();
            assert!(ranked.wants_waited);
            ranks.borrow_mut().push(ranked);
            let keys = if is_many { MultiGet::parse(rest).unwrap().count() } else { 1 };
            let mut answer = vec![Status::NotFound as u8; WAITED_BYTES + keys];
            Waited { queued_micros: 700, read_micros: 50 }.encode(&mut answer);
            request.respond(&answer);
        };
        server.register(req_type, handler).unwrap();
    }
    (cluster, recorded)
}

#[test]
fn parts_carry_their_ranks_and_tell_where_they_waited() {
    let world = World::with_faults(1, 1, 1, 1, Faults::default(), Vec::new());
    let (cluster, ranks) = recording(&world);
    let client = KvCluster::new(&world.client, cluster, {
        let mut config = config();
        // By the size of each part.
        config.policy = dunlin_schedule::Policy::SlackDriven(dunlin_schedule::SlackReading::Opset);
        config
    })
    .unwrap();
    let keys: Vec<[u8; 1]> = (0..200).map(|key| [key]).collect();
    let (values, trace) = world.run(client.multi_get_traced(&keys));
    assert!(values.unwrap().iter().all(Option::is_none));
    let sent: BTreeSet<u64> = ranks.borrow().iter().map(|ranked| ranked.rank).collect();
    assert_eq!(sent, trace.parts.iter().map(|part| part.rank).collect());
    assert!(sent.len() > 1, "{trace:?}");
    for part in &trace.parts {
        assert_eq!((part.queued, part.device), (Duration::from_micros(700), Duration::from_micros(50)));
    }
    assert!(matches!(world.run(client.get(b"k")), Ok(None)));
}

/// A server may have levels, or compare sizes.
#[test]
fn parts_say_whether_their_ranks_are_levels() {
    for (policy, are_levels) in [(Policy::ShortestTotal, false), (Policy::Rein(Levels::default()), true)] {
        let world = World::with_faults(1, 1, 1, 1, Faults::default(), Vec::new());
        let (cluster, ranks) = recording(&world);
        let mut config = config();
        config.policy = policy;
        let client = KvCluster::new(&world.client, cluster, config).unwrap();
        world.run(client.multi_get(&[b"a", b"b"])).unwrap();
        let ranks = ranks.take();
        assert!(!ranks.is_empty() && ranks.iter().all(|ranked| ranked.is_level == are_levels), "{ranks:?}");
    }
}

/// A server without a tier has nothing to order, and takes ranked requests all the same.
#[test]
fn a_server_takes_ranked_requests_for_one_key_and_for_many() {
    let world = World::new(2, 2, 1);
    let client = KvCluster::new(&world.client, world.cluster.clone(), {
        let mut config = config();
        config.policy = dunlin_schedule::Policy::SlackDriven(dunlin_schedule::SlackReading::Opset);
        config
    });
    let client = client.unwrap();
    let keys: Vec<[u8; 1]> = (0..100).map(|key| [key]).collect();
    for key in &keys {
        world.run(client.set(key, key)).unwrap().everywhere().unwrap();
    }
    let (values, trace) = world.run(client.multi_get_traced(&keys));
    let values = values.unwrap();
    assert!(keys.iter().zip(values).all(|(key, value)| value.as_deref() == Some(&key[..])));
    assert_eq!(world.run(client.get(&keys[0])).unwrap().as_deref(), Some(&keys[0][..]));
    let ranks: BTreeSet<u64> = trace.parts.iter().map(|part| part.rank).collect();
    assert!(ranks.len() > 1, "{trace:?}");
    assert!(trace.parts.iter().all(|part| part.queued.is_zero() && part.device.is_zero()), "{trace:?}");
    let asked = |wanted| {
        let stats = world.servers.iter().flatten().map(|core| core.endpoint.stats());
        let handlers = stats.flat_map(|stats| stats.handlers);
        handlers.filter(|handler| handler.req_type == wanted).map(|handler| handler.requests).sum::<u64>()
    };
    let many = trace.parts.iter().filter(|part| part.keys > 1).count() as u64;
    let (ones, many) = (trace.parts.len() as u64 - many + 1, many);
    assert_eq!((asked(RANKED_OPERATE), asked(RANKED_MULTI_GET)), (ones, many));
}

/// A proxy reads the keys of a `get` in pieces, since their values have to be held. Small pieces of a large request are
/// not served before a small request.
#[test]
fn pieces_of_a_get_have_the_rank_of_all_its_keys() {
    const KEYS: usize = 40;
    let world = Rc::new(World::with_faults(1, 1, 1, 1, Faults::default(), Vec::new()));
    let (cluster, ranks) = recording(&world);
    let client = KvCluster::new(&world.client, cluster, config()).unwrap();
    let proxy = Proxy::new();
    let asked: String = (0..KEYS).map(|key| format!(" k{key}")).collect();
    proxy.serve(world, client, 64 << 20, async {
        let stream = proxy.connect().await;
        for verb in ["get", "gets"] {
            say(&stream, &format!("{verb} {asked} \r\n")).await;
            read_until(&stream, |all| all == b"END\r\n").await;
            let ranks = ranks.take();
            assert!(ranks.len() > 2, "{verb}: in one piece");
            assert!(ranks.iter().all(|ranked| ranked.rank == KEYS as u64), "{verb}: {ranks:?}");
        }
        say(&stream, "get a b\r\n").await;
        read_until(&stream, |all| all == b"END\r\n").await;
        assert!(ranks.take().iter().all(|ranked| ranked.rank == 2));
    });
}
