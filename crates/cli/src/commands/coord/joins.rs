//! `dunlin coord join`.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::process::ExitCode;
use std::task::Poll;
use std::time::Duration;

use anyhow::{Error, Result};
use dunlin_coord::{CoordError, Coordinator, Membership, Token, heartbeat_every, join_after_leases, keep};
use dunlin_net::clock::nanos;
use dunlin_serve::Interrupt;

use super::asks::{Outcome, Target, attend, unless_interrupted};
use super::manager::Manager;
use crate::arguments::time::ordinary;
use crate::commands::raft::cluster::Interrupted;
use crate::output;

/// Between two tries to join while an earlier process of the member is live, or its leases run.
const JOIN_EVERY: Duration = Duration::from_millis(200);

/// Be a member, and hold leases, until ctrl-C
///
/// It joins when an earlier process of the member has left or failed, and the leases have ended that it held. It is
/// heard each second, or five times in the failure timeout if that is short, and renews its leases. ctrl-C and SIGTERM
/// let it leave, which ends them; a process that is killed fails after the failure timeout. Exit code 3 if it was taken
/// for failed, a lease was lost or could not be renewed, or is held by another. A lease that could not be renewed for
/// three quarters of its time ends it at once, before another can have it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, after export DUNLIN_AT=1=udp://127.0.0.1:7901,2=udp://127.0.0.1:7902,3=udp://127.0.0.1:7903:
  dunlin coord join 7 --about udp://10.0.0.7:4000
  dunlin coord join 8 --lease /locks/a --lease /locks/b --ttl 2s")]
pub struct Arguments {
    /// The id of the member; only one process at a time may use it
    member: u64,
    #[command(flatten)]
    target: Target,
    /// Description of the member, up to 1 KiB
    #[arg(long, value_name = "TEXT", default_value = "")]
    about: String,
    /// Hold this lease; its name is a path
    #[arg(long = "lease", value_name = "NAME")]
    leases: Vec<String>,
    /// The time of the leases
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = ordinary)]
    ttl: Duration,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    attend(&arguments.target, async |manager| {
        let joined = unless_interrupted(manager, interrupt, join(arguments, manager)).await;
        let membership = joined.ok_or(Interrupted)??;
        let Membership { member, incarnation, epoch, .. } = membership;
        output::line(format_args!(
            "joined as member {member}, incarnation {incarnation}: epoch {epoch}; ctrl-C leaves"
        ))?;
        if let Some(stayed) = unless_interrupted(manager, interrupt, stay(arguments, manager, &membership)).await {
            // Leaving would wait for answers that do not come, while others believe that the lease is held.
            if !stayed.is::<NotSafe>() {
                // Without the lease there is no reason to remain a member.
                let _ = manager.leave(&membership).await;
            }
            return Err(stayed);
        }
        manager.leave(&membership).await?;
        output::line("left")?;
        Ok(Outcome::Done)
    })
}

/// Joins, and says so if it must wait for an earlier process of the member.
async fn join(arguments: &Arguments, manager: &Manager) -> Result<Membership, CoordError> {
    let (member, about) = (arguments.member, arguments.about.as_bytes());
    match manager.join(member, about).await {
        Err(why @ (CoordError::Live { .. } | CoordError::LeasesRun { .. })) => {
            eprintln!("dunlin: {why}; waiting");
            join_after_leases(manager, member, about, JOIN_EVERY).await
        }
        joined => joined,
    }
}

/// A lease that another member may get soon.
#[derive(Debug)]
pub struct NotSafe {
    name: String,
    token: Token,
}

impl fmt::Display for NotSafe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NotSafe { name, token } = self;
        write!(
            f,
            "lease {name} with token {token} could not be renewed in time, so another may have it soon: stop what rests on it"
        )
    }
}

impl std::error::Error for NotSafe {}

/// Remains a member, and holds the leases, until that is impossible. Each lease is independent: none waits for the
/// answer about another.
async fn stay(arguments: &Arguments, manager: &Manager, membership: &Membership) -> Error {
    let mut all: Vec<Pin<Box<dyn Future<Output = Error> + '_>>> = vec![Box::pin(heard(manager, membership))];
    for name in &arguments.leases {
        all.push(Box::pin(hold(manager, membership, name, arguments.ttl)));
    }
    poll_fn(|context| {
        let ended = all.iter_mut().find_map(|work| match work.as_mut().poll(context) {
            Poll::Ready(error) => Some(error),
            Poll::Pending => None,
        });
        ended.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// Sends heartbeats, and prints the epochs.
async fn heard(manager: &Manager, membership: &Membership) -> Error {
    let (mut membership, mut is_unheard) = (*membership, false);
    loop {
        let sent_at = manager.now();
        match manager.heartbeat(&membership).await {
            Ok(heartbeat) => {
                let before = std::mem::replace(&mut membership.epoch, heartbeat.epoch);
                membership.failure_timeout_ms = heartbeat.failure_timeout_ms;
                if heartbeat.epoch != before
                    && let Err(error) = output::line(format_args!("epoch {}", heartbeat.epoch))
                {
                    return error.into();
                }
                is_unheard = false;
            }
            Err(error) if error.is_of_the_moment() => {
                if !std::mem::replace(&mut is_unheard, true) {
                    eprintln!("dunlin: {error}; asking again, but this member may be taken for failed meanwhile");
                }
            }
            Err(error) => return error.into(),
        }
        let every = heartbeat_every(&membership);
        manager.sleep_until(sent_at.saturating_add(nanos(every))).await;
    }
}

/// Acquires a lease, and renews it for as long as it is safe.
async fn hold(manager: &Manager, membership: &Membership, name: &str, ttl: Duration) -> Error {
    let mut lease = match manager.acquire(membership, name, ttl).await {
        Ok(lease) => lease,
        Err(error) => return error.into(),
    };
    if manager.now() < lease.safe_until
        && let Err(error) = output::line(format_args!("holds {name} with token {}", lease.token))
    {
        return error.into();
    }
    match keep(manager, &mut lease, |_| ()).await {
        Some(error) => error.into(),
        None => NotSafe { name: lease.name, token: lease.token }.into(),
    }
}
