//! Sequencers that reserve numbers on a replica: taking and passing on the office.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dunlin_net::Addr;
use dunlin_rpc::{CallError, Timers};
use dunlin_seq::reserve::{
    Keeper, KeeperConfig, Replicated, ReplicatedConfig, Reservations, Reserve, ReserveError, Reserved,
};
use dunlin_seq::wire::{NEXT, Next};
use dunlin_seq::{Batching, ClientConfig, Counter, NUMBERS_END, RUN_MAX, SeqError, SeqService, Setback};
use dunlin_serve::epoch::refusal;
use dunlin_smr::{Beginning, Client as SmrClient, ClientConfig as SmrConfig, MemoryLog, Node, NodeConfig};

use crate::net::Net;

const REPLICA: u32 = 50;
const LEASE: Duration = Duration::from_millis(60);
const RANGE: u64 = 2 * RUN_MAX as u64;

fn start_replica(net: &mut Net) -> Node<Reservations, MemoryLog> {
    let clock = net.clone();
    let config = NodeConfig {
        tick: Duration::from_millis(1),
        heartbeat_ticks: 1,
        election_ticks: 5,
        seed: Some(1),
        clock: Rc::new(move || clock.now()),
        ..NodeConfig::new(1)
    };
    let beginning = Beginning::First(vec![(1, Addr::Node(REPLICA))]);
    Node::start(&net.start(REPLICA), config, MemoryLog::new(), Reservations::new(), beginning).unwrap()
}

/// A sequencer that keeps its reservations on the replica.
fn start_sequencer(net: &mut Net, node: u32, start: u64) -> (SeqService, Keeper) {
    let endpoint = net.start(node);
    let counter = Arc::new(Counter::idle());
    let service = SeqService::register(&endpoint, counter.clone(), Batching::Bursts).unwrap();
    let config = SmrConfig { timeout: LEASE / 4, attempt_timeout: LEASE / 10, ..SmrConfig::default() };
    let client = SmrClient::new(&endpoint, vec![(1, Addr::Node(REPLICA))], config);
    let config = ReplicatedConfig { lease: LEASE, start, holder: Some(node.into()) };
    let config_of_keeper = KeeperConfig { range: RANGE, renew: LEASE / 6, ..KeeperConfig::default() };
    let keeper = Keeper::start(&endpoint, &counter, Replicated::new(client, config).unwrap(), config_of_keeper);
    (service, keeper)
}

#[test]
fn the_office_is_handed_over_at_once_or_after_a_lease() {
    let mut net = Net::new();
    let replica = start_replica(&mut net);
    let (first, first_keeper) = start_sequencer(&mut net, 1, 1000);
    let client = net.client(&[1, 2], ClientConfig::default());
    net.run(async { assert_eq!(client.next().await.unwrap(), 1000) });
    let (second, second_keeper) = start_sequencer(&mut net, 2, 1000);
    net.run(async {
        client.timers().sleep(LEASE * 3).await;
        assert_eq!(client.next().await.unwrap(), 1001, "the holder renews its term");
    });
    assert_eq!((first_keeper.stats().taken, second_keeper.stats().taken), (1, 0));
    assert!(first_keeper.stats().renewals > 10 && first_keeper.stats().ranges == 1);
    // After a release, the next sequencer begins without waiting for the term, above all reserved numbers.
    let begun = net.now();
    net.run(async {
        first_keeper.stop().await;
        assert_eq!(client.next().await.unwrap(), 1000 + RANGE);
    });
    assert!(net.now() - begun < 2 * LEASE.as_nanos() as u64);
    assert!(first.stats().not_serving > 0 && second.stats().requests == 1);
    // It crashes; another sequencer waits for a lease.
    let (_, third_keeper) = start_sequencer(&mut net, 3, 0);
    net.end(2);
    let config = ClientConfig { attempt_timeout: Duration::from_millis(20), ..ClientConfig::default() };
    let client = net.client(&[2, 3], config);
    let begun = net.now();
    net.run(async { assert_eq!(client.next().await.unwrap(), 1000 + 2 * RANGE) });
    let waited = net.now() - begun;
    assert!((LEASE.as_nanos() as u64 / 2..4 * LEASE.as_nanos() as u64).contains(&waited), "{waited}");
    assert_eq!(third_keeper.stats().taken, 1);
    assert_eq!(replica.with_machine(|machine| machine.office().reserved), 1000 + 3 * RANGE);
}

#[test]
fn a_keeper_stops_also_while_another_one_is_in_office() {
    let mut net = Net::new();
    let _replica = start_replica(&mut net);
    let _first = start_sequencer(&mut net, 1, 0);
    let client = net.client(&[1], ClientConfig::default());
    net.run(async { client.next().await.map(|_| ()).unwrap() });
    let (_, standby) = start_sequencer(&mut net, 2, 0);
    let begun = net.now();
    net.run(async {
        client.timers().sleep(Duration::from_millis(2)).await;
        standby.stop().await;
    });
    assert!(net.now() - begun < 10_000_000);
}

