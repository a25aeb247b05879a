//! Shared by the client commands of replicas: target, time limit, and exit codes.

use std::collections::BTreeSet;
use std::fmt;
use std::future::{Future, poll_fn};
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::process::ExitCode;
use std::rc::Rc;
use std::str::FromStr;
use std::task::Poll;
use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};
use dunlin_net::shm::{ShmConfig, ShmTransport};
use dunlin_net::udp::{UdpConfig, UdpTransport};
use dunlin_net::{Addr, AnyTransport, Transport};
use dunlin_rpc::{Endpoint, EndpointConfig};
use dunlin_serve::Interrupt;
use dunlin_serve::signals::EXIT_INTERRUPTED;
use dunlin_smr::client::Stranger;
use dunlin_smr::kv::{Answer, VALUE_BYTES_MAX, group_of};
use dunlin_smr::{ClientConfig, ClientError, ClusterId};

use crate::arguments::at::At;
use crate::arguments::time::ordinary;
use crate::{exit, output};

/// How often signals are looked for.
pub const SIGNAL_LOOK: Duration = Duration::from_millis(50);
/// Maximum time for one replica before another is asked.
const ATTEMPT_TIMEOUT_MAX: Duration = Duration::from_secs(1);

/// Ids and addresses of replicas: `1=udp://127.0.0.1:7801,2=udp://127.0.0.1:7802`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replicas(pub Vec<(u64, Addr)>);

impl Replicas {
    /// The address of one of them.
    pub fn address(&self, id: u64) -> Option<&Addr> {
        self.0.iter().find(|(known, _)| *known == id).map(|(_, addr)| addr)
    }

    /// The same replicas, with a new address for one of them.
    pub fn with_moved(&self, id: u64, addr: &Addr) -> Replicas {
        let place = |(known, listed): &(u64, Addr)| (*known, if *known == id { addr } else { listed }.clone());
        Replicas(self.0.iter().map(place).collect())
    }
}

impl fmt::Display for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(|(id, addr)| format!("{id}={addr}")).collect();
        f.write_str(&all.join(","))
    }
}

impl FromStr for Replicas {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Replicas> {
        let all = text.split(',').map(replica).collect::<Result<Vec<(u64, Addr)>>>()?;
        let ids: BTreeSet<u64> = all.iter().map(|(id, _)| *id).collect();
        ensure!(ids.len() == all.len(), "an id stands twice: each replica has its own");
        let addrs: BTreeSet<&Addr> = all.iter().map(|(_, addr)| addr).collect();
        ensure!(addrs.len() == all.len(), "an address stands twice: each replica has its own");
        Ok(Replicas(all))
    }
}

/// One replica: `4=udp://127.0.0.1:7804`.
pub fn replica(text: &str) -> Result<(u64, Addr)> {
    let wrong = || anyhow!("{text:?} is no replica: write ID=ADDRESS, for example 1=udp://127.0.0.1:7801");
    let (id, addr) = text.split_once('=').ok_or_else(wrong)?;
    let id: u64 = id.trim().parse().map_err(|_| wrong())?;
    ensure!(id > 0, "{text:?}: ids begin with 1");
    let addr: Addr = addr.trim().parse()?;
    match &addr {
        Addr::Udp(addr) if addr.ip().is_unspecified() || addr.port() == 0 => {
            bail!("{text:?}: others must reach it there, so give the address of one machine, and a port")
        }
        Addr::Udp(_) | Addr::Shm(_) => Ok((id, addr)),
        Addr::Node(_) | Addr::Sim { .. } => Err(wrong()),
    }
}

/// The replicas, and how long to wait for them.
#[derive(Debug, clap::Args)]
pub struct Cluster {
    #[command(flatten)]
    pub at: At,
    /// The number of the cluster, as `dunlin raft status` shows it: no other is asked. Without it that counts which
    /// most of these replicas are of
    #[arg(long, value_name = "NUMBER")]
    pub cluster: Option<ClusterId>,
    /// How long to wait for the answer
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = ordinary)]
    pub timeout: Duration,
}

impl Cluster {
    /// What is asked.
    pub fn target(&self) -> Result<Target> {
        let (replicas, known) = self.at.replicas()?;
        Ok(Target { replicas: replicas.clone(), cluster: self.cluster.or(known), timeout: self.timeout })
    }
}

