//! `dunlin coord join`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use dunlin_bench::peer::Interrupt;
use dunlin_coord::{CoordError, Coordinator, HEARTBEAT_EVERY, Lease, Membership};

use super::asks::{Outcome, Target, attend, pause, unless_interrupted};
use super::manager::Manager;
use crate::commands::seconds;
use crate::output;

/// A renewal is asked for so many times within the time of a lease.
const RENEWALS_OF_TTL: u32 = 4;

/// Be a member, and hold leases, until ctrl-C
///
/// It is heard each second and renews its leases. ctrl-C and SIGTERM let it leave, which ends them; a process that is killed fails after the failure timeout.
/// Exit code 3 if it was taken for failed, a lease was lost, or is held by another.
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
        let joining = manager.join(arguments.member, arguments.about.as_bytes());
        let Some(joined) = unless_interrupted(manager, interrupt, joining).await else { return Ok(Outcome::Done) };
        let membership = joined?;
        let Membership { member, incarnation, epoch } = membership;
        output::line(format_args!("joined as member {member}, incarnation {incarnation}: epoch {epoch}; ctrl-C leaves"))?;
        if let Some(stayed) = unless_interrupted(manager, interrupt, stay(arguments, manager, &membership)).await {
            // A lease that is held by another is no reason to remain a member.
            let _ = manager.leave(&membership).await;
            return Err(stayed);
        }
        manager.leave(&membership).await?;
        output::line("left")?;
        Ok(Outcome::Done)
    })
}

/// Stays a member, and holds the leases, until that is not possible any more.
async fn stay(arguments: &Arguments, manager: &Manager, membership: &Membership) -> anyhow::Error {
    let mut leases = Vec::new();
    for name in &arguments.leases {
        match manager.acquire(membership, name, arguments.ttl).await {
            Ok(lease) => {
                if let Err(error) = output::line(format_args!("holds {name} with token {}", lease.token)) {
                    return error.into();
                }
                leases.push(lease);
            }
            Err(error) => return error.into(),
        }
    }
    let every = HEARTBEAT_EVERY.min(arguments.ttl / RENEWALS_OF_TTL);
    let mut epoch = membership.epoch;
    loop {
        match heard(manager, membership, &mut leases).await {
            Ok(now) if now != epoch => {
                epoch = now;
                if let Err(error) = output::line(format_args!("epoch {epoch}")) {
                    return error.into();
                }
            }
            Ok(_) => {}
            Err(CoordError::TimedOut { .. } | CoordError::Backend { .. }) => {}
            Err(error) => return error.into(),
        }
        pause(manager, every).await;
    }
}

/// Says that it is there and needs its leases; gives the epoch.
async fn heard(manager: &Manager, membership: &Membership, leases: &mut [Lease]) -> Result<u64, CoordError> {
    let epoch = manager.heartbeat(membership).await?;
    for lease in leases {
        manager.renew(lease).await?;
    }
    Ok(epoch)
}
