//! `dunlin coord status`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_coord::{CoordError, Coordinator, Entry, Health, HeldLease, Member, Members, View};
use dunlin_serve::Interrupt;
use serde_json::{Value, json};

use super::asks::{Outcome, Target, ask};
use super::manager::Manager;
use crate::output;

/// Maximum length of a value in the table.
const VALUE_CHARS_MAX: usize = 60;

/// Show the members, the epoch, the leases and the tree
#[derive(Debug, clap::Args)]
#[command(after_help = "\
All of it is of one moment, unless it has more than 4 MiB: then it is read in pages, of moments shortly after each other. Values and what members say about themselves are shown as text.

Examples, after export DUNLIN_AT=1=udp://127.0.0.1:7901,2=udp://127.0.0.1:7902,3=udp://127.0.0.1:7903:
  dunlin coord status
  dunlin coord status --json | jq .epoch
  dunlin coord status --at http://127.0.0.1:2379")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The whole state.
struct Overview {
    members: Members,
    leases: Vec<HeldLease>,
    entries: Vec<Entry>,
}

impl Overview {
    /// Reads the state as of one moment, unless it is too large.
    async fn look(manager: &Manager) -> Result<Overview, CoordError> {
        match manager.view("/").await {
            Ok(View { members, leases, entries }) => Ok(Overview { members, leases, entries }),
            Err(CoordError::TooLarge { .. }) => Overview::look_in_pages(manager).await,
            Err(error) => Err(error),
        }
    }

    async fn look_in_pages(manager: &Manager) -> Result<Overview, CoordError> {
        let members = manager.members().await?;
        let (mut leases, mut after) = (Vec::new(), None);
        loop {
            let page = manager.leases(after.as_deref()).await?;
            leases.extend(page.leases);
            after = page.more_after;
            if after.is_none() {
                break;
            }
        }
        let mut entries = Vec::new();
        loop {
            let page = manager.list("/", after.as_deref()).await?;
            entries.extend(page.entries);
            after = page.more_after;
            if after.is_none() {
                return Ok(Overview { members, leases, entries });
            }
        }
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.target, interrupt, async |manager| {
        let overview = Overview::look(manager).await?;
        if arguments.json {
            output::line(as_json(&overview))?;
        } else {
            output::line(as_text(&overview).trim_end())?;
        }
        Ok(Outcome::Done)
    })
}

fn health_name(health: Health) -> &'static str {
    match health {
        Health::Live => "live",
        Health::Failed => "failed",
    }
}

fn as_json(Overview { members, leases, entries }: &Overview) -> Value {
    let member = |member: &Member| {
        json!({
            "id": member.id,
            "health": health_name(member.health),
            "incarnation": member.incarnation,
            "epoch": member.epoch,
            "about": String::from_utf8_lossy(&member.about),
        })
    };
    let lease = |lease: &HeldLease| {
        json!({
            "name": lease.name,
            "member": lease.holder.member,
            "incarnation": lease.holder.incarnation,
            "token": lease.holder.token,
            "ttl_ms": lease.ttl_ms,
        })
    };
    let entry = |entry: &Entry| json!({ "path": entry.path, "version": entry.version, "value": String::from_utf8_lossy(&entry.value) });
    json!({
        "epoch": members.epoch,
        "revision": members.revision,
        "members": members.members.iter().map(member).collect::<Vec<_>>(),
        "leases": leases.iter().map(lease).collect::<Vec<_>>(),
        "tree": entries.iter().map(entry).collect::<Vec<_>>(),
    })
}

/// Bytes as one line of text, truncated.
fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut chars = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut line: String = chars.by_ref().take(VALUE_CHARS_MAX).collect();
    if chars.next().is_some() {
        line.push_str("...");
    }
    line
}

fn as_text(Overview { members, leases, entries }: &Overview) -> String {
    let mut text = format!("epoch {}, revision {}\n", members.epoch, members.revision);
    let mut section = |heading: &str, lines: Vec<String>| {
        let none = if lines.is_empty() { " none" } else { "" };
        text.push_str(&format!("{heading}:{none}\n"));
        lines.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    };
    let member = |member: &Member| {
        let (id, health, about) = (member.id, health_name(member.health), shown(&member.about));
        format!("{id}  {health} since epoch {}  incarnation {}  {about}", member.epoch, member.incarnation)
            .trim_end()
            .to_owned()
    };
    section("members", members.members.iter().map(member).collect());
    let lease = |lease: &HeldLease| {
        let HeldLease { name, holder, ttl_ms } = lease;
        format!("{name}  member {}  token {}  {ttl_ms} ms", holder.member, holder.token)
    };
    section("leases", leases.iter().map(lease).collect());
    let entry = |entry: &Entry| format!("{}  version {}  {}", entry.path, entry.version, shown(&entry.value));
    section("tree", entries.iter().map(|found| entry(found).trim_end().to_owned()).collect());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_in_one_short_line() {
        assert_eq!(shown(b"a\nb\xff"), "a b\u{fffd}");
        assert_eq!(shown(&[b'x'; 61]).len(), VALUE_CHARS_MAX + 3);
        let nothing = Members { epoch: 3, revision: 8, members: vec![] };
        let text = as_text(&Overview { members: nothing, leases: vec![], entries: vec![] });
        assert_eq!(text, "epoch 3, revision 8\nmembers: none\nleases: none\ntree: none\n");
    }
}