/// Replicas, the number that their cluster must have if one is known, and how long to wait for them.
#[derive(Debug)]
pub struct Target {
    pub replicas: Replicas,
    pub cluster: Option<ClusterId>,
    pub timeout: Duration,
}

/// A client on an endpoint of this thread.
pub type Client = dunlin_smr::Client<AnyTransport>;

/// The outcome of a command that got an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Success.
    Done,
    /// The item does not exist.
    NotFound,
    /// The item exists, but the condition does not hold.
    NotAsExpected,
}

/// The user interrupted the command.
#[derive(Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Runs `work` with a client. Errors are printed and determine the exit code.
pub fn ask(
    cluster: &Cluster,
    interrupt: &Interrupt,
    work: impl AsyncFnOnce(&Client) -> Result<Outcome>,
) -> Result<ExitCode> {
    ask_target(&cluster.target()?, interrupt, work)
}

/// As [`ask`].
pub fn ask_target(
    target: &Target,
    interrupt: &Interrupt,
    work: impl AsyncFnOnce(&Client) -> Result<Outcome>,
) -> Result<ExitCode> {
    let error = match try_ask(target, interrupt, work) {
        Ok(Outcome::Done) => return Ok(ExitCode::SUCCESS),
        Ok(Outcome::NotFound) => return Ok(ExitCode::from(exit::NOT_FOUND)),
        Ok(Outcome::NotAsExpected) => return Ok(ExitCode::from(exit::CONDITION)),
        Err(error) => error,
    };
    let code = match error.downcast_ref::<ClientError>() {
        Some(error) if error.may_have_run() => exit::IN_DOUBT,
        _ if error.is::<Interrupted>() => EXIT_INTERRUPTED,
        _ => exit::FAILED,
    };
    Ok(output::report(&error, ExitCode::from(code)))
}

fn try_ask(
    target: &Target,
    interrupt: &Interrupt,
    work: impl AsyncFnOnce(&Client) -> Result<Outcome>,
) -> Result<Outcome> {
    let (endpoint, client) = connect(target)?;
    let timers = endpoint.timers();
    let asked = unless_interrupted(interrupt, |time| timers.sleep(time), async {
        let outcome = work(&client).await?;
        // If there is no answer, the cluster ends the session itself after it has been idle for long.
        let _ = client.close().await;
        Ok(outcome)
    });
    let asked = endpoint.block_on(asked).unwrap_or_else(|| Err(Interrupted.into()));
    warn_of_strangers(&client);
    asked
}

/// Warns of replicas of other clusters that answered: the configuration is wrong, even if the command succeeded.
pub fn warn_of_strangers<T: Transport>(client: &dunlin_smr::Client<T>) {
    let Some(asked) = client.cluster() else { return };
    for Stranger { id, addr, cluster } in client.strangers() {
        eprintln!(
            "dunlin: warning: replica {id} at {addr} is of cluster {cluster}, and not of cluster {asked}, which was asked: correct the list"
        );
    }
}

/// A client of these replicas of a cluster, whose operations take so long at most.
pub fn connect(target: &Target) -> Result<(Rc<Endpoint<AnyTransport>>, Client)> {
    let Target { replicas, cluster, timeout } = target;
    // All replicas get a turn before time is over.
    let turns = replicas.0.len() as u32 + 1;
    let attempt_timeout = (*timeout / turns).min(ATTEMPT_TIMEOUT_MAX);
    let config = EndpointConfig { connect_timeout: attempt_timeout, ..EndpointConfig::default() };
    let endpoint = Rc::new(Endpoint::new(transport(replicas)?, config)?);
    let config = ClientConfig { cluster: *cluster, timeout: *timeout, attempt_timeout, ..ClientConfig::default() };
    let client = Client::new(&endpoint, replicas.0.iter().cloned(), config);
    Ok((endpoint, client))
}

