//! Caches with a tier: more items than memory holds, for both protocols.

use std::io::{BufRead, BufReader, Read};
use std::rc::Rc;
use std::time::Duration;

use dunlin_kv::KvClient;
use dunlin_kv::client::ClientConfig;
use dunlin_kv::server::{Server, ServerConfig};
use dunlin_kv::tier::TierSettings;
use dunlin_kv::wire::{OPERATE, RANKED_BYTES, RANKED_MULTI_GET, RANKED_OPERATE, Ranked, WAITED_BYTES, Waited};
use dunlin_net::AnyTransport;
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_store::Mode;
use rustix::fs::{FlockOperation, flock};

use crate::client::{Client, config, path};

const KEYS: usize = 20_000;
const VALUE_BYTES: usize = 2_000;
/// The least time of a read.
const DELAY: Duration = Duration::from_micros(300);

fn value(number: usize) -> Vec<u8> {
    let mut value = format!("value {number} ").into_bytes();
    value.resize(VALUE_BYTES, b'.');
    value
}

/// 40 MB of values, in a server with 32 MiB of memory at most.
fn tiered(name: &str, cores: u16) -> ServerConfig {
    let mut config = config(name, cores);
    config.memory_bytes = 16 << 20;
    let mut tier = TierSettings::new(path(name).with_extension("tier"), 96 << 20, 32 << 20);
    tier.delay = DELAY;
    config.tier = Some(tier);
    config
}

fn load(client: &mut Client) {
    for part in 0..KEYS / 100 {
        let mut request = Vec::new();
        for number in part * 100..(part + 1) * 100 {
            request.extend_from_slice(format!("set key{number} 5 0 {VALUE_BYTES} noreply\r\n").as_bytes());
            request.extend_from_slice(&value(number));
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"mn\r\n");
        client.ask(&request, b"MN\r\n");
    }
}

/// Asks for keys in one command; returns which came, after checking their values.
fn get(client: &mut Client, numbers: &[usize]) -> Vec<usize> {
    let keys: Vec<String> = numbers.iter().map(|number| format!("key{number}")).collect();
    client.say(format!("get {}\r\n", keys.join(" ")).as_bytes());
    let mut reader = BufReader::new(&client.0);
    let mut found = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line == "END\r\n" {
            return found;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["VALUE", key, "5", len] = words[..] else { panic!("{line}") };
        let mut body = vec![0; len.parse::<usize>().unwrap() + 2];
        reader.read_exact(&mut body).unwrap();
        let number: usize = key.strip_prefix("key").unwrap().parse().unwrap();
        assert_eq!(body[..VALUE_BYTES], value(number), "{key}");
        found.push(number);
    }
}

fn end(server: Server, config: &ServerConfig) {
    server.stop().unwrap();
    std::fs::remove_file(&config.tier.as_ref().unwrap().path).unwrap();
}

