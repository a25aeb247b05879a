//! Servers of a cluster whose caches have tiers: a hundred times as many values as memory holds.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::time::Duration;

use dunlin_kv::KvCluster;
use dunlin_kv::cluster::{ClusterConfig, ClusterError, Description, ServerPlace};
use dunlin_kv::server::{ReplicaConfig, Server, ServerConfig};
use dunlin_kv::tier::TierSettings;
use dunlin_kv::wire::ReplicaState;
use dunlin_net::AnyTransport;
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_schedule::Policy;
use dunlin_store::{Condition, Put, Refused};
use futures::future::{join, join_all};

use crate::client::path;

const MEMORY: usize = 1 << 20;
/// Some values are too long for a scan.
const KEYS: u32 = 3_250;
/// The least time of a read.
const DELAY: Duration = Duration::from_micros(200);
/// Writes at a time.
const WINDOW: u32 = 50;

type Client = KvCluster<AnyTransport>;

/// A value that names its key and its step: 31 KB on average, so that there are 100 MB of them.
fn value(key: u32, step: u32) -> Vec<u8> {
    let mut value = format!("value {key} of step {step} ").into_bytes();
    value.resize(1_000 + (key as usize * 7_919) % 60_000, b'.');
    value
}

fn name(key: u32) -> Vec<u8> {
    format!("key{key}").into_bytes()
}

struct Cluster {
    configs: Vec<ServerConfig>,
    servers: Vec<Option<Server>>,
    description: Description,
    endpoint: Rc<Endpoint<AnyTransport>>,
}

impl Cluster {
    fn start(name: &str) -> Cluster {
        let address = |server: usize| format!("shm:test-kv-{name}-{server}-{}", std::process::id()).parse().unwrap();
        let places =
            (0..2).map(|server| ServerPlace { name: format!("s{server}"), address: address(server) }).collect();
        let description = Description::new(name, 1, places, 2, 64).unwrap();
        let config = |server: usize| {
            let mut config = ServerConfig::default();
            config.listen = vec![address(server)];
            config.memory_bytes = MEMORY;
            let file = path(&format!("{name}-{server}")).with_extension("tier");
            let mut tier = TierSettings::new(file, 192 << 20, 64 << 20);
            (tier.delay, tier.reads) = (DELAY, 32);
            config.tier = Some(tier);
            config
        };
        let transport = AnyTransport::for_peer(&address(0)).unwrap();
        let endpoint = Rc::new(Endpoint::new(transport, EndpointConfig::default()).unwrap());
        let configs = (0..2).map(config).collect();
        let mut cluster = Cluster { configs, servers: vec![None, None], description, endpoint };
        (0..2).for_each(|server| cluster.restart(server, ReplicaState::Open));
        cluster
    }

    fn restart(&mut self, server: usize, state: ReplicaState) {
        self.stop(server);
        let mut config = self.configs[server].clone();
        let (cluster, server_name) = (self.description.clone(), format!("s{server}"));
        config.replica = Some(ReplicaConfig { server: server_name, cluster, fence: None, state });
        self.servers[server] = Some(Server::start(config, |_| {}).unwrap());
    }

    fn stop(&mut self, server: usize) {
        self.servers[server].take().map(Server::stop).transpose().unwrap();
    }

    fn client(&self) -> Client {
        let mut config = ClusterConfig::default();
        config.policy = Policy::SlackDriven(dunlin_schedule::SlackReading::Opset);
        // For a busy machine.
        config.deadline = Duration::from_secs(9);
        config.failover_after = Duration::from_secs(1);
        KvCluster::new(&self.endpoint, self.description.clone(), config).unwrap()
    }

    /// Returns a counter of the tiers of both servers, as far as these run.
    fn count(&self, name: &str) -> u64 {
        let servers = self.servers.iter().flatten();
        servers.map(|server| server.stats().tier().unwrap().count(name)).sum()
    }

    /// Returns how many items they have lost.
    fn lost(&self) -> u64 {
        self.count("dropped") + self.count("evicted")
    }

    fn end(mut self) {
        drop(self.endpoint);
        for server in 0..2 {
            self.servers[server].take().map(Server::stop).transpose().unwrap();
            std::fs::remove_file(&self.configs[server].tier.as_ref().unwrap().path).unwrap();
        }
    }
}

async fn set(client: &Client, key: u32, step: u32) {
    client.set(&name(key), &value(key, step)).await.unwrap().everywhere().unwrap();
}

/// Reads all keys in multi-gets of different sizes, and compares what is found. Returns how many were.
async fn check(client: &Client, steps: &BTreeMap<u32, u32>, keys: impl Iterator<Item = u32>) -> usize {
    let keys: Vec<u32> = keys.collect();
    let (mut found, mut size, mut rest) = (0, 0, &keys[..]);
    while !rest.is_empty() {
        size = 1 + size % 40;
        let (part, others) = rest.split_at(rest.len().min(size));
        rest = others;
        let names: Vec<Vec<u8>> = part.iter().copied().map(name).collect();
        for (key, got) in part.iter().zip(client.multi_get(&names).await.unwrap()) {
            let Some(got) = got else { continue };
            let step = steps.get(key).unwrap_or_else(|| panic!("key {key} was deleted"));
            assert!(got[..] == value(*key, *step), "key {key} has not the value of step {step}");
            found += 1;
        }
    }
    found
}