/// Ranges are reserved before the current one ends. Without replicas the numbers run out, requests are pushed back, and
/// soon the term is over.
#[test]
fn what_is_not_reserved_is_not_handed_out() {
    let mut net = Net::new();
    let replica = start_replica(&mut net);
    let (service, keeper) = start_sequencer(&mut net, 1, 0);
    let client = net.client(&[1], ClientConfig { timeout: Duration::from_millis(20), ..ClientConfig::default() });
    let endpoint = net.endpoint();
    net.run(async {
        endpoint.timers().sleep(Duration::from_millis(20)).await;
        let mut end = 0;
        for _ in 0..20 {
            let run = client.run(RUN_MAX).await.unwrap();
            assert_eq!(run.start, end, "no range is left in part");
            end = run.end;
        }
    });
    assert!(keeper.stats().ranges >= 10);
    assert_eq!(service.counter().dry(), 0, "the next range is there before it is needed");
    let reserved = replica.with_machine(|machine| machine.office().reserved);
    net.end(REPLICA);
    net.run(async {
        let session = endpoint.connect(&Addr::Node(1)).await.unwrap();
        let failure = loop {
            match session.call(NEXT, Next { epoch: 1, length: RUN_MAX }.encode().to_vec()).await {
                Ok(reply) => {
                    let first = u64::from_le_bytes(reply.response[..].try_into().unwrap());
                    assert!(first + u64::from(RUN_MAX) <= reserved);
                }
                Err(failure) => break failure,
            }
        };
        assert_eq!(failure.error, CallError::Busy);
        endpoint.timers().sleep(LEASE).await;
        assert!(matches!(client.next().await, Err(SeqError::TimedOut { .. })));
    });
    assert!(service.stats().pushed_back > 0 && service.stats().not_serving > 0);
    assert_eq!(keeper.stats().expired, 1);
}

#[test]
fn a_replicated_space_ends_too() {
    let mut net = Net::new();
    let _replica = start_replica(&mut net);
    let (_, keeper) = start_sequencer(&mut net, 1, NUMBERS_END - RANGE - 7);
    let client = net.client(&[1], ClientConfig::default());
    net.run(async {
        let mut had = 0;
        let error = loop {
            match client.run(RUN_MAX).await {
                Ok(run) => had += run.end - run.start,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, SeqError::Exhausted { .. }), "{error}");
        assert_eq!(had, RANGE);
        assert_eq!(client.run(7).await.unwrap(), NUMBERS_END - 7..NUMBERS_END);
        client.timers().sleep(LEASE * 2).await;
        assert!(matches!(client.next().await, Err(SeqError::Exhausted { .. })), "it stays in office");
    });
    assert_eq!((keeper.stats().taken, keeper.stats().ranges), (1, 2));
}

/// However the crash falls between the standby's looks, its wait begins with the last renewal that it saw.
#[test]
fn a_standby_takes_office_little_more_than_a_lease_after_a_crash() {
    for phase in 0..6 {
        let mut net = Net::new();
        let _replica = start_replica(&mut net);
        let (_, _first) = start_sequencer(&mut net, 1, 0);
        let waiting = net.client(&[1], ClientConfig::default());
        net.run(async { waiting.next().await.map(drop).unwrap() });
        let _second = start_sequencer(&mut net, 2, 0);
        let client = net.client(&[2], ClientConfig::default());
        net.run(client.timers().sleep(LEASE * 2 + LEASE * phase / 6));
        net.end(1);
        let begun = net.now();
        net.run(async { client.next().await.map(drop).unwrap() });
        let waited = Duration::from_nanos(net.now() - begun);
        assert!(waited > LEASE / 2 && waited < LEASE * 9 / 8 + LEASE / 8, "phase {phase}: {waited:?}");
    }
}

/// After an answer that was lost, or a term that lapsed while the replicas elected a leader.
#[test]
fn a_sequencer_does_not_wait_for_the_end_of_its_own_term() {
    let mut net = Net::new();
    let _replica = start_replica(&mut net);
    let endpoint = net.endpoint();
    let client = SmrClient::new(&endpoint, vec![(1, Addr::Node(REPLICA))], SmrConfig::default());
    let config = ReplicatedConfig { lease: LEASE, start: 0, holder: Some(9) };
    let mut reserve = Replicated::new(client, config).unwrap();
    let first = net.run(reserve.take(RANGE)).unwrap();
    let begun = net.now();
    let second = net.run(reserve.take(RANGE)).unwrap();
    assert!(net.now() - begun < LEASE.as_nanos() as u64 / 4);
    assert_eq!((first.epoch, first.range, second.epoch, second.range), (1, 0..RANGE, 2, RANGE..2 * RANGE));
}

