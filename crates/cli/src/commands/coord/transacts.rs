//! `dunlin coord txn`.

use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use dunlin_coord::{Compare, Coordinator, Transaction};
use dunlin_serve::Interrupt;

use super::asks::{Outcome, Target, ask};
use super::sets::condition;
use crate::output;

/// Change several values of the tree if all conditions hold, or none
///
/// Exit code 0 if it was done, 1 if a value is missing, 3 if a condition does not hold, 2 if nothing was done, 4 if the
/// outcome is unknown.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
It prints the revision, which is the version of each value that was set. Without --set and --delete it only compares.

Examples, after export DUNLIN_AT=1=udp://127.0.0.1:7901,2=udp://127.0.0.1:7902,3=udp://127.0.0.1:7903:
  dunlin coord txn --if /volumes/7:version=4711 --set /volumes/7=1,2,4 --delete /repairs/7
  dunlin coord txn --if /locks/a:token=815 --set /locks/a/leader=udp://10.0.0.7:4000
  dunlin coord txn --if epoch=12 --if /volumes/9:absent --set /volumes/9=1,2,3")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// What must be so: epoch=NUMBER, PATH:absent, PATH:version=NUMBER, or LEASE:token=NUMBER for a lease that is held
    #[arg(long = "if", value_name = "CONDITION", value_parser = compare)]
    conditions: Vec<Compare>,
    /// Set a value
    #[arg(long, value_name = "PATH=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
    /// Delete a value
    #[arg(long, value_name = "PATH")]
    delete: Vec<String>,
}

/// A path or name, and the text after its first `=`.
fn pair(text: &str) -> Result<(String, String)> {
    let (path, value) = text.split_once('=').with_context(|| format!("{text} has no =: write /path=value"))?;
    Ok((path.to_owned(), value.to_owned()))
}

fn compare(text: &str) -> Result<Compare> {
    let number = |text: &str| text.parse().with_context(|| format!("{text} is no number"));
    if let Some(epoch) = text.strip_prefix("epoch=") {
        return Ok(Compare::Epoch { epoch: number(epoch)? });
    }
    let (subject, what) = text.rsplit_once(':').with_context(|| format!("{text} has no colon: write /path:absent"))?;
    if let Some(token) = what.strip_prefix("token=") {
        return Ok(Compare::Lease { name: subject.to_owned(), token: number(token)? });
    }
    let condition = condition(what).map_err(|why| anyhow!("{text}: {why}"))?;
    Ok(Compare::Entry { path: subject.to_owned(), condition })
}

impl Arguments {
    fn transaction(&self) -> Transaction {
        let mut transaction = Transaction::new();
        transaction.compares.extend(self.conditions.iter().cloned());
        for (path, value) in &self.set {
            transaction = transaction.set(path, value.as_bytes());
        }
        self.delete.iter().fold(transaction, |transaction, path| transaction.delete(path))
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.target, interrupt, async |manager| {
        let revision = manager.transact(&arguments.transaction()).await?;
        output::line(format_args!("revision {revision}"))?;
        Ok(Outcome::Done)
    })
}

#[cfg(test)]
mod tests {
    use dunlin_coord::Condition;

    use super::*;

    #[test]
    fn pairs_are_cut_where_they_must_be() {
        assert_eq!(pair("/a=b=c").unwrap(), ("/a".into(), "b=c".into()));
        assert_eq!(pair("/a=").unwrap(), ("/a".into(), String::new()));
        assert!(pair("/a").is_err());
    }

    #[test]
    fn conditions_are_read() {
        assert_eq!(compare("epoch=7").unwrap(), Compare::Epoch { epoch: 7 });
        assert_eq!(compare("/a:b:token=7").unwrap(), Compare::Lease { name: "/a:b".into(), token: 7 });
        let absent = Compare::Entry { path: "/a".into(), condition: Condition::Absent };
        assert_eq!(compare("/a:absent").unwrap(), absent);
        let version = Compare::Entry { path: "/a".into(), condition: Condition::Version { version: 7 } };
        assert_eq!(compare("/a:version=7").unwrap(), version);
        for text in ["/a", "/a:present", "/a:version=b", "epoch=b", "/a:token="] {
            assert!(compare(text).is_err(), "{text}");
        }
    }
}