/// A transport that reaches them.
pub fn transport(replicas: &Replicas) -> Result<AnyTransport> {
    let udp: Vec<&Addr> = replicas.0.iter().map(|(_, addr)| addr).filter(|addr| matches!(addr, Addr::Udp(_))).collect();
    let is_local = |addr: &&Addr| matches!(addr, Addr::Udp(addr) if addr.ip().is_loopback());
    // A socket that is not bound to the loopback interface reaches both.
    let farthest = udp.iter().find(|addr| !is_local(addr)).or(udp.first());
    let Some(farthest) = farthest else { return Ok(AnyTransport::for_peer(&replicas.0[0].1)?) };
    if udp.len() == replicas.0.len() {
        return Ok(AnyTransport::for_peer(farthest)?);
    }
    let shm = ShmTransport::new(&ShmConfig::anonymous())?;
    let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
    Ok(AnyTransport::joined(shm, UdpTransport::bind(UdpConfig::new(any))?)?)
}

/// Runs `work`, unless a signal comes first.
pub async fn unless_interrupted<R, S: Future<Output = ()>>(
    interrupt: &Interrupt,
    sleep: impl Fn(Duration) -> S,
    work: impl Future<Output = R>,
) -> Option<R> {
    let mut work = pin!(work);
    let mut pause = pin!(sleep(SIGNAL_LOOK));
    poll_fn(|context| {
        while pause.as_mut().poll(context).is_ready() {
            if interrupt.is_set() {
                return Poll::Ready(None);
            }
            pause.set(sleep(SIGNAL_LOOK));
        }
        work.as_mut().poll(context).map(Some)
    })
    .await
}

/// A client of each group.
pub async fn groups(client: &Client) -> Result<Vec<Client>> {
    Ok((0..client.groups().await?).map(|group| client.of_group(group)).collect())
}

/// A client of the group that owns a key.
pub async fn of_key(client: &Client, key: &str) -> Result<Client> {
    Ok(client.of_group(group_of(key.as_bytes(), client.groups().await?)))
}

/// Lets the group that owns a key execute a command, and prints the result.
pub async fn execute(client: &Client, key: &str, command: &[u8]) -> Result<Outcome> {
    let client = of_key(client, key).await?;
    let outcome = show_change(key, &client.execute(command).await?);
    // If there is no answer, the group ends the session itself after it has been idle for long.
    let _ = client.close().await;
    outcome
}

/// Prints the result of a change.
fn show_change(key: &str, answer: &[u8]) -> Result<Outcome> {
    match Answer::parse(answer)? {
        Answer::Done { version } => {
            output::line(format_args!("version {version}"))?;
            Ok(Outcome::Done)
        }
        Answer::NotFound => {
            eprintln!("dunlin: there is no item {key:?}");
            Ok(Outcome::NotFound)
        }
        Answer::Exists => {
            eprintln!("dunlin: not stored: there is an item {key:?}");
            Ok(Outcome::NotAsExpected)
        }
        Answer::Changed => {
            eprintln!("dunlin: not stored: the item {key:?} has another version");
            Ok(Outcome::NotAsExpected)
        }
        Answer::Full => bail!("not stored: the replicas hold as much as their --limit allows; delete something first"),
        Answer::TooLarge => bail!("not stored: a key has 1 to 250 bytes, and a value at most {VALUE_BYTES_MAX}"),
        Answer::Value { .. } | Answer::Bad => {
            bail!("the answer is not one of a key-value machine: is that `dunlin raft serve`?")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_read() {
        let text = "1=udp://127.0.0.1:7801,2=shm:two";
        let replicas: Replicas = text.parse().unwrap();
        assert_eq!(replicas.to_string(), text);
        assert_eq!(replicas.address(2).unwrap().to_string(), "shm:two");
        assert_eq!(replicas.address(3), None);
        for (text, why) in [
            ("", "write ID=ADDRESS"),
            ("udp://127.0.0.1:1", "write ID=ADDRESS"),
            ("one=udp://127.0.0.1:1", "write ID=ADDRESS"),
            ("0=udp://127.0.0.1:1", "ids begin with 1"),
            ("1=127.0.0.1:1", "shm:NAME or udp://HOST:PORT"),
            ("1=udp://0.0.0.0:1", "others must reach it there"),
            ("1=udp://127.0.0.1:0", "others must reach it there"),
            ("1=sim:1:1", "write ID=ADDRESS"),
            ("1=shm:a,1=shm:b", "an id stands twice"),
            ("1=shm:a,2=shm:a", "an address stands twice"),
            ("1=shm:a,", "write ID=ADDRESS"),
        ] {
            let error = text.parse::<Replicas>().unwrap_err().to_string();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }
}
