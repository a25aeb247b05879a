//! `dunlin txn shell`.

use std::io::{BufRead as _, IsTerminal as _, Write as _, stdin, stdout};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use dunlin_serve::{Interrupt, side};
use dunlin_txn::{Outcome as Fate, Range, TxnError};
use tokio::sync::mpsc;

use super::client::{Outcome, Remote, Target, Tx, ask, run as transact};
use crate::output;

/// Items of a scan.
const SCAN_MAX: usize = 1000;
/// What can be said.
const HELP: &str = "\
begin                       begins a transaction
get TABLE KEY               reads a key; the commit fails if somebody changes it meanwhile
lock TABLE KEY              reads a key and locks it
put TABLE KEY VALUE         writes a key at the commit
insert TABLE KEY VALUE      the same, if it does not exist
delete TABLE KEY            deletes a key at the commit
scan TABLE [PREFIX]         reads a range of an ordered table
commit                      commits; says why if it cannot
abort                       ends the transaction without writing
help, exit
Without begin, each line is a transaction of its own. Words are separated by spaces; a value goes to the end of its line.";

/// Run transactions by hand
///
/// It reads commands from standard input, one a line: `help` lists them. In two terminals they show how transactions
/// conflict. A transaction that holds locks for more than five to ten seconds is ended by the nodes.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples, in two terminals:
  $ dunlin txn shell --at udp://127.0.0.1:7911       $ dunlin txn shell --at udp://127.0.0.1:7921
  begin
  get accounts alice
                                                     put accounts alice 50
  put accounts alice 90
  commit                                             the first is told that alice was changed since it was read

  printf 'begin\\nput accounts a 1\\nput accounts b 2\\ncommit\\n' | dunlin txn shell --at udp://127.0.0.1:7911")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    let is_terminal = stdin().is_terminal();
    ask(&arguments.target, interrupt, async |_, remote| {
        let mut lines = read_lines()?;
        let mut shell = Shell { remote, open: None, has_failed: false };
        prompt(is_terminal, false)?;
        while let Some(line) = lines.recv().await {
            let line = line.context("cannot read standard input")?;
            if !shell.obey(line.trim()).await? {
                break;
            }
            prompt(is_terminal, shell.open.is_some())?;
        }
        if let Some(mut open) = shell.open.take() {
            open.abort().await;
            output::line("aborted: it was not committed")?;
            shell.has_failed = true;
        }
        match shell.has_failed && !is_terminal {
            true => Err(anyhow::anyhow!("not everything was done")),
            false => Ok(Outcome::Done),
        }
    })
}

fn prompt(is_terminal: bool, is_open: bool) -> Result<()> {
    if is_terminal {
        let mut out = stdout().lock();
        let text: &[u8] = if is_open { b"txn* " } else { b"txn " };
        out.write_all(text).and_then(|()| out.flush()).map_err(output::OutputError)?;
    }
    Ok(())
}

/// Lines of standard input, which a thread reads: the endpoint is turned meanwhile.
fn read_lines() -> Result<mpsc::Receiver<std::io::Result<String>>> {
    let (line, lines) = mpsc::channel(16);
    let read = move || {
        for read in stdin().lock().lines() {
            if line.blocking_send(read).is_err() {
                return;
            }
        }
    };
    side::start("lines", read)?;
    Ok(lines)
}

struct Shell<'a> {
    remote: &'a Remote,
    open: Option<Tx>,
    has_failed: bool,
}

