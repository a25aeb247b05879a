//! `dunlin coord epochs`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_coord::{Coordinator, Event};
use dunlin_serve::Interrupt;

use super::asks::{Outcome, Target, ask};
use crate::output;

/// Show who joined, failed and left in each epoch, or have old epochs forgotten
///
/// Exit code 3 if some of the epochs after --after were forgotten, or the one of --cut has not begun.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Nodes keep the last 4096 epochs, and an etcd all, until they are cut.

Examples, with P=1=udp://127.0.0.1:7901,2=udp://127.0.0.1:7902,3=udp://127.0.0.1:7903:
  dunlin coord epochs --peers $P --after 12
  dunlin coord epochs --peers $P --cut 12")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Show those after this one
    #[arg(long, value_name = "EPOCH", default_value = "0", conflicts_with = "cut")]
    after: u64,
    /// Forget those up to this one
    #[arg(long, value_name = "EPOCH")]
    cut: Option<u64>,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.target, interrupt, async |manager| {
        if let Some(up_to) = arguments.cut {
            manager.cut_epochs(up_to).await?;
            return Ok(Outcome::Done);
        }
        let mut after = arguments.after;
        loop {
            let page = manager.epochs(after).await?;
            for change in &page.epochs {
                after = change.epoch;
                for happening in change.changes.iter().cloned() {
                    output::line(Event { revision: change.revision, happening })?;
                }
            }
            if !page.has_more {
                return Ok(Outcome::Done);
            }
        }
    })
}
