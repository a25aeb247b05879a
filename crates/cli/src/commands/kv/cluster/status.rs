//! `dunlin kv cluster status`.

use std::process::ExitCode;

use anyhow::Result;
use dunlin_kv::cluster::{ClusterConfig, ServerError};
use dunlin_kv::wire::{ReplicaInfo, ReplicaState};
use serde_json::json;

use super::place::{Target, ask};
use crate::commands::kv::client::Found;
use crate::output;

/// Show each server of a cluster: whether it is live, and may be read
///
/// Exit code 0 if all may be read, 1 if some may not.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin kv cluster status --at file:shop.toml
  dunlin kv cluster status --at 1=udp://10.0.0.1:7901,2=udp://10.0.0.2:7901,3=udp://10.0.0.3:7901 --entry /kv/shop --json")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The state of all cores: that of the one that is behind the others.
fn state(infos: &[ReplicaInfo]) -> &'static str {
    match infos.iter().map(|info| info.state as u8).min() {
        Some(state) if state == ReplicaState::Open as u8 => match infos.iter().all(|info| info.is_safe) {
            true => "open",
            false => "not safe",
        },
        Some(state) if state == ReplicaState::Filling as u8 => "filling",
        _ => "closed",
    }
}

fn summary(asked: &Result<Vec<ReplicaInfo>, ServerError>) -> (String, Option<String>) {
    match asked {
        Ok(infos) => (state(infos).to_owned(), None),
        Err(error) => ("unreachable".to_owned(), Some(error.to_string())),
    }
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    ask(&arguments.target, ClusterConfig::default(), async |client| {
        let cluster = client.cluster();
        let seen = client.live().await?;
        let asked = client.status().await;
        let mut is_open = true;
        let mut lines = vec![format!(
            "cluster {}: {} servers, {} replicas of {} partitions{}",
            cluster.name(),
            cluster.servers().len(),
            cluster.replicas(),
            cluster.partitions(),
            if seen.epoch > 0 { format!(", epoch {}", seen.epoch) } else { String::new() }
        )];
        let mut servers = Vec::new();
        for ((number, server), asked) in (0..).zip(cluster.servers()).zip(&asked) {
            let (state, why) = summary(asked);
            let is_live = seen.live.get(number as usize).copied().unwrap_or(false);
            is_open &= state == "open" && is_live;
            let partitions = cluster.partitions_of(number).len();
            let infos = asked.as_deref().unwrap_or_default();
            let epoch = infos.iter().map(|info| info.epoch).min().unwrap_or(0);
            let changed: u64 = infos.iter().map(|info| info.changed).sum();
            let mut notes: Vec<String> = why.iter().cloned().collect();
            if seen.epoch > 0 {
                notes.insert(0, if is_live { format!("live, epoch {epoch}") } else { "not live".into() });
            }
            if changed > 0 {
                notes.push(format!("{changed} keys changed since"));
            }
            lines.push(format!(
                "  {:16} {:12} {partitions:6} partitions  {}  {}",
                server.name,
                state,
                server.address,
                notes.join(", ")
            ));
            servers.push(json!({
                "name": server.name,
                "address": server.address.to_string(),
                "state": state,
                "error": why,
                "live": is_live,
                "epoch": epoch,
                "partitions": partitions,
                "cores": infos.len(),
                "changed": changed,
            }));
        }
        if arguments.json {
            let json = json!({
                "name": cluster.name(),
                "replicas": cluster.replicas(),
                "partitions": cluster.partitions(),
                "fingerprint": format!("{:016x}", cluster.fingerprint()),
                "epoch": seen.epoch,
                "servers": servers,
            });
            output::line(json)?;
        } else {
            lines.iter().try_for_each(|line| output::line(line.trim_end()))?;
        }
        Ok(if is_open { Found::All } else { Found::NotAll })
    })
}
