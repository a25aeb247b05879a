//! Servers and clients over shared memory that end and are started again: under their name they have another region.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dunlin_net::shm::{ShmConfig, ShmTransport};
use dunlin_net::{Addr, AnyTransport, Transport};
use dunlin_seq::Counter;
use dunlin_seq::direct::{DirectClient, DirectConfig, DirectServer, DirectServerConfig};

type Client = DirectClient<ShmTransport>;
type Server = DirectServer<ShmTransport>;

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

fn addr(what: &str) -> Addr {
    format!("shm:sq-{what}-{}", std::process::id()).parse().unwrap()
}

fn open(at: &Addr) -> ShmTransport {
    let Addr::Shm(name) = at else { panic!("{at}") };
    ShmTransport::new(&ShmConfig::named(name.clone())).unwrap()
}

fn server(at: &Addr, start: u64) -> Server {
    let counter = Arc::new(Counter::starting_at(start).unwrap());
    DirectServer::new(vec![open(at)], counter, DirectServerConfig::default()).unwrap()
}

fn client(transport: ShmTransport, servers: &[&Addr]) -> Client {
    let servers = servers.iter().map(|addr| (*addr).clone()).collect();
    DirectClient::new(transport, servers, DirectConfig { timeout: PATIENCE, ..DirectConfig::default() }).unwrap()
}

/// The next number of a client whose server turns in the same thread.
fn next(server: &mut DirectServer<impl Transport>, client: &mut DirectClient<impl Transport>) -> u64 {
    client.ask(0).unwrap();
    let (begun, mut number) = (Instant::now(), None);
    while number.is_none() {
        client.poll(|_, result| number = Some(result.unwrap()));
        server.turn();
        assert!(begun.elapsed() < 2 * PATIENCE, "there is no answer");
    }
    number.unwrap()
}

#[test]
fn a_client_finds_the_server_that_was_started_again() {
    let at = addr("again");
    let mut first = server(&at, 100);
    let mut client = client(ShmTransport::new(&ShmConfig::anonymous()).unwrap(), &[&at]);
    assert_eq!(next(&mut first, &mut client), 100);
    drop(first);
    let mut second = server(&at, 5000);
    assert_eq!(next(&mut second, &mut client), 5000);
    assert_eq!(next(&mut second, &mut client), 5001);
}

#[test]
fn a_server_may_come_after_its_clients() {
    let (at, other) = (addr("later"), addr("never"));
    let mut client = client(ShmTransport::new(&ShmConfig::anonymous()).unwrap(), &[&other, &at]);
    let mut server = server(&at, 7);
    assert_eq!(next(&mut server, &mut client), 7);
}

#[test]
fn a_client_that_was_started_again_under_its_name_is_answered() {
    let (at, of_client) = (addr("serves"), addr("asks"));
    let mut server = server(&at, 0);
    for turn in 0..3 {
        let mut client = client(open(&of_client), &[&at]);
        assert_eq!((next(&mut server, &mut client), next(&mut server, &mut client)), (2 * turn, 2 * turn + 1));
        assert_eq!(server.stats().peers, 1);
    }
}

/// Their regions would stay in memory.
#[test]
fn clients_that_have_ended_are_forgotten() {
    let at = addr("forgets");
    let mut server = server(&at, 0);
    let mut stays = client(ShmTransport::new(&ShmConfig::anonymous()).unwrap(), &[&at]);
    for turn in 0..40 {
        let mut passes = client(ShmTransport::new(&ShmConfig::anonymous()).unwrap(), &[&at]);
        assert_eq!(next(&mut server, &mut passes), 2 * turn);
        assert_eq!(next(&mut server, &mut stays), 2 * turn + 1);
        assert!(server.stats().peers <= 4, "{} clients after {turn}", server.stats().peers);
    }
}

/// Routes of the second of two joined transports have the highest bit set: tables by route stay small all the same.
#[test]
fn a_server_has_clients_over_shared_memory_and_udp() {
    let (at, counter) = (addr("both"), Arc::new(Counter::starting_at(0).unwrap()));
    let transport = AnyTransport::bind_all(&[at.clone(), "udp://127.0.0.1:0".parse().unwrap()]).unwrap();
    let mut server = DirectServer::new(vec![transport], counter, DirectServerConfig::default()).unwrap();
    let far = server.local_addrs().into_iter().find(|addr| matches!(addr, Addr::Udp(_))).unwrap();
    let config = DirectConfig { timeout: PATIENCE, ..DirectConfig::default() };
    let mut clients = [&at, &far].map(|server| {
        DirectClient::new(AnyTransport::for_peer(server).unwrap(), vec![server.clone()], config).unwrap()
    });
    let mut last = None;
    for _ in 0..3 {
        for client in &mut clients {
            let number = next(&mut server, client);
            assert!(last.is_none_or(|last| last < number), "{number} after {last:?}");
            last = Some(number);
        }
    }
    assert_eq!(server.stats().peers, 2);
}
