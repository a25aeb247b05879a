//! `dunlin coord epochs`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_coord::{CoordError, Coordinator, Event};
use dunlin_serve::Interrupt;

use super::asks::{Outcome, Target, ask};
use super::watch::as_json;
use crate::output;

/// Show which members joined, failed and left in each epoch, or discard old epochs
///
/// Exit code 3 if some of the epochs after --after were discarded, or the epoch of --cut has not begun. Without
/// --after, all known epochs are shown.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Nodes keep the last 4096 epochs, and an etcd all, until they are cut.

Examples, after export DUNLIN_AT=1=udp://127.0.0.1:7901,2=udp://127.0.0.1:7902,3=udp://127.0.0.1:7903:
  dunlin coord epochs
  dunlin coord epochs --after 12
  dunlin coord epochs --cut 12")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Show those after this one
    #[arg(long, value_name = "NUMBER", conflicts_with = "cut")]
    after: Option<u64>,
    /// Discard epochs up to this one
    #[arg(long, value_name = "EPOCH")]
    cut: Option<u64>,
    /// Print JSON: each change as one line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.target, interrupt, async |manager| {
        if let Some(up_to) = arguments.cut {
            manager.cut_epochs(up_to).await?;
            return Ok(Outcome::Done);
        }
        let mut after = arguments.after.unwrap_or(0);
        loop {
            let page = match manager.epochs(after).await {
                Err(CoordError::EpochsCut { epoch }) if arguments.after.is_none() => {
                    eprintln!("dunlin: the epochs up to {epoch} are cut");
                    after = epoch;
                    continue;
                }
                page => page?,
            };
            for change in &page.epochs {
                after = change.epoch;
                for happening in change.changes.iter().cloned() {
                    let event = Event { revision: change.revision, happening };
                    if arguments.json { output::line(as_json(&event))? } else { output::line(event)? }
                }
            }
            if !page.has_more {
                return Ok(Outcome::Done);
            }
        }
    })
}
