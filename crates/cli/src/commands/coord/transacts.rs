//! `dunlin coord txn`.

use std::process::ExitCode;

use anyhow::{Context, Result};
use dunlin_coord::{Compare, Condition, Coordinator, Revision, Token, Transaction};
use dunlin_serve::Interrupt;

use super::asks::{Outcome, Target, ask};
use crate::output;

/// Change several values of the tree if everything holds, or none
///
/// Exit code 0 if it was done, 1 if a value is missing, 3 if something does not hold, 2 if nothing was done, 4 if that is not known.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
It prints the revision, which is the version of each value that was set. Without --set and --delete it only compares.

Examples, with P=1=udp://127.0.0.1:7901,2=udp://127.0.0.1:7902,3=udp://127.0.0.1:7903:
  dunlin coord txn --peers $P --if-version /volumes/7=4711 --set /volumes/7=1,2,4 --delete /repairs/7
  dunlin coord txn --peers $P --if-lease /locks/a=815 --set /locks/a/leader=udp://10.0.0.7:4000
  dunlin coord txn --peers $P --if-epoch 12 --if-absent /volumes/9 --set /volumes/9=1,2,3")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Only in this epoch
    #[arg(long, value_name = "EPOCH")]
    if_epoch: Option<u64>,
    /// Only if this lease is held with this token
    #[arg(long, value_name = "NAME=TOKEN", value_parser = numbered)]
    if_lease: Vec<(String, Token)>,
    /// Only if this path has no value
    #[arg(long, value_name = "PATH")]
    if_absent: Vec<String>,
    /// Only if the value at this path has this version
    #[arg(long, value_name = "PATH=VERSION", value_parser = numbered)]
    if_version: Vec<(String, Revision)>,
    /// Set a value
    #[arg(long, value_name = "PATH=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
    /// Delete a value
    #[arg(long, value_name = "PATH")]
    delete: Vec<String>,
}

/// A path or name, and what follows its first `=`.
fn pair(text: &str) -> Result<(String, String)> {
    let (path, value) = text.split_once('=').with_context(|| format!("{text} has no =: write /path=value"))?;
    Ok((path.to_owned(), value.to_owned()))
}

fn numbered(text: &str) -> Result<(String, u64)> {
    let (path, number) = text.rsplit_once('=').with_context(|| format!("{text} has no =: write /path=number"))?;
    Ok((path.to_owned(), number.parse().with_context(|| format!("{number} is no number"))?))
}

impl Arguments {
    fn transaction(&self) -> Transaction {
        let mut transaction = Transaction::new();
        transaction.compares.extend(self.if_epoch.map(|epoch| Compare::Epoch { epoch }));
        let leases = self.if_lease.iter().map(|(name, token)| Compare::Lease { name: name.clone(), token: *token });
        transaction.compares.extend(leases);
        for path in &self.if_absent {
            transaction = transaction.if_entry(path, Condition::Absent);
        }
        for (path, version) in &self.if_version {
            transaction = transaction.if_entry(path, Condition::Version { version: *version });
        }
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
    use super::*;

    #[test]
    fn pairs_are_cut_where_they_must_be() {
        assert_eq!(pair("/a=b=c").unwrap(), ("/a".into(), "b=c".into()));
        assert_eq!(pair("/a=").unwrap(), ("/a".into(), String::new()));
        assert_eq!(numbered("/a=b=7").unwrap(), ("/a=b".into(), 7));
        assert!(pair("/a").is_err() && numbered("/a").is_err() && numbered("/a=b").is_err());
    }
}
