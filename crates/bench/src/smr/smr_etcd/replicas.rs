//! The load on Dunlin's replicas.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use dunlin_lab::LabError;
use dunlin_lab::peer::{Control, Role};
use dunlin_net::{Addr, AnyTransport, PollPolicy};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_smr::kv::{Answer, Command, Condition, Query};
use dunlin_smr::{COMMANDS_PER_SESSION_MAX, Client, ClientConfig};
use serde::{Deserialize, Serialize};

use super::load::{FILL_WINDOW, Figures, KEYS, Load, Operation, Request, Tally, VALUE_BYTES};
use crate::BenchError;

/// Far more than any disk operation takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// The load on replicas.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ReplicaLoad {
    pub(super) members: Vec<(u64, String)>,
    pub(super) load: Load,
}

fn failed(why: impl ToString) -> BenchError {
    BenchError::OtherSystem { system: "replicas", why: why.to_string() }
}

impl Role for ReplicaLoad {
    const NAME: &'static str = "load of replicas";
    type Ready = ();
    type Output = Figures;
    type Error = BenchError;

    fn run(self, control: &Control<Self>) -> Result<Figures, BenchError> {
        let members = self.members.iter().map(|(id, address)| Ok((*id, address.parse()?)));
        let members: Vec<(u64, Addr)> = members.collect::<Result<_, BenchError>>()?;
        let (_, first) = members.first().ok_or_else(|| failed("there are none"))?;
        // It has its own core.
        let endpoint_config = EndpointConfig { poll: PollPolicy::Spin, ..EndpointConfig::default() };
        let endpoint = Rc::new(Endpoint::new(AnyTransport::for_peer(first)?, endpoint_config)?);
        let config =
            ClientConfig { timeout: PATIENCE, attempt_timeout: Duration::from_secs(2), ..ClientConfig::default() };
        // Fewer on each than a session's command limit: a late answer blocks the numbers after it.
        let sessions = self.load.clients.div_ceil(COMMANDS_PER_SESSION_MAX / 2);
        let sessions: Vec<_> =
            (0..sessions).map(|_| Rc::new(Client::new(&endpoint, members.iter().cloned(), config))).collect();
        for from in (0..KEYS).step_by(FILL_WINDOW as usize) {
            let puts = (from..KEYS.min(from + FILL_WINDOW)).map(|key| Request::new(Operation::Put, key));
            all(&endpoint, control, puts.map(|put| ask(sessions[0].clone(), put)))?;
        }
        let tally = Tally::start(self.load);
        let clients = (0..self.load.clients).map(|number| {
            let client = sessions[number % sessions.len()].clone();
            tally.clone().client(number, move |request| ask(client.clone(), request))
        });
        all(&endpoint, control, clients)?;
        tally.figures()
    }
}

/// Runs all futures until they end.
fn all<F: Future<Output = Result<(), BenchError>> + 'static>(
    endpoint: &Endpoint<AnyTransport>,
    control: &Control<ReplicaLoad>,
    futures: impl Iterator<Item = F>,
) -> Result<(), BenchError> {
    let (running, failure) = (Rc::new(Cell::new(0_usize)), Rc::new(RefCell::new(None)));
    for future in futures {
        running.set(running.get() + 1);
        let (running, failure) = (running.clone(), failure.clone());
        endpoint.spawn(async move {
            if let Err(error) = future.await {
                failure.borrow_mut().get_or_insert(error);
            }
            running.set(running.get() - 1);
        });
    }
    endpoint.run_until(|| running.get() == 0 || failure.borrow().is_some() || control.stopping());
    match failure.take() {
        Some(error) => Err(error),
        None if running.get() > 0 => Err(LabError::Interrupted.into()),
        None => Ok(()),
    }
}

async fn ask(client: Rc<Client<AnyTransport>>, Request { operation, key, value }: Request) -> Result<(), BenchError> {
    let reply = match operation {
        Operation::Put => {
            client.execute(&Command::Put { key: &key, value: &value, condition: Condition::Always }.encode()).await
        }
        Operation::Get => client.query(Query { key: &key }.encode()).await,
    };
    let reply = reply.map_err(failed)?;
    match (operation, Answer::parse(&reply).map_err(failed)?) {
        (Operation::Put, Answer::Done { .. }) => Ok(()),
        (Operation::Get, Answer::Value { value, .. }) if value.len() == VALUE_BYTES => Ok(()),
        (_, other) => Err(failed(format!("a {} was answered with {other:?}", operation.name()))),
    }
}
