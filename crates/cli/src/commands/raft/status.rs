//! `dunlin raft status`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::{Result, anyhow, ensure};
use dunlin_net::Addr;
use dunlin_serve::Interrupt;
use dunlin_smr::wire::response::{Foreign, Role, Status};
use dunlin_smr::{ClientError, ClusterId};
use futures::future::join_all;
use serde_json::{Value, json};

use super::cluster::{Client, Cluster, Outcome, ask};
use crate::output;

/// Show the state of the replicas
///
/// Exit code 0 if one of them leads, 2 if none does, or if they belong to several clusters.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
All replicas are asked that are named, and those that they name. `lag` counts entries of the log: how far a replica is behind what the leader has
committed. `pause` is the longest time that a replica did nothing else for a snapshot of its state. A replica that is `waiting` has no number of a cluster yet: it waits
for another first member, or to be added. One that is `foreign` is of another cluster: its address stands in the wrong list.

Examples, after export DUNLIN_AT=1=udp://127.0.0.1:7801,2=udp://127.0.0.1:7802,3=udp://127.0.0.1:7803:
  dunlin raft status
  dunlin raft status --at 1=udp://127.0.0.1:7801 --json | jq '.replicas[] | select(.role == \"leader\") | .id'")]
pub struct Arguments {
    #[command(flatten)]
    cluster: Cluster,
    /// The group to show, if there are several
    #[arg(long, value_name = "NUMBER", default_value = "0")]
    group: u16,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The answer of a replica.
pub enum Seen {
    /// Its status.
    Status(Box<Status>),
    /// It belongs to this cluster, which is not the one to show.
    Foreign(ClusterId),
    /// No answer.
    Silent,
}

/// The known state of the replicas.
pub struct Overview {
    /// The cluster to show: the one that the user named, or that of most replicas.
    pub cluster: Option<ClusterId>,
    /// The address of each, and its answer.
    pub replicas: BTreeMap<u64, (String, Seen)>,
}

impl Overview {
    /// Asks all replicas that the client knows, and those that they know.
    pub async fn look(client: &Client) -> Overview {
        let mut overview = Overview { cluster: client.cluster(), replicas: BTreeMap::new() };
        loop {
            let known = client.members();
            let fresh: Vec<(u64, Addr)> =
                known.into_iter().filter(|(id, _)| !overview.replicas.contains_key(id)).collect();
            if fresh.is_empty() {
                return overview;
            }
            let answers = join_all(fresh.iter().map(|(id, _)| client.status(*id))).await;
            for ((id, addr), answer) in fresh.into_iter().zip(answers) {
                let seen = match answer {
                    Ok(status) => Seen::Status(Box::new(status)),
                    Err(ClientError::OtherCluster { found }) => Seen::Foreign(found),
                    Err(_) => Seen::Silent,
                };
                overview.replicas.insert(id, (addr.to_string(), seen));
            }
            overview.choose_cluster();
            for (id, addr) in overview.statuses().flat_map(|status| &status.addresses) {
                if let Ok(addr) = addr.parse()
                    && !client.members().iter().any(|(known, _)| known == id)
                {
                    client.learn(*id, addr);
                }
            }
        }
    }

    /// Sets apart replicas that are not in the majority's cluster; in a tie, the cluster of the lowest id is chosen.
    fn choose_cluster(&mut self) {
        let count = |cluster| self.statuses().filter(|status| status.cluster == Some(cluster)).count();
        let numbers = self.statuses().filter_map(|status| status.cluster);
        self.cluster =
            self.cluster.or(numbers.reduce(|best, next| if count(next) > count(best) { next } else { best }));
        for (_, seen) in self.replicas.values_mut() {
            if let Seen::Status(status) = seen
                && let Some(theirs) = status.cluster
                && self.cluster != Some(theirs)
            {
                *seen = Seen::Foreign(theirs);
            }
        }
    }

    /// The statuses received.
    fn statuses(&self) -> impl Iterator<Item = &Status> {
        self.replicas.values().filter_map(|(_, seen)| match seen {
            Seen::Status(status) => Some(&**status),
            Seen::Foreign(_) | Seen::Silent => None,
        })
    }

    /// The leader.
    ///
    /// # Errors
    /// Why there is none.
    pub fn require_leader(&self) -> Result<&Status> {
        self.leader().ok_or_else(|| anyhow!(self.trouble().unwrap_or_default()))
    }

    /// The problem, if there is one.
    fn trouble(&self) -> Option<String> {
        let foreign = self.replicas.iter().find_map(|(id, (address, seen))| match seen {
            Seen::Foreign(cluster) => Some(format!("replica {id} at {address} is of cluster {cluster}")),
            Seen::Status(_) | Seen::Silent => None,
        });
        if let Some(foreign) = foreign {
            let asked = self.cluster.map_or("the one that was asked".into(), |cluster| format!("cluster {cluster}"));
            return Some(format!("{foreign}, and not of {asked}: correct the list of replicas"));
        }
        match (self.statuses().next(), self.leader()) {
            (None, _) => Some("none of them answers: are they started, and are these their addresses?".into()),
            (_, None) => Some("none of them leads".into()),
            _ => None,
        }
    }

    /// The leader: if several claim to lead, the one with the latest term.
    pub fn leader(&self) -> Option<&Status> {
        self.statuses().filter(|status| status.role == Role::Leader).max_by_key(|status| status.term)
    }

    /// Whether this replica has sent its status.
    pub fn has_answered(&self, id: u64) -> bool {
        self.replicas.get(&id).is_some_and(|(_, seen)| matches!(seen, Seen::Status(_)))
    }