#[test]
fn requests_of_other_epochs_are_refused_with_the_present_one() {
    let mut net = Net::new();
    let _replica = start_replica(&mut net);
    let (first, keeper) = start_sequencer(&mut net, 1, 0);
    let client = net.client(&[1, 2], ClientConfig::default());
    net.run(async {
        assert_eq!(client.next().await.unwrap(), 0);
        assert_eq!(client.epoch(), 1);
        keeper.stop().await;
    });
    let (second, keeper) = start_sequencer(&mut net, 2, 0);
    net.run(async {
        assert_eq!(client.next().await.unwrap(), RANGE);
        assert_eq!((client.epoch(), client.info().await.unwrap().epoch), (2, 2));
    });
    assert!(first.stats().other_epoch > 0 && second.stats().other_epoch == 1);
    let endpoint = net.endpoint();
    net.run(async {
        let session = endpoint.connect(&Addr::Node(2)).await.unwrap();
        let before = keeper.stats().renewals;
        for epoch in [0, 1, 3, u64::MAX] {
            let failure = session.call(NEXT, Next { epoch, length: 1 }.encode().to_vec()).await.unwrap_err();
            assert_eq!(refusal(&failure.error), Some(2), "epoch {epoch}");
        }
        // A later epoch has the office checked early. Anybody may invent one, so not more often than ten times.
        for epoch in 4..2000 {
            let _ = session.call(NEXT, Next { epoch, length: 1 }.encode().to_vec()).await;
        }
        let begun = endpoint.now();
        endpoint.timers().sleep(LEASE).await;
        let usual = keeper.stats().renewals;
        assert!(usual > before, "{usual} renewals, {before} before");
        for epoch in 1 << 32.. {
            let _ = session.call(NEXT, Next { epoch, length: 1 }.encode().to_vec()).await;
            if endpoint.now() - begun > 2 * LEASE.as_nanos() as u64 {
                break;
            }
        }
        let early = keeper.stats().renewals - usual;
        assert!((20..=61).contains(&early), "{early} renewals in a lease, where 6 are usual");
        assert!(session.call(NEXT, Next { epoch: 2, length: 1 }.encode().to_vec()).await.is_ok());
    });
    // A client that knows a later epoch takes nothing from this server.
    let config = ClientConfig { timeout: Duration::from_millis(20), ..ClientConfig::default() };
    let plain = Arc::new(Counter::starting_at(7).unwrap());
    net.serve(4, plain, Batching::Bursts);
    let client = net.client(&[2, 4], config);
    net.run(async {
        assert_eq!(client.next().await.map(|_| client.epoch()).unwrap(), 2);
        keeper.stop().await;
        let error = client.next().await.unwrap_err();
        let SeqError::TimedOut { last: Some(last) } = &error else { panic!("{error}") };
        assert!(matches!(last, Setback::OldEpoch { epoch: 0, known: 2, .. } | Setback::NotServing(_)), "{error}");
    });
}

/// Reservations of which only the first succeeds, as if their storage had become full. Terms go on.
struct Full(Timers);

impl Full {
    fn reserved(&self, range: Range<u64>) -> Reserved {
        Reserved { range, until: self.0.boot_now() + LEASE.as_nanos() as u64, epoch: 1 }
    }
}

impl Reserve for Full {
    async fn take(&mut self, count: u64) -> Result<Reserved, ReserveError> {
        Ok(self.reserved(0..count))
    }

    async fn extend(&mut self, count: u64) -> Result<Reserved, ReserveError> {
        if count > 0 { Err(ReserveError::Failed("full".to_owned())) } else { Ok(self.reserved(0..0)) }
    }

    async fn release(&mut self) -> Result<(), ReserveError> {
        Ok(())
    }
}

#[test]
fn a_term_is_extended_though_no_more_numbers_can_be_reserved() {
    let mut net = Net::new();
    let (endpoint, counter) = (net.start(1), Arc::new(Counter::idle()));
    let service = SeqService::register(&endpoint, counter.clone(), Batching::Bursts).unwrap();
    let config = KeeperConfig { range: RANGE, renew: LEASE / 6, ..KeeperConfig::default() };
    let keeper = Keeper::start(&endpoint, &counter, Full(endpoint.timers()), config);
    let client = net.client(&[1], ClientConfig::default());
    net.run(async {
        // More than half of them, so that more are to be reserved.
        let run = client.run(RUN_MAX).await.unwrap();
        client.next().await.unwrap();
        client.timers().sleep(LEASE * 10).await;
        assert_eq!(client.next().await.unwrap(), run.end + 1, "the rest is handed out");
    });
    let stats = keeper.stats();
    assert_eq!((stats.taken, stats.expired, service.stats().not_serving), (1, 0, 0));
    assert!(stats.failures > 10 && stats.renewals > 10, "{stats:?}");
}
