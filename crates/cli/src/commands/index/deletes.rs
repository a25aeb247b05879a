//! `dunlin index delete`.

use std::process::ExitCode;

use anyhow::{Context, Result};
use dunlin_index::{Gap, Range};
use dunlin_serve::Interrupt;
use serde_json::json;

use super::client::{Client, Found, Purpose, Server, ask};
use crate::output;

/// Delete items, or all items of a range
///
/// Exit code 0 if all existed, 1 if some did not, 2 if not all of them were deleted, 4 if that is not known. Keys are
/// deleted one after the other: an error says how many items were deleted before it. A range may be empty. It is deleted
/// part by part, the smallest keys first: after an error some items may be deleted, so run the command again to delete
/// the rest. What is stored meanwhile may stay.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin index delete bird/dunlin --at shm:index
  dunlin index delete bird/dunlin bird/knot --at udp://127.0.0.1:7730
  dunlin index delete --prefix bird/ --at shm:index              all whose keys begin with it
  dunlin index delete --from a --to c --at shm:index             from a to below c")]
pub struct Arguments {
    #[command(flatten)]
    server: Server,
    /// The keys
    #[arg(required_unless_present_any = ["prefix", "from", "to"], conflicts_with_all = ["prefix", "from", "to"])]
    keys: Vec<String>,
    /// Delete all keys that begin with this
    #[arg(long, value_name = "PREFIX", conflicts_with_all = ["from", "to"])]
    prefix: Option<String>,
    /// Delete a range that begins with this key
    #[arg(long, value_name = "KEY")]
    from: Option<String>,
    /// The end of the range: the first key that is not in it
    #[arg(long, value_name = "KEY")]
    to: Option<String>,
    /// Print JSON: for each key a line that says whether it had a value; for a range how many items were deleted
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// The range, if there are no keys.
    fn range(&self) -> Option<Range<'_>> {
        if let Some(prefix) = &self.prefix {
            return Some(Range::prefix(prefix.as_bytes()));
        }
        let (from, to) = (self.from.as_ref(), self.to.as_ref());
        let low = from.map_or(Range::ALL.low, |from| Gap::Before(from.as_bytes()));
        let high = to.map_or(Range::ALL.high, |to| Gap::Before(to.as_bytes()));
        (from.is_some() || to.is_some()).then_some(Range { low, high })
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.server, interrupt, Purpose::Writes, async |client| {
        if let Some(range) = arguments.range() {
            let deleted = client.delete_range(range).await?;
            if arguments.json {
                output::line(json!({ "deleted": deleted }))?;
            } else {
                output::line(format!("{deleted} items deleted"))?;
            }
            return Ok(Found::All);
        }
        delete_keys(client, arguments).await
    })
}

async fn delete_keys(client: &Client, arguments: &Arguments) -> Result<Found> {
    let mut deleted = 0;
    for key in &arguments.keys {
        let existed = match client.delete(key.as_bytes()).await {
            Ok(existed) => existed,
            Err(error) if deleted == 0 => return Err(error.into()),
            Err(error) => return Err(error).context(format!("{deleted} items deleted before an error")),
        };
        if arguments.json {
            output::line(json!({ "key": key, "existed": existed }))?;
        } else if !existed {
            eprintln!("dunlin: there is no item {key:?}");
        }
        deleted += usize::from(existed);
    }
    Ok(if deleted == arguments.keys.len() { Found::All } else { Found::NotAll })
}
