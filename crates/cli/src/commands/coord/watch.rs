//! `dunlin coord watch`.

use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Result, bail};
use dunlin_coord::{CoordError, Coordinator, Event, Happening, Revision, Scope, Watch, check_path};
use dunlin_serve::Interrupt;
use serde_json::{Value, json};

use super::asks::{Outcome, Target, attend, pause, unless_interrupted};
use super::manager::Manager;
use crate::commands::raft::cluster::Interrupted;
use crate::output;

/// Pause before a cluster manager that did not answer is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Show events as they happen, until ctrl-C
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each line begins with the revision. If the cluster manager cannot be reached meanwhile, it is asked again, and nothing is left out.

Examples, after export DUNLIN_AT=1=udp://127.0.0.1:7901,2=udp://127.0.0.1:7902,3=udp://127.0.0.1:7903:
  dunlin coord watch
  dunlin coord watch --scope members --count 1
  dunlin coord watch --at http://127.0.0.1:2379 --scope tree:/volumes --after 4711 --json")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// What to watch: all, members, leases, or tree:/PATH for that path and everything below it
    #[arg(long, default_value = "all")]
    scope: ScopeArgument,
    /// Begin after this revision instead of with what happens from now on
    #[arg(long, value_name = "NUMBER")]
    after: Option<Revision>,
    /// End after so many events
    #[arg(long, value_name = "NUMBER")]
    count: Option<u64>,
    /// Print JSON: each event as one line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone)]
struct ScopeArgument(Scope);

impl FromStr for ScopeArgument {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<ScopeArgument> {
        let scope = match (text, text.strip_prefix("tree:")) {
            ("all", _) => Scope::All,
            ("members", _) => Scope::Members,
            ("leases", _) => Scope::Leases,
            (_, Some(root)) => {
                if root != "/" {
                    check_path(root)?;
                }
                Scope::Tree { root: root.to_owned() }
            }
            _ => bail!("{text:?} is nothing to watch: write all, members, leases or tree:/PATH"),
        };
        Ok(ScopeArgument(scope))
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    attend(&arguments.target, async |manager| {
        // If there is no answer at the start, it fails; later it retries.
        let now = unless_interrupted(manager, interrupt, manager.members()).await.ok_or(Interrupted)??.revision;
        let after = arguments.after.unwrap_or(now);
        let watched = unless_interrupted(manager, interrupt, watch(arguments, manager, after)).await;
        watched.unwrap_or(Ok(()))?;
        Ok(Outcome::Done)
    })
}

async fn watch(arguments: &Arguments, manager: &Manager, after: Revision) -> Result<()> {
    let mut watch = Watch::new(manager, arguments.scope.0.clone(), after);
    let mut left = arguments.count.unwrap_or(u64::MAX);
    while left > 0 {
        match watch.next().await {
            Ok(event) if arguments.json => output::line(as_json(&event))?,
            Ok(event) => output::line(&event)?,
            Err(error @ (CoordError::TimedOut { .. } | CoordError::Backend { .. })) => {
                eprintln!("dunlin: {error}; asking again");
                pause(manager, ASK_AGAIN).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        left -= 1;
    }
    Ok(())
}

/// An event for programs.
pub fn as_json(Event { revision, happening }: &Event) -> Value {
    let mut event = match happening {
        Happening::Joined { member, epoch } => json!({ "event": "joined", "member": member, "epoch": epoch }),
        Happening::Failed { member, epoch } => json!({ "event": "failed", "member": member, "epoch": epoch }),
        Happening::Left { member, epoch } => json!({ "event": "left", "member": member, "epoch": epoch }),
        Happening::Forgotten { member } => json!({ "event": "forgotten", "member": member }),
        Happening::Granted { name, member } => json!({ "event": "granted", "lease": name, "member": member }),
        Happening::Ended { name, token } => json!({ "event": "ended", "lease": name, "token": token }),
        Happening::Set { path, value } => {
            json!({ "event": "set", "path": path, "value": String::from_utf8_lossy(value) })
        }
        Happening::Deleted { path } => json!({ "event": "deleted", "path": path }),
        other => json!({ "event": format!("{other:?}") }),
    };
    event["revision"] = json!(revision);
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_read() {
        let scope = |text: &str| text.parse::<ScopeArgument>().map(|scope| scope.0).map_err(|error| error.to_string());
        assert_eq!(scope("members"), Ok(Scope::Members));
        assert_eq!(scope("tree:/"), Ok(Scope::Tree { root: "/".into() }));
        assert_eq!(scope("tree:/a/b"), Ok(Scope::Tree { root: "/a/b".into() }));
        assert!(scope("tree:a").unwrap_err().contains("slash"));
        assert!(scope("forest").unwrap_err().contains("write all, members"));
    }
}