#[test]
fn replicas_with_tiers_keep_a_hundred_times_what_memory_holds() {
    let mut cluster = Cluster::start("replicas-tier");
    let client = cluster.client();
    let endpoint = cluster.endpoint.clone();
    let mut steps: BTreeMap<u32, u32> = BTreeMap::new();
    endpoint.block_on(async {
        for part in 0..KEYS / WINDOW {
            let keys = part * WINDOW..(part + 1) * WINDOW;
            steps.extend(keys.clone().map(|key| (key, 0)));
            join_all(keys.map(|key| set(&client, key, 0))).await;
        }
        assert!(cluster.count("items") + cluster.lost() > u64::from(2 * KEYS - 200));
        // The first ones are on the devices: some are stored anew, and some deleted.
        for key in (0..1_000).step_by(10) {
            set(&client, key, 1).await;
            steps.insert(key, 1);
        }
        for key in (3..1_000).step_by(10) {
            client.delete(&name(key)).await.unwrap().everywhere().unwrap();
            steps.remove(&key);
        }
        conditions(&client, &mut steps).await;
        let found = check(&client, &steps, (0..1_000).chain(KEYS - 100..KEYS)).await;
        assert!(found as u64 + cluster.lost() + 100 >= 1_100, "{found} found, {} lost", cluster.lost());
        assert_eq!(cluster.count("read_errors") + cluster.count("corrupt"), 0);
        assert!(cluster.count("reads") > 500);
    });
    // A server that was restarted has nothing, and is filled from the other's tier while both are written and read.
    cluster.restart(1, ReplicaState::Closed);
    let (before, lost) = (cluster.count("items"), cluster.lost());
    assert_eq!(cluster.servers[1].as_ref().unwrap().stats().tier().unwrap().count("items"), 0);
    let (kept, lost) = endpoint.block_on(async {
        // What it finds first may be lost by what it reads later: losses count from before.
        let kept = check(&client, &steps, 0..KEYS).await as u64;
        let is_over = Cell::new(false);
        // From now on it takes writes.
        let fill = client.begin_fill("s1").await.unwrap();
        let refill = async {
            let refilled = client.fill("s1", fill).await.unwrap();
            is_over.set(true);
            refilled
        };
        let other = cluster.client();
        let work = async {
            let (mut key, mut deleted) = (1, 0);
            while !is_over.get() {
                set(&other, key, 2).await;
                steps.insert(key, 2);
                other.delete(&name(key + 1)).await.unwrap().everywhere().unwrap();
                steps.remove(&(key + 1));
                deleted += 1;
                check(&other, &steps, (0..60).map(|number| (key * 7 + number * 97) % KEYS)).await;
                key = (key + 10) % KEYS;
            }
            deleted
        };
        let (refilled, deleted) = join(refill, work).await;
        let (all, lost) = (refilled.items + deleted, cluster.lost() - lost);
        assert!(all + lost >= before, "{refilled:?}, {deleted} deleted, {lost} lost, of {before} on the device");
        (kept.saturating_sub(deleted), lost)
    });
    // Alone, it has what the other one had, but for what either has lost since.
    cluster.stop(0);
    let lost_before = cluster.lost();
    endpoint.block_on(async {
        let found = check(&client, &steps, 0..KEYS).await as u64;
        let lost = lost + cluster.lost() - lost_before;
        assert!(found + lost >= kept, "{found} of {kept} found, {lost} lost");
        // The device returns other bytes than were written to it: these items are lost, and nothing else.
        let file = &cluster.configs[1].tier.as_ref().unwrap().path;
        let file = OpenOptions::new().write(true).open(file).unwrap();
        file.write_all_at(&vec![0; 32 << 20], 4096).unwrap();
        check(&client, &steps, (0..KEYS).step_by(4)).await;
        assert!(cluster.count("corrupt") > 0, "{found} were there before");
        for key in 0..20 {
            assert!(client.set(&name(key), &value(key, 3)).await.unwrap().reached == 1);
            steps.insert(key, 3);
        }
        assert!(check(&client, &steps, 0..20).await >= 20);
        // It ends too early, until the next write: then it has a hole.
        let failed = || cluster.count("read_errors") + cluster.count("corrupt");
        let before = failed();
        file.set_len(64 << 20).unwrap();
        check(&client, &steps, (1..KEYS).step_by(4)).await;
        assert!(failed() > before);
    });
    // A smaller tier loses the rest, and nothing is wrong.
    cluster.configs[0].tier.as_mut().unwrap().bytes = 12 << 20;
    cluster.restart(0, ReplicaState::Closed);
    endpoint.block_on(async { client.refill("s0").await.unwrap().unwrap() });
    cluster.stop(1);
    endpoint.block_on(async {
        let found = check(&client, &steps, 0..KEYS).await;
        let room = 13_500_000 / 31_000;
        assert!((100..=room * 5 / 4).contains(&found) && cluster.count("evicted") > 0, "{found} found");
    });
    drop((client, endpoint));
    cluster.end();
}

/// Conditions on items that only the devices have.
async fn conditions(client: &Client, steps: &mut BTreeMap<u32, u32>) {
    let put = |condition| Put { condition, ..Put::default() };
    for key in (5..300).step_by(10) {
        let (name, new) = (name(key), value(key, 4));
        let added = client.put(&name, &new, put(Condition::Absent)).await;
        match added {
            Err(ClusterError::Refused(Refused::Exists)) => {}
            // It was lost: the disk was too slow.
            Ok(_) => _ = steps.insert(key, 4),
            Err(error) => panic!("{error}"),
        }
        let Some((facts, _)) = client.read(&name).await.unwrap() else { continue };
        let other = client.put(&name, &new, put(Condition::Unchanged(facts.cas + 1))).await;
        assert!(matches!(other, Err(ClusterError::Refused(Refused::Changed))), "{other:?}");
        client.put(&name, &new, put(Condition::Unchanged(facts.cas))).await.unwrap().everywhere().unwrap();
        client.put(&name, &new, put(Condition::Present)).await.unwrap().everywhere().unwrap();
        steps.insert(key, 4);
    }
}
