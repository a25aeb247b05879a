//! The processes of the bank: its nodes, and their cluster manager.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dunlin_coord::embedded::{Embedded, Watchman};
use dunlin_coord::model::{Hearing, Machine};
use dunlin_coord::{Limits, WatchmanConfig};
use dunlin_lab::peer::{Control, Role};
use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_serve::{ServeConfig, Server};
use dunlin_smr::{Beginning, Client, ClientConfig, MemoryLog, Node, NodeConfig};
use dunlin_txn::node::{AgentConfig, CoreConfig, node};
use serde::{Deserialize, Serialize};

use crate::BenchError;

/// Time between two looks at who was heard.
const LOOK: Duration = Duration::from_millis(20);
/// The time of the placer's lease, and of an operation of the cluster manager.
const LEASE: Duration = Duration::from_millis(500);
const OPERATION: Duration = Duration::from_millis(250);
/// How often a process looks whether it is to stop.
const STOP_LOOK: Duration = Duration::from_millis(20);

fn failed(why: impl std::fmt::Display) -> BenchError {
    BenchError::demo("serve a bank", why.to_string())
}

fn endpoint() -> Result<Rc<Endpoint<AnyTransport>>, BenchError> {
    Ok(Rc::new(Endpoint::new(AnyTransport::bind(&"udp://127.0.0.1:0".parse()?)?, EndpointConfig::default())?))
}

/// The only node of a cluster manager, with its log in memory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BankManager {
    /// When a member that was not heard has failed.
    pub failure_timeout: Duration,
}

impl Role for BankManager {
    const NAME: &'static str = "cluster manager of a bank";
    /// Its address.
    type Ready = String;
    type Output = ();
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<(), BenchError> {
        let endpoint = endpoint()?;
        let members = vec![(1, endpoint.local_addr())];
        let hearing = Hearing::default();
        let machine = Machine::new(Limits::default(), hearing.clone());
        let beginning = Beginning::First(members.clone());
        let node = Node::start(&endpoint, NodeConfig::new(1), MemoryLog::new(), machine, beginning)?;
        let client = Client::new(&endpoint, members, ClientConfig::default());
        let config = WatchmanConfig { failure_timeout: self.failure_timeout, look_every: LOOK };
        let watchman = Watchman::start(&endpoint, &node, client, hearing, config).map_err(failed)?;
        control.ready(endpoint.local_addr().to_string());
        endpoint.run_until(|| control.stopping());
        drop(watchman);
        Ok(())
    }
}

/// A node of the bank, on one core.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BankNode {
    /// Its number.
    pub member: u32,
    /// The address of the cluster manager.
    pub manager: String,
}

impl Role for BankNode {
    const NAME: &'static str = "node of a bank";
    /// Its address.
    type Ready = String;
    type Output = ();
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<(), BenchError> {
        let (service, seed) = node(CoreConfig::default());
        let config = ServeConfig { listen: vec!["udp://127.0.0.1:0".parse()?], ..ServeConfig::named("bank") };
        let server = Server::start(Arc::new(service), config).map_err(failed)?;
        let cores: Vec<Addr> = server.addresses().to_vec();
        let address = cores.first().map(ToString::to_string).unwrap_or_default();
        let endpoint = endpoint()?;
        let config = ClientConfig { timeout: OPERATION, attempt_timeout: OPERATION / 2, ..ClientConfig::default() };
        let manager: Addr = self.manager.parse()?;
        let coordinator = Embedded::new(Client::new(&endpoint, [(1, manager)], config));
        let agent = AgentConfig { lease: LEASE, ..AgentConfig::new(self.member, cores) };
        let agent = seed.agent(coordinator, server.mailboxes().clone(), agent).map_err(failed)?;
        control.ready(address);
        let timers = endpoint.timers();
        let stopping = async {
            while !control.stopping() && server.is_running() {
                timers.sleep(STOP_LOOK).await;
            }
        };
        endpoint.block_on(agent.run(stopping));
        server.stop().map_err(failed)
    }
}
