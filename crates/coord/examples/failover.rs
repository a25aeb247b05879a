//! A service that fails over. Two servers are members; the live member with the lowest id serves. Each request names
//! the epoch in which it was sent. A server that was marked as failed therefore executes nothing, and its client finds
//! the other server.
//!
//! The cluster manager is one node in memory, and one thread runs everything; in production each is a process. Run it
//! with `cargo run -p dunlin-coord --example failover`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use dunlin_coord::embedded::{Embedded, Watchman};
use dunlin_coord::model::{Hearing, Machine};
use dunlin_coord::{CoordError, Coordinator, Health, Limits, Standing, WatchmanConfig, join_after_leases};
use dunlin_net::clock::boot_nanos;
use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_serve::channel::{CallPolicy, Channel, ChannelConfig};
use dunlin_serve::epoch::{EpochClient, Found, Refused, admit};
use dunlin_smr::{Beginning, Client, ClientConfig, MemoryLog, Node, NodeConfig};

type End = Rc<Endpoint<AnyTransport>>;

const GREET: u8 = 7;
const FAILURE_TIMEOUT: Duration = Duration::from_secs(1);
const HEARTBEAT_EVERY: Duration = Duration::from_millis(200);

fn endpoint() -> Result<End, Box<dyn std::error::Error>> {
    Ok(Rc::new(Endpoint::new(AnyTransport::bind(&"udp://127.0.0.1:0".parse()?)?, EndpointConfig::default())?))
}

fn coordinator(endpoint: &End, manager: &Addr) -> Embedded<AnyTransport> {
    Embedded::new(Client::new(endpoint, [(1, manager.clone())], ClientConfig::default()))
}

/// Serves as a member, and joins again after it was marked as failed.
async fn serve(endpoint: End, id: u64, manager: Addr) -> Result<(), CoordError> {
    let (coordinator, current) = (coordinator(&endpoint, &manager), Rc::new(RefCell::new(None::<Standing>)));
    let standing = current.clone();
    let handler = move |request: dunlin_rpc::Request<'_>| {
        let epoch = standing.borrow().as_ref().and_then(|standing| standing.check(boot_nanos()).ok());
        let admitted = epoch.ok_or(Refused { asked: 0, epoch: 0 }).and_then(|epoch| admit(epoch, request.payload()));
        match admitted {
            Ok(name) => {
                let greeting = format!("server {id} greets {}", String::from_utf8_lossy(name));
                request.respond(greeting.as_bytes());
            }
            Err(refused) => {
                standing.borrow().iter().for_each(|standing| standing.heard_of(refused.asked));
                refused.answer(request);
            }
        }
    };
    endpoint.register(GREET, handler).expect("nobody has registered this type before");
    let about = endpoint.local_addr().to_string();
    loop {
        let membership = join_after_leases(&coordinator, id, about.as_bytes(), HEARTBEAT_EVERY).await?;
        let standing = Standing::new(&membership);
        current.replace(Some(standing.clone()));
        standing.attend(&coordinator, HEARTBEAT_EVERY).await;
    }
}

/// Finds the address of the service and the epoch.
async fn look_up(endpoint: &End, coordinator: &impl Coordinator) -> Result<Found<AnyTransport>, CoordError> {
    let members = coordinator.members().await?;
    let serves = members.members.iter().find(|member| member.health == Health::Live);
    let address = serves.and_then(|member| String::from_utf8_lossy(&member.about).parse().ok());
    let address = address.ok_or_else(|| CoordError::NotFound { what: "server".into() })?;
    Ok(Found { epoch: members.epoch, channel: Channel::new(endpoint, vec![address], ChannelConfig::default()) })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (manager, servers, user) = (endpoint()?, [endpoint()?, endpoint()?], endpoint()?);
    let members = vec![(1, manager.local_addr())];
    let hearing = Hearing::default();
    let machine = Machine::new(Limits::default(), hearing.clone());
    let node = Node::start(&manager, NodeConfig::new(1), MemoryLog::new(), machine, Beginning::First(members.clone()))?;
    let client = Client::new(&manager, members, ClientConfig::default());
    let config = WatchmanConfig { failure_timeout: FAILURE_TIMEOUT, ..WatchmanConfig::default() };
    let _watchman = Watchman::start(&manager, &node, client, hearing, config)?;
    for (id, server) in (1..).zip(&servers) {
        let serving = serve(server.clone(), id, manager.local_addr());
        server.spawn(async move { serving.await.expect("the cluster manager takes them in") });
    }

    let (step, caller) = (Rc::new(Cell::new(0)), user.clone());
    let (done, address) = (step.clone(), manager.local_addr());
    user.spawn(async move {
        let (coordinator, looking) = (coordinator(&caller, &address), caller.clone());
        let client = EpochClient::new(&caller, async move || look_up(&looking, &coordinator).await);
        while done.get() < 6 {
            match client.call(GREET, b"dunlin", CallPolicy::default().within(HEARTBEAT_EVERY)).await {
                Ok(greeting) => {
                    println!("epoch {:?}: {}", client.epoch(), String::from_utf8_lossy(&greeting));
                    done.set(done.get() + 1);
                }
                Err(why) => println!("{why}"),
            }
            caller.timers().sleep(HEARTBEAT_EVERY).await;
        }
    });
    while step.get() < 6 {
        manager.run_once();
        user.run_once();
        servers[1].run_once();
        // The first server stops running after a few greetings.
        if step.get() < 3 {
            servers[0].run_once();
        }
    }
    Ok(())
}
