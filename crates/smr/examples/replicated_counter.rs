//! A complete replicated service and its client: a counter whose sum survives the loss of any one of three processes.
//!
//! In three terminals, for N = 1, 2 and 3, `found` at the first start and `serve` at each further one:
//!   R=1=udp://127.0.0.1:7811,2=udp://127.0.0.1:7812,3=udp://127.0.0.1:7813
//!   cargo run --release -p dunlin-smr --example replicated_counter found $R N counter-N
//! In another:
//!   cargo run --release -p dunlin-smr --example replicated_counter add $R 5
//!   curl http://127.0.0.1:9811/metrics http://127.0.0.1:9811/healthz
use std::{path::PathBuf, rc::Rc, sync::Arc, time::Duration};

use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_serve::metrics::{Family, Kind, exposition};
use dunlin_serve::port::{Pages, Port};
use dunlin_serve::{Core, Pace, ServeConfig, Server, Service, Site, signals};
use dunlin_smr::wal::{self, Directory, WalConfig};
use dunlin_smr::{Beginning, Client, ClientConfig, DurableLog, Node, NodeConfig, StateMachine, machine::RestoreError};
use tokio::sync::oneshot;

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Peers = Vec<(u64, Addr)>;

/// The replicated state. A command is an 8-byte number, which is added to the sum.
struct Counter(u64);

impl StateMachine for Counter {
    fn apply(&mut self, _: u64, command: &[u8], reply: &mut Vec<u8>) {
        // All replicas must treat a malformed command alike: as zero.
        self.0 = self.0.wrapping_add(command.try_into().map_or(0, u64::from_le_bytes));
        self.snapshot(reply);
    }
    fn query(&self, _: &[u8], reply: &mut Vec<u8>) {
        self.snapshot(reply);
    }
    fn snapshot(&self, out: &mut Vec<u8>) {
        out.extend(self.0.to_le_bytes());
    }
    fn fresh(&self) -> Result<Counter, RestoreError> {
        Ok(Counter(0))
    }
    fn restore(&mut self, snapshot: &[u8]) -> Result<(), RestoreError> {
        self.0 = u64::from_le_bytes(snapshot.try_into().map_err(|_| RestoreError::new("it has not eight bytes"))?);
        Ok(())
    }
}

struct Replica(u64, PathBuf, Beginning);
struct ReplicaCore(Node<Counter, DurableLog<Directory>>);

impl Core for ReplicaCore {
    type Letter = oneshot::Sender<u64>;
    type Plan = ();
    type Error = Failure;

    fn read(&mut self, answer: oneshot::Sender<u64>) -> Pace {
        let _ = answer.send(self.0.with_machine(|counter| counter.0));
        Pace::Go
    }
    fn end(self) -> Result<(), Failure> {
        Ok(self.0.close()?)
    }
}

impl Service<AnyTransport> for Replica {
    type Core = ReplicaCore;
    type Ready = ();
    type Finish = ();

    fn build(&self, site: Site<AnyTransport, oneshot::Sender<u64>>) -> Result<(ReplicaCore, ()), Failure> {
        let Replica(id, directory, beginning) = self;
        let (log, _) = wal::open(Directory::open(directory)?, WalConfig::new(*id))?;
        let log = DurableLog::new(log)?;
        let node = Node::start(&site.endpoint, NodeConfig::new(*id), log, Counter(0), beginning.clone())?;
        let (watched, timers) = (node.clone(), site.endpoint.timers());
        site.endpoint.spawn(async move {
            while watched.failure().is_none() {
                timers.sleep(Duration::from_millis(50)).await;
            }
            site.health.fail(format!("the replica has stopped: {:?}", watched.failure()));
        });
        Ok((ReplicaCore(node), ()))
    }
    fn plan(&self, _: Vec<()>) -> Result<(), Failure> {
        Ok(())
    }
}

fn serve(peers: &Peers, id: u64, directory: PathBuf, beginning: Beginning) -> Result<(), Failure> {
    let listen = peers.iter().find(|peer| peer.0 == id).ok_or("this replica is not among its peers")?.1.clone();
    let config = ServeConfig { listen: vec![listen], interrupt: signals::install()?, ..ServeConfig::named("counter") };
    let server = Server::start(Arc::new(Replica(id, directory, beginning)), config).map_err(|failed| failed.error)?;
    let mailboxes = server.mailboxes().clone();
    let metrics = async move || {
        let sum = mailboxes.ask_all(|answer| answer).await.into_iter().sum();
        Ok::<_, Failure>(exposition("counter", vec![Family::one(Kind::Gauge, "sum", "The sum.", sum)]))
    };
    let pages = Pages { title: "A replicated counter", metrics, failure: server.failure().clone() };
    let port = Port::open(([127, 0, 0, 1], 9810 + id as u16).into(), pages)?;
    println!("replica {id} serves at {}, metrics at http://{}/metrics", server.addresses()[0], port.address());
    server.run()
}

fn add(peers: Peers, more: u64) -> Result<(), Failure> {
    let endpoint = Rc::new(Endpoint::new(AnyTransport::for_peer(&peers[0].1)?, EndpointConfig::default())?);
    let client = Client::new(&endpoint, peers, ClientConfig::default());
    // Executes once, whichever replicas fail meanwhile.
    let sum = endpoint.block_on(client.execute(&more.to_le_bytes()))?;
    println!("the sum is {}", u64::from_le_bytes(sum[..].try_into()?));
    Ok(())
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let usage = "give: found|serve PEERS ID DIRECTORY, or add PEERS NUMBER, with PEERS as ID=ADDRESS,ID=ADDRESS";
    let mut next = || arguments.next().ok_or(usage);
    let (what, peers, number) = (next()?, next()?, next()?);
    let peer = |text: &str| text.split_once('=').map(|(id, addr)| Ok::<_, Failure>((id.parse()?, addr.parse()?)));
    let peers = peers.split(',').map(|text| peer(text).ok_or(usage)?).collect::<Result<Peers, Failure>>()?;
    match &*what {
        "add" => add(peers, number.parse()?),
        "serve" => serve(&peers, number.parse()?, next()?.into(), Beginning::Join),
        "found" => {
            let directory = next()?.into();
            // A replica that lost its log must not found the cluster again: this fails if the directory exists.
            std::fs::create_dir(&directory)?;
            serve(&peers, number.parse()?, directory, Beginning::First(peers.clone()))
        }
        _ => Err(usage.into()),
    }
}
