//! `dunlin coord join`.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::process::ExitCode;
use std::task::Poll;
use std::time::Duration;

use anyhow::{Error, Result};
use dunlin_coord::{Coordinator, HEARTBEAT_EVERY, Heartbeat, Membership, Token, join_after_leases, keep};
use dunlin_serve::Interrupt;

use super::asks::{Outcome, Target, attend, pause, unless_interrupted};
use super::manager::Manager;
use crate::commands::raft::cluster::Interrupted;
use crate::commands::seconds;
use crate::output;

/// Between two tries to join while leases of an earlier process of the member run.
const JOIN_EVERY: Duration = Duration::from_millis(200);

/// Be a member, and hold leases, until ctrl-C
///
/// It joins when the leases have ended that an earlier process of the member held. It is heard each second and renews its leases. ctrl-C and SIGTERM let it leave, which ends them; a process that is killed fails after the failure timeout.
/// Exit code 3 if it was taken for failed, a lease was lost or could not be renewed, or is held by another. A lease that could not be renewed for three quarters of
/// its time ends it at once, before another can have it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, with P=1=udp://127.0.0.1:7901,2=udp://127.0.0.1:7902,3=udp://127.0.0.1:7903:
  dunlin coord join 7 --peers $P --about udp://10.0.0.7:4000
  dunlin coord join 8 --peers $P --lease /locks/a --lease /locks/b --ttl 2")]
pub struct Arguments {
    /// The id of the member, which only one process at a time may use
    member: u64,
    #[command(flatten)]
    target: Target,
    /// What it says about itself, up to 1 KiB
    #[arg(long, value_name = "TEXT", default_value = "")]
    about: String,
    /// Hold this lease, named like a path
    #[arg(long = "lease", value_name = "NAME")]
    leases: Vec<String>,
    /// The time of the leases, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds, allow_negative_numbers = true)]
    ttl: Duration,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    attend(&arguments.target, async |manager| {
        let joining = join_after_leases(manager, arguments.member, arguments.about.as_bytes(), JOIN_EVERY);
        let joined = unless_interrupted(manager, interrupt, joining).await;
        let membership = joined.ok_or(Interrupted)??;
        let Membership { member, incarnation, epoch, .. } = membership;
        output::line(format_args!("joined as member {member}, incarnation {incarnation}: epoch {epoch}; ctrl-C leaves"))?;
        if let Some(stayed) = unless_interrupted(manager, interrupt, stay(arguments, manager, &membership)).await {
            // To leave would be to wait for answers that do not come, while others think that the lease is held.
            if !stayed.is::<NotSafe>() {
                // A lease that is held by another is no reason to remain a member.
                let _ = manager.leave(&membership).await;
            }
            return Err(stayed);
        }
        manager.leave(&membership).await?;
        output::line("left")?;
        Ok(Outcome::Done)
    })
}

/// A lease that others may soon have.
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

/// Stays a member, and holds the leases, until that is not possible any more. Each on its own: none waits for the answer about another.
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

/// Says again and again that the member is there, and prints the epochs.
async fn heard(manager: &Manager, membership: &Membership) -> Error {
    let (mut epoch, mut is_unheard) = (membership.epoch, false);
    loop {
        match manager.heartbeat(membership).await {
            Ok(Heartbeat { epoch: now, .. }) if now != epoch => {
                epoch = now;
                if let Err(error) = output::line(format_args!("epoch {epoch}")) {
                    return error.into();
                }
                is_unheard = false;
            }
            Ok(_) => is_unheard = false,
            Err(error) if error.is_of_the_moment() => {
                if !std::mem::replace(&mut is_unheard, true) {
                    eprintln!("dunlin: {error}; asking again, but this member may be taken for failed meanwhile");
                }
            }
            Err(error) => return error.into(),
        }
        pause(manager, HEARTBEAT_EVERY).await;
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
