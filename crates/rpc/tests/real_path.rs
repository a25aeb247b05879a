//! Path MTU discovery over real links: two network namespaces with a router between them, whose link has a smaller MTU
//! than the hosts. Needs root and the `ip` command; without them the tests print `skipped` and pass.

use std::cell::Cell;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use dunlin_net::udp::{UdpConfig, UdpTransport};
use dunlin_net::{Addr, Transport};
use dunlin_rpc::{CallOptions, Endpoint, EndpointConfig, MsgBuf, Session};

/// Responds with as many bytes as the first four of the request say.
const SIZED: u8 = 1;
const SERVER: &str = "10.77.2.1:31850";
const CLIENT: &str = "10.77.1.1:0";

/// Three namespaces: a client's, a router's and a server's. They are removed with it.
struct Network {
    name: String,
}

fn ip(arguments: &str) -> Result<(), String> {
    let output =
        Command::new("ip").args(arguments.split(' ')).output().map_err(|error| format!("no `ip` command: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

impl Network {
    /// Creates the network, or says why it cannot.
    fn new() -> Result<Network, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let network = Network { name: format!("dunlin-{}-{number}", std::process::id()) };
        for side in ["client", "router", "server"] {
            ip(&format!("netns add {}", network.of(side)))?;
            ip(&format!("-n {} link set lo up", network.of(side)))?;
        }
        let router = network.of("router");
        for (side, subnet) in [("client", 1), ("server", 2)] {
            let host = network.of(side);
            ip(&format!("link add eth netns {host} type veth peer name {side} netns {router}"))?;
            for (namespace, device, last) in [(&host, "eth", 1), (&router, side, 254)] {
                ip(&format!("-n {namespace} addr add 10.77.{subnet}.{last}/24 dev {device}"))?;
                ip(&format!("-n {namespace} link set {device} up"))?;
            }
            ip(&format!("-n {host} route add default via 10.77.{subnet}.254"))?;
        }
        ip(&format!("netns exec {router} sysctl -qw net.ipv4.ip_forward=1"))?;
        Ok(network)
    }

    fn of(&self, side: &str) -> String {
        format!("{}-{side}", self.name)
    }

    /// Sets the MTU of a device, in bytes of IP packets.
    fn carries(&self, side: &str, device: &str, mtu: usize) {
        ip(&format!("-n {} link set {device} mtu {mtu}", self.of(side))).unwrap();
    }

    /// From now on this thread opens its sockets in a namespace.
    fn enter(&self, side: &str) {
        let file = File::open(format!("/var/run/netns/{}", self.of(side))).unwrap();
        // SAFETY: the descriptor is open; the call changes this thread's namespace and nothing else.
        let rc = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for side in ["client", "router", "server"] {
            let _ = ip(&format!("netns del {}", self.of(side)));
        }
    }
}

/// The namespaces and addresses of a server and a client.
struct Places {
    server: (&'static str, &'static str),
    client: (&'static str, &'static str),
    /// Length in bytes of the longest packets, as agreed by both.
    mtu: usize,
}

/// With the router between them.
const ROUTED: Places = Places { server: ("server", SERVER), client: ("client", CLIENT), mtu: 1470 };
/// On one host, over its loopback interface.
const ON_ONE_HOST: Places =
    Places { server: ("client", "127.0.0.1:31850"), client: ("client", "127.0.0.1:0"), mtu: 9352 };

fn endpoint(at: &str, mtu: usize) -> Endpoint<UdpTransport> {
    let transport = UdpTransport::bind(UdpConfig::new(at.parse().unwrap())).unwrap();
    assert_eq!(transport.mtu(), mtu);
    Endpoint::new(transport, EndpointConfig::default()).unwrap()
}

/// Makes a call with a request and a response of these lengths.
fn call(client: &Endpoint<UdpTransport>, session: &Session, request_len: usize, response_len: usize) {
    let mut request = MsgBuf::with_len(request_len).unwrap();
    request.fill(7);
    request[..4].copy_from_slice(&(response_len as u32).to_le_bytes());
    let options = CallOptions::timeout(Duration::from_secs(60));
    let reply = client.block_on(session.call_with(SIZED, request, options)).unwrap();
    assert!(reply.response.len() == response_len && reply.response.iter().all(|byte| *byte == 7));
}

/// Runs a server, and `test` as its client, each in its namespace.
fn with_client(network: &Network, test: impl FnOnce(&Endpoint<UdpTransport>, &Session) + Send) {
    with_client_at(network, &ROUTED, test);
}

fn with_client_at(network: &Network, places: &Places, test: impl FnOnce(&Endpoint<UdpTransport>, &Session) + Send) {
    let (server_at, client_at) = (places.server, places.client);
    let stop = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        let stopped = stop.clone();
        scope.spawn(move || {
            network.enter(server_at.0);
            let server = endpoint(server_at.1, places.mtu);
            server
                .register(SIZED, |request| {
                    let len = u32::from_le_bytes(request.payload()[..4].try_into().unwrap()) as usize;
                    request.respond_with(len, |out| out.fill(7));
                })
                .unwrap();
            server.run_until(|| stopped.load(Ordering::Relaxed));
        });
        let client = scope.spawn(move || {
            network.enter(client_at.0);
            let client = endpoint(client_at.1, places.mtu);
            let to: Addr = format!("udp://{}", server_at.1).parse().unwrap();
            let session = loop {
                // The server may not be listening yet.
                if let Ok(session) = client.block_on(client.connect(&to)) {
                    break session;
                }
            };
            test(&client, &session);
        });
        let result = client.join();
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
}

fn network() -> Option<Network> {
    let network = Network::new();
    if let Err(why) = &network {
        eprintln!("skipped: network namespaces cannot be made: {why}");
    }
    network.ok()
}

/// Data bytes of packets that fit IPv4 packets of `mtu` bytes.
fn data(mtu: usize) -> usize {
    (mtu - 20 - 8 - 2 - 32) & !15
}

/// Waits until packets are as long as the path allows, within 64 bytes.
fn settle(client: &Endpoint<UdpTransport>, session: &Session, mtu: usize) {
    let used = Cell::new(0);
    let end = client.now() + 30_000_000_000;
    client.run_until(|| {
        used.set(session.stats().unwrap().packet_data_bytes);
        (data(mtu) - 64..=data(mtu)).contains(&used.get()) || client.now() > end
    });
    assert!((data(mtu) - 64..=data(mtu)).contains(&used.get()), "{} of {} bytes", used.get(), data(mtu));
}

#[test]
fn a_router_that_carries_less_swallows_no_call() {
    let Some(network) = network() else { return };
    network.carries("router", "server", 1400);
    with_client(&network, |client, session| {
        for (there, back) in [(20_000, 20_000), (1440, 1440), (4, 1_000_000), (1_000_000, 4)] {
            call(client, session, there, back);
        }
        settle(client, session, 1400);
        // The MTU shrinks, from one call to the next.
        network.carries("router", "server", 1280);
        for (there, back) in [(200_000, 200_000), (1300, 1300)] {
            call(client, session, there, back);
        }
        settle(client, session, 1280);
    });
}

#[test]
fn a_link_of_ones_own_that_refuses_full_packets_costs_no_call() {
    for side in ["client", "server"] {
        let Some(network) = network() else { return };
        network.carries(side, "eth", 1300);
        with_client(&network, |client, session| {
            for (there, back) in [(20_000, 20_000), (1440, 1440), (4, 300_000), (300_000, 4)] {
                call(client, session, there, back);
            }
            settle(client, session, 1300);
        });
    }
}

#[test]
fn a_path_of_ordinary_ethernet_is_used_in_full() {
    let Some(network) = network() else { return };
    with_client(&network, |client, session| {
        call(client, session, 20_000, 20_000);
        settle(client, session, 1500);
        call(client, session, 2_000_000, 2_000_000);
        settle(client, session, 1500);
    });
}

#[test]
fn a_loopback_interface_that_carries_less_swallows_no_call() {
    for mtu in [1500, 1280] {
        let Some(network) = network() else { return };
        network.carries("client", "lo", mtu);
        with_client_at(&network, &ON_ONE_HOST, |client, session| {
            for (there, back) in [(20_000, 20_000), (9000, 9000), (4, 300_000), (300_000, 4)] {
                call(client, session, there, back);
            }
            settle(client, session, mtu);
        });
    }
}

#[test]
fn a_loopback_interface_as_it_usually_is_carries_full_packets_from_the_start() {
    let Some(network) = network() else { return };
    with_client_at(&network, &ON_ONE_HOST, |client, session| {
        assert!(session.stats().unwrap().packet_data_bytes > 9000);
        call(client, session, 300_000, 300_000);
        assert_eq!(client.stats().counters.mtu_probes_sent, 0);
    });
}
