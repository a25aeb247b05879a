//! `dunlin raft status`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::{Result, bail};
use dunlin_bench::peer::Interrupt;
use dunlin_net::Addr;
use dunlin_smr::ClientError;
use dunlin_smr::wire::response::{Role, Status};
use serde_json::{Value, json};

use super::cluster::{Client, Cluster, Outcome, all, ask};
use crate::output;

/// Show how the replicas are
///
/// Exit code 0 if one of them leads, 2 if none does.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
All replicas are asked that are named, and those that they name. `lag` counts entries of the log: how far a replica is behind what the leader has
committed. `pause` is the longest time that a replica did nothing else for a snapshot of its state.

Examples, with R=1=udp://127.0.0.1:7801,2=udp://127.0.0.1:7802,3=udp://127.0.0.1:7803:
  dunlin raft status $R
  dunlin raft status 1=udp://127.0.0.1:7801 --json | jq '.replicas[] | select(.role == \"leader\") | .id'")]
pub struct Arguments {
    #[command(flatten)]
    cluster: Cluster,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What is known of the replicas.
pub struct Overview {
    /// Where each is reached, and how it is, if it says so.
    pub replicas: BTreeMap<u64, (String, Option<Status>)>,
}

impl Overview {
    /// Asks all replicas that the client knows, and those that they know.
    pub async fn look(client: &Client) -> Overview {
        let mut overview = Overview { replicas: BTreeMap::new() };
        loop {
            let known = client.members();
            let fresh: Vec<(u64, Addr)> = known.into_iter().filter(|(id, _)| !overview.replicas.contains_key(id)).collect();
            if fresh.is_empty() {
                return overview;
            }
            let answers = all(fresh.iter().map(|(id, _)| client.status(*id))).await;
            for ((id, addr), answer) in fresh.into_iter().zip(answers) {
                if let Err(error @ ClientError::OtherCluster { .. }) = &answer {
                    eprintln!("dunlin: replica {id}: {error}");
                }
                for (id, addr) in answer.iter().flat_map(|status| &status.addresses) {
                    if let Ok(addr) = addr.parse()
                        && !client.members().iter().any(|(known, _)| known == id)
                    {
                        client.learn(*id, addr);
                    }
                }
                overview.replicas.insert(id, (addr.to_string(), answer.ok()));
            }
        }
    }

    /// The one that leads: if several say so, that of the latest term.
    pub fn leader(&self) -> Option<&Status> {
        let leaders = self.replicas.values().filter_map(|(_, status)| status.as_ref());
        leaders.filter(|status| status.role == Role::Leader).max_by_key(|status| status.term)
    }

    /// Whether this one says how it is.
    pub fn has_answered(&self, id: u64) -> bool {
        self.replicas.get(&id).is_some_and(|(_, status)| status.is_some())
    }

    /// Members as the leader knows them, or whoever has the longest log.
    fn members(&self) -> BTreeSet<u64> {
        let longest = self.replicas.values().filter_map(|(_, status)| status.as_ref()).max_by_key(|status| status.applied);
        let status = self.leader().or(longest);
        status.map(|status| status.voters.iter().chain(&status.learners).copied().collect()).unwrap_or_default()
    }

    /// How many entries one is behind what is committed.
    fn lag(&self, status: &Status) -> Option<u64> {
        self.leader().map(|leader| leader.committed.saturating_sub(status.applied))
    }

    fn vote(&self, id: u64) -> &'static str {
        let leader = self.leader();
        match leader {
            Some(leader) if leader.voters.contains(&id) => "yes",
            Some(leader) if leader.learners.contains(&id) => "learner",
            Some(_) => "no member",
            None => "?",
        }
    }
}

/// What a role is called.
fn role_name(role: Role) -> &'static str {
    match role {
        Role::Follower => "follower",
        Role::Candidate => "candidate",
        Role::Leader => "leader",
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.cluster, interrupt, async |client| {
        let overview = Overview::look(client).await;
        if arguments.json {
            output::line(as_json(&overview))?;
        } else {
            output::line(as_table(&overview).trim_end())?;
        }
        if overview.leader().is_none() {
            bail!("none of them leads");
        }
        Ok(Outcome::Done)
    })
}

fn as_json(overview: &Overview) -> Value {
    let replica = |(id, (address, status)): (&u64, &(String, Option<Status>))| match status {
        None => json!({ "id": id, "address": address, "role": "unreachable" }),
        Some(status) => json!({
            "id": id,
            "address": address,
            "role": role_name(status.role),
            "disk_hangs": status.disk_hangs,
            "vote": overview.vote(*id),
            "term": status.term,
            "leader": status.leader,
            "first": status.first,
            "last": status.last,
            "committed": status.committed,
            "applied": status.applied,
            "lag": overview.lag(status),
            "sessions": status.sessions,
            "snapshot_pause_max_ns": status.snapshot_pause_max,
        }),
    };
    let replicas: Vec<Value> = overview.replicas.iter().map(replica).collect();
    json!({
        "leader": overview.leader().map(|leader| leader.id),
        "members": overview.members(),
        "replicas": replicas,
    })
}

fn as_table(overview: &Overview) -> String {
    const HEADING: [&str; 10] =
        ["id", "role", "vote", "term", "committed", "applied", "lag", "sessions", "pause", "address"];
    let mut lines = vec![HEADING.map(str::to_owned)];
    for (id, (address, status)) in &overview.replicas {
        let vote = overview.vote(*id).to_owned();
        let Some(status) = status else {
            let none = String::new;
            let role = "unreachable".to_owned();
            lines.push([id.to_string(), role, vote, none(), none(), none(), none(), none(), none(), address.clone()]);
            continue;
        };
        lines.push([
            id.to_string(),
            role_name(status.role).to_owned() + if status.disk_hangs { ", disk hangs" } else { "" },
            vote,
            status.term.to_string(),
            status.committed.to_string(),
            status.applied.to_string(),
            overview.lag(status).map_or("?".into(), |lag| lag.to_string()),
            status.sessions.to_string(),
            format!("{:.1} ms", status.snapshot_pause_max as f64 / 1e6),
            address.clone(),
        ]);
    }
    let widths: [usize; 10] = std::array::from_fn(|at| lines.iter().map(|line| line[at].len()).max().unwrap_or(0));
    let line = |cells: &[String; 10]| {
        let cells = cells.iter().zip(widths).enumerate();
        let padded = cells.map(|(at, (cell, width))| match at {
            // Words on the left, figures on the right, and nothing behind the last.
            1 | 2 => format!("{cell:<width$}"),
            9 => cell.clone(),
            _ => format!("{cell:>width$}"),
        });
        padded.collect::<Vec<String>>().join("  ") + "\n"
    };
    lines.iter().map(line).collect()
}
