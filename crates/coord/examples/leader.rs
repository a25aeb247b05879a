//! Two members campaign for one lease. The first leads until it resigns; then the second does.
//!
//! The cluster manager is one node in memory, in the same process. In production it is three of `dunlin coord serve`,
//! and only the lines after its start remain. Run it with `cargo run -p dunlin-coord --example leader`.

use std::rc::Rc;
use std::time::Duration;

use dunlin_coord::embedded::{Embedded, Watchman};
use dunlin_coord::model::{Hearing, Machine};
use dunlin_coord::{CoordError, Coordinator, Limits, Transaction, WatchmanConfig, campaign};
use dunlin_net::AnyTransport;
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_smr::{Beginning, Client, ClientConfig, MemoryLog, Node, NodeConfig};

type Manager = Embedded<AnyTransport>;

/// Work that only one process may do at a time.
async fn count(coordinator: &Manager, id: u64) -> Result<(), CoordError> {
    let mut leadership = campaign(coordinator, id, "/counter/primary", Duration::from_secs(2)).await?;
    println!("member {id} leads with token {}", leadership.token());
    let fenced = Transaction::new().if_lease(leadership.lease());
    let work = async {
        for step in 1..=3_u8 {
            // Refused if another member leads by now, whatever the clocks say.
            coordinator.transact(&fenced.clone().set("/counter/value", [step])).await?;
            println!("member {id} counts {step}");
        }
        Ok::<_, CoordError>(())
    };
    match leadership.while_safe(work).await {
        Some(counted) => counted?,
        None => println!("member {id} does not lead any more"),
    }
    leadership.resign().await
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let transport = AnyTransport::bind(&"udp://127.0.0.1:0".parse()?)?;
    let endpoint = Rc::new(Endpoint::new(transport, EndpointConfig::default())?);
    let members = [(1, endpoint.local_addr())];
    let hearing = Hearing::default();
    let machine = Machine::new(Limits::default(), hearing.clone());
    let beginning = Beginning::First(members.to_vec());
    let node = Node::start(&endpoint, NodeConfig::new(1), MemoryLog::new(), machine, beginning)?;
    let client = || Client::new(&endpoint, members.clone(), ClientConfig::default());
    let _watchman = Watchman::start(&endpoint, &node, client(), hearing, WatchmanConfig::default())?;

    let (one, two) = (Embedded::new(client()), Embedded::new(client()));
    endpoint.block_on(async { futures::try_join!(count(&one, 1), count(&two, 2)) })?;
    Ok(())
}