/// A line that reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step<'a> {
    Get(&'a str, &'a str),
    Lock(&'a str, &'a str),
    Put(&'a str, &'a str, &'a str),
    Insert(&'a str, &'a str, &'a str),
    Delete(&'a str, &'a str),
    Scan(&'a str, &'a str),
}

impl<'a> Step<'a> {
    fn parse(line: &'a str) -> Option<Step<'a>> {
        let mut words = line.splitn(4, ' ').map(str::trim);
        let (name, table) = (words.next()?, words.next()?);
        let (key, value) = (words.next(), words.next());
        match (name, key, value) {
            ("get", Some(key), None) => Some(Step::Get(table, key)),
            ("lock", Some(key), None) => Some(Step::Lock(table, key)),
            ("put", Some(key), Some(value)) => Some(Step::Put(table, key, value)),
            ("insert", Some(key), Some(value)) => Some(Step::Insert(table, key, value)),
            ("delete", Some(key), None) => Some(Step::Delete(table, key)),
            ("scan", prefix, None) => Some(Step::Scan(table, prefix.unwrap_or_default())),
            _ => None,
        }
    }

    /// Does it, and returns what is to be printed.
    async fn run(self, remote: &Remote, tx: &mut Tx) -> Result<Vec<String>, TxnError> {
        let table = |name: &str| remote.client().table(name);
        let shown = |value: Option<&[u8]>| value.map_or("(none)".to_owned(), |value| value.escape_ascii().to_string());
        match self {
            Step::Get(of, key) => Ok(vec![shown(tx.get(table(of)?, key.as_bytes()).await?.as_deref())]),
            Step::Lock(of, key) => Ok(vec![shown(tx.get_for_update(table(of)?, key.as_bytes()).await?.as_deref())]),
            Step::Put(of, key, value) => {
                tx.put(table(of)?, key.as_bytes(), value.as_bytes().to_vec()).map(|()| Vec::new())
            }
            Step::Insert(of, key, value) => {
                tx.insert(table(of)?, key.as_bytes(), value.as_bytes().to_vec()).map(|()| Vec::new())
            }
            Step::Delete(of, key) => tx.delete(table(of)?, key.as_bytes()).map(|()| Vec::new()),
            Step::Scan(of, prefix) => {
                let found = tx.scan(table(of)?, Range::prefix(prefix.as_bytes()), SCAN_MAX).await?;
                Ok(found
                    .iter()
                    .map(|(key, value)| format!("{}  {}", key.escape_ascii(), value.escape_ascii()))
                    .collect())
            }
        }
    }
}

impl Shell<'_> {
    /// Obeys a line. Returns false if it is the last.
    async fn obey(&mut self, line: &str) -> Result<bool> {
        match (line, self.open.is_some()) {
            ("", _) => {}
            ("exit" | "quit", _) => return Ok(false),
            ("help", _) => output::line(HELP)?,
            ("begin", false) => self.open = Some(self.remote.client().begin()),
            ("begin", true) => self.fail("a transaction is open: commit or abort it first")?,
            ("commit" | "abort", false) => self.fail("no transaction is open: begin one")?,
            ("commit", true) => self.commit().await?,
            ("abort", true) => {
                if let Some(mut open) = self.open.take() {
                    open.abort().await;
                }
                output::line("aborted")?;
            }
            (line, _) => match Step::parse(line) {
                Some(step) => self.step(step).await?,
                None => self.fail(&format!("{line:?} is no command: try help"))?,
            },
        }
        Ok(true)
    }

    fn fail(&mut self, why: &str) -> Result<()> {
        self.has_failed = true;
        Ok(output::line(why)?)
    }

    async fn step(&mut self, step: Step<'_>) -> Result<()> {
        let remote = self.remote;
        let done = match &mut self.open {
            Some(open) => step.run(remote, open).await.map_err(Into::into),
            None => transact(remote, async |tx| step.run(remote, tx).await).await,
        };
        match done {
            Ok(lines) => lines.into_iter().try_for_each(output::line)?,
            Err(error) => {
                let has_ended = self.open.as_ref().is_some_and(|open| !open.is_open());
                if has_ended {
                    self.open = None;
                    // The next one may need a later configuration.
                    remote.refresh().await;
                }
                let ended = if has_ended { " (the transaction has ended; nothing was written)" } else { "" };
                self.fail(&format!("{error:#}{ended}"))?;
            }
        }
        Ok(())
    }

    async fn commit(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        match open.commit().await {
            Ok(()) => output::line("committed")?,
            Err(TxnError::InDoubt { transaction }) => {
                output::line(format_args!("transaction {transaction} is in doubt; asking what became of it"))?;
                match self.remote.settle(transaction).await {
                    Ok(Fate::Committed) => output::line("committed")?,
                    Ok(Fate::Aborted) => self.fail("not committed")?,
                    Ok(other) => self.fail(&format!("nobody knows: {other:?}"))?,
                    Err(error) => self.fail(&format!("nobody knows: {error}"))?,
                }
            }
            Err(error) => {
                self.remote.refresh().await;
                self.fail(&format!("not committed: {error}"))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood() {
        assert_eq!(Step::parse("put t k a long value"), Some(Step::Put("t", "k", "a long value")));
        assert_eq!(Step::parse("scan t"), Some(Step::Scan("t", "")));
        assert_eq!(Step::parse("get t k"), Some(Step::Get("t", "k")));
        for wrong in ["get t", "get t k v", "put t k", "dance t k", "get"] {
            assert_eq!(Step::parse(wrong), None, "{wrong}");
        }
    }
}