#[test]
fn memcached_clients_find_what_memory_has_no_room_for() {
    let config = tiered("tier-memcached", 2);
    let server = Server::start(config.clone(), |_| {}).unwrap();
    let mut client = Client::connect(&config);
    load(&mut client);
    // From the newest on, so that few of them are moved in memory. The keys of a command are spread over both cores.
    let mut found = 0;
    for part in (0..KEYS / 50).rev().step_by(4) {
        let numbers: Vec<usize> = (part * 50..(part + 1) * 50).collect();
        found += get(&mut client, &numbers).len();
    }
    let stats = server.stats();
    let tier = stats.tier().unwrap();
    // Writes are fewer than evictions if the disk is slow.
    assert!(found as u64 + tier.count("dropped") + tier.count("evicted") >= KEYS as u64 / 4, "{found}: {tier:?}");
    assert!(tier.count("hits") > 200 && tier.served > 200, "{tier:?}");
    assert_eq!(tier.count("read_errors") + tier.count("corrupt") + tier.refused, 0);
    // Each operation on an item that only the tier has: the earliest were evicted first.
    let cold: Vec<usize> = (0..KEYS).filter(|number| number % 7 == 3).take(400).collect();
    let cold = get(&mut client, &cold);
    assert!(cold.len() > 10, "{tier:?}");
    let [a, b, c, d, ..] = cold[..] else { panic!("{cold:?}") };
    client.ask(format!("append key{a} 0 0 4\r\nmore\r\n").as_bytes(), b"STORED\r\n");
    client.ask(format!("add key{b} 0 0 1\r\nx\r\n").as_bytes(), b"NOT_STORED\r\n");
    client.ask(
        format!("incr key{b} 1\r\n").as_bytes(),
        b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
    );
    client.ask(format!("touch key{b} 0\r\n").as_bytes(), b"TOUCHED\r\n");
    client.ask(format!("delete key{c}\r\n").as_bytes(), b"DELETED\r\n");
    client.ask(format!("delete key{c}\r\nget key{c}\r\n").as_bytes(), b"NOT_FOUND\r\nEND\r\n");
    client.ask(format!("set key{d} 0 0 3\r\nnew\r\nget key{d}\r\n").as_bytes(), b"STORED\r\nVALUE");
    client.ask(b"", format!(" key{d} 0 3\r\nnew\r\nEND\r\n").as_bytes());
    client.ask(format!("mg key{a} s\r\n").as_bytes(), format!("HD s{}\r\n", VALUE_BYTES + 4).as_bytes());
    // A pipeline keeps its order: some of it waits, some does not.
    let pipeline = format!("get nothing\r\nmg key{b} s\r\nmg key{d} s\r\nmg key{a} s\r\nget nothing\r\n");
    let answer = format!("END\r\nHD s{VALUE_BYTES}\r\nHD s3\r\nHD s{}\r\nEND\r\n", VALUE_BYTES + 4);
    client.ask(pipeline.as_bytes(), answer.as_bytes());
    client.say(b"stats\r\n");
    let lines: Vec<String> = BufReader::new(&client.0).lines().map(Result::unwrap).take_while(|l| l != "END").collect();
    for name in ["get_extstore", "extstore_bytes_used", "extstore_objects_written", "extstore_limit_maxbytes"] {
        let line = lines.iter().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        assert!(line.unwrap().parse::<u64>().unwrap() > 0, "{name}: {lines:?}");
    }
    client.ask(b"flush_all\r\n", b"OK\r\n");
    assert!(get(&mut client, &cold).is_empty(), "nothing comes back after a flush");
    assert_eq!(server.stats().tier().unwrap().count("items"), 0);
    end(server, &config);
}

