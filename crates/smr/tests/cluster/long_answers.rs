//! Answers of many packets, which must arrive within one attempt of the client.

use std::rc::Rc;
use std::time::Duration;

use dunlin_smr::kv::{Command, Condition};
use dunlin_smr::{Client, ClientConfig};

use super::harness::{Cluster, client_config, config};

const LONG_BYTES: usize = 200_000;

/// A command holds the one credit of its session until it is executed.
#[test]
fn a_long_answer_does_not_wait_for_commands() {
    let mut cluster = Cluster::new(3, config());
    cluster.put("long", &vec![7; LONG_BYTES]).unwrap();
    let quick = ClientConfig { attempt_timeout: Duration::from_millis(30), ..client_config() };
    cluster.change_client(1, quick);
    cluster.put("short", b"1").unwrap();
    assert_eq!(cluster.get("long").unwrap().map(|value| value.len()), Some(LONG_BYTES), "without commands");
    let client = Rc::new(Client::new(&cluster.endpoint, cluster.members.clone(), quick));
    for _ in 0..3 {
        let client = client.clone();
        cluster.endpoint.spawn(async move {
            loop {
                let put = Command::Put { key: b"short", value: b"2", condition: Condition::Always };
                drop(client.execute(&put.encode()).await);
            }
        });
    }
    cluster.turns(Duration::from_millis(10));
    let begun = cluster.now();
    let reply = cluster.drive(client.query(dunlin_smr::kv::Query { key: b"long" }.encode()));
    assert!(reply.is_ok_and(|reply| reply.len() > LONG_BYTES), "while commands are executed");
    let took = cluster.now() - begun;
    assert!(took < quick.attempt_timeout, "{took:?}: not with the first attempt");
}