    /// The members as the leader knows them, or else the replica with the longest log.
    fn members(&self) -> BTreeSet<u64> {
        let longest = self.statuses().max_by_key(|status| status.applied);
        let status = self.leader().or(longest);
        status.map(|status| status.voters.iter().chain(&status.learners).copied().collect()).unwrap_or_default()
    }

    /// How many entries a replica is behind the commit index.
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

/// The name of a role.
fn role_name(status: &Status) -> &'static str {
    match status.role {
        _ if status.cluster.is_none() => "waiting",
        Role::Follower => "follower",
        Role::Candidate => "candidate",
        Role::Leader => "leader",
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    ask(&arguments.cluster, interrupt, async |client| {
        let mut overview = Overview::look(client).await;
        let groups = overview.statuses().map(|status| status.groups).max().unwrap_or(1).max(1);
        ensure!(
            arguments.group < groups,
            "the replicas have {groups} groups, numbered from 0: there is no group {}",
            arguments.group
        );
        let led = leaders(client, groups).await;
        if arguments.group > 0 {
            overview = Overview::look(&client.of_group(arguments.group)).await;
        }
        if arguments.json {
            output::line(as_json(&overview, arguments.group, &led))?;
        } else {
            output::line(as_table(&overview).trim_end())?;
            if groups > 1 {
                output::line(format_args!("the above is group {} of {groups}; {}", arguments.group, as_text(&led)))?;
            }
        }
        for status in overview.statuses() {
            for Foreign { id, cluster } in &status.foreign {
                let own = status.id;
                eprintln!(
                    "dunlin: warning: replica {own} has to do with replica {id} of cluster {cluster}: an address stands in the lists of both"
                );
            }
        }
        overview.trouble().map_or(Ok(Outcome::Done), |trouble| Err(anyhow!(trouble)))
    })
}

/// How many groups each replica leads, as known by one replica of each group; 0 stands for no leader.
async fn leaders(client: &Client, groups: u16) -> BTreeMap<u64, usize> {
    let leader = async |group: u16| {
        let client = client.of_group(group);
        for (id, _) in client.members() {
            if let Ok(status) = client.status(id).await {
                return status.leader.unwrap_or(0);
            }
        }
        0
    };
    let mut led = BTreeMap::new();
    for leader in join_all((0..groups).map(leader)).await {
        *led.entry(leader).or_default() += 1;
    }
    led
}

fn as_text(led: &BTreeMap<u64, usize>) -> String {
    let one = |(id, count): (&u64, &usize)| match id {
        0 => format!("nobody leads {count}"),
        id => format!("replica {id} leads {count}"),
    };
    led.iter().map(one).collect::<Vec<String>>().join(", ")
}

fn as_json(overview: &Overview, group: u16, led: &BTreeMap<u64, usize>) -> Value {
    let number = |cluster: ClusterId| cluster.to_string();
    let foreign = |foreign: &Foreign| json!({ "id": foreign.id, "cluster": number(foreign.cluster) });
    let replica = |(id, (address, seen)): (&u64, &(String, Seen))| match seen {
        Seen::Silent => json!({ "id": id, "address": address, "role": "unreachable" }),
        Seen::Foreign(cluster) => {
            json!({ "id": id, "address": address, "role": "foreign", "cluster": number(*cluster) })
        }
        Seen::Status(status) => json!({
            "id": id,
            "address": address,
            "cluster": status.cluster.map(number),
            "foreign": status.foreign.iter().map(foreign).collect::<Vec<Value>>(),
            "role": role_name(status),
            "disk_hangs": status.disk_hangs,
            "other_groups": status.other_groups,
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
        "cluster": overview.cluster.map(number),
        "group": group,
        "groups": led.values().sum::<usize>(),
        "groups_led": led.iter().map(|(id, count)| (id.to_string(), json!(count))).collect::<serde_json::Map<String, Value>>(),
        "leader": overview.leader().map(|leader| leader.id),
        "members": overview.members(),
        "replicas": replicas,
    })
}

fn as_table(overview: &Overview) -> String {
    const HEADING: [&str; 10] =
        ["id", "role", "vote", "term", "committed", "applied", "lag", "sessions", "pause", "address"];
    let mut lines = vec![HEADING.map(str::to_owned)];
    for (id, (address, seen)) in &overview.replicas {
        let vote = overview.vote(*id).to_owned();
        let Seen::Status(status) = seen else {
            let none = String::new;
            let role = if matches!(seen, Seen::Foreign(_)) { "foreign" } else { "unreachable" }.to_owned();
            lines.push([id.to_string(), role, vote, none(), none(), none(), none(), none(), none(), address.clone()]);
            continue;
        };
        lines.push([
            id.to_string(),
            role_name(status).to_owned() + if status.disk_hangs { ", disk hangs" } else { "" },
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
            // Words left-aligned, numbers right-aligned, and no padding after the last.
            1 | 2 => format!("{cell:<width$}"),
            9 => cell.clone(),
            _ => format!("{cell:>width$}"),
        });
        padded.collect::<Vec<String>>().join("  ") + "\n"
    };
    let heading = overview.cluster.map(|cluster| format!("cluster {cluster}\n"));
    let with_other_groups = overview.statuses().filter_map(|status| Some((status, status.other_groups?)));
    let start_again = with_other_groups.map(|(status, groups)| {
        format!(
            "replica {} has {} groups and cannot join a cluster of {groups}: start it with these\n",
            status.id, status.groups
        )
    });
    heading.into_iter().chain(lines.iter().map(line)).chain(start_again).collect()
}