#[test]
fn native_clients_find_it_with_and_without_ranks() {
    let config = tiered("tier-native", 1);
    let server = Server::start(config.clone(), |_| {}).unwrap();
    load(&mut Client::connect(&config));
    let address = server.addresses()[0].clone();
    let transport = AnyTransport::for_peer(&address).unwrap();
    let endpoint = Rc::new(Endpoint::new(transport, EndpointConfig::default()).unwrap());
    endpoint.block_on(async {
        let client = KvClient::connect(&endpoint, &address, ClientConfig::default()).await.unwrap();
        let names: Vec<String> = (0..KEYS).rev().step_by(20).map(|number| format!("key{number}")).collect();
        let mut found = 0;
        for part in names.chunks(100) {
            let keys: Vec<&[u8]> = part.iter().map(|name| name.as_bytes()).collect();
            let values = client.multi_get(&keys).await.unwrap();
            for (name, value_found) in part.iter().zip(values) {
                let Some(value_found) = value_found else { continue };
                found += 1;
                assert_eq!(value_found[..], value(name[3..].parse().unwrap()), "{name}");
            }
        }
        let tier = server.stats().tier().unwrap();
        assert!(found as u64 + tier.count("dropped") + tier.count("evicted") >= 1_000, "{found}: {tier:?}");
        assert!(tier.served > 50, "{tier:?}");

        // Requests as they are on the wire. First as clients without ranks write them, then ranked ones.
        let session = endpoint.connect(&address).await.unwrap();
        let (mut waited_for, mut served) = (0, 0);
        for number in (0..2_000).step_by(5) {
            let name = format!("key{number}");
            let operation = [&[0][..], name.as_bytes()].concat();
            let keys = [&[name.len() as u8][..], name.as_bytes()].concat();
            let mut header = [0; RANKED_BYTES];
            Ranked { rank: 3, is_level: false, wants_waited: true }.encode(&mut header);
            let request = [&header[..], &operation].concat();
            let reply = session.call(RANKED_OPERATE, request).await.unwrap();
            let (waited, answer) = Waited::parse(&reply.response).unwrap();
            let expected = [&[1, 5, 0, 0, 0][..], &value(number)].concat();
            if answer == [2] {
                continue;
            }
            served += 1;
            assert_eq!(answer, expected);
            if waited != Waited::default() {
                assert!(u128::from(waited.read_micros) >= DELAY.as_micros(), "{waited:?}");
                waited_for += 1;
            }
            let old = session.call(OPERATE, operation).await.unwrap();
            assert_eq!(&old.response[..], expected);
            let request = [&header[..], &keys].concat();
            let reply = session.call(RANKED_MULTI_GET, request).await.unwrap();
            assert_eq!(reply.response[WAITED_BYTES..][..5], [1, 5, 0, 0, 0]);
            assert_eq!(reply.response[WAITED_BYTES + 9..], value(number));
        }
        assert!(served == 0 || waited_for > 0, "{served} served, none of them waited");
        // A header of another version, and one that is cut off.
        for request in [vec![0x80; 40], vec![0; 5]] {
            let reply = session.call(RANKED_OPERATE, request.clone()).await.unwrap();
            assert_eq!(&reply.response[..], [9]);
            let reply = session.call(RANKED_MULTI_GET, request).await.unwrap();
            assert_eq!(&reply.response[..], [9]);
        }
        session.close().await;
    });
    drop(endpoint);
    end(server, &config);
}

#[test]
fn a_tier_that_cannot_be_is_refused_before_anything_is_served() {
    let config = tiered("tier-refused", 1);
    let file = config.tier.as_ref().unwrap().path.clone();
    std::fs::write(&file, b"a file of somebody else").unwrap();
    let error = Server::start(config.clone(), |_| {}).map(drop).unwrap_err().to_string();
    assert!(error.contains("is not the file of a tier"), "{error}");
    std::fs::remove_file(&file).unwrap();
    let mut store = config.clone();
    store.mode = Mode::Store;
    let error = Server::start(store, |_| {}).map(drop).unwrap_err().to_string();
    assert!(error.contains("a tier needs a cache"), "{error}");
    // A restart takes the file over, and begins with nothing. A stop ends reads of the file that nobody waits for.
    let mut config = config;
    config.tier.as_mut().unwrap().delay = Duration::from_millis(700);
    // It does not wait for the command that waits for them.
    config.patience = Duration::from_millis(100);
    for _ in 0..2 {
        let server = Server::start(config.clone(), |_| {}).unwrap();
        let mut client = Client::connect(&config);
        assert!(get(&mut client, &[1, 2, 3]).is_empty());
        load(&mut client);
        client.say(b"get key1 key2 key3\r\n");
        // Reads of what is on the device begin.
        std::thread::sleep(Duration::from_millis(50));
        drop(client);
        server.stop().unwrap();
        // A process that another test starts has the descriptor for a moment.
        let is_free = || flock(std::fs::File::open(&file).unwrap(), FlockOperation::NonBlockingLockExclusive).is_ok();
        assert!(is_free() || (std::thread::sleep(Duration::from_millis(100)), is_free()).1);
    }
    std::fs::remove_file(&file).unwrap();
}
