//! `dunlin txn status`.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use dunlin_serve::Interrupt;
use dunlin_txn::node::Report;
use dunlin_txn::{Configuration, NodeId, PartitionId, Place, Role};
use serde_json::{Value, json};

use super::client::{Outcome, Target, ask};
use crate::output;

/// Show the epoch, the members, and where each partition has its copies
///
/// Exit code 0 if every partition has all of its copies; 3 if some are being repaired, or wait for a node; 1 if one is
/// lost.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  dunlin txn status --at udp://127.0.0.1:7911
  dunlin txn status --at udp://127.0.0.1:7911 --json | jq .repaired
  until dunlin txn status --at udp://127.0.0.1:7911 > /dev/null; do sleep 1; done       wait until all copies are complete")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

type Reports = BTreeMap<Place, Result<Report, String>>;

/// Runs the command.
pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Result<ExitCode> {
    let mut is_whole = true;
    let done = ask(&arguments.target, interrupt, async |_, remote| {
        remote.refresh().await;
        let (reports, configuration) = (remote.reports().await, remote.configuration());
        if arguments.json {
            output::line(as_json(&configuration, &reports))?;
        } else {
            output::line(as_text(&configuration, &reports).trim_end())?;
        }
        let copies = configuration.partitions.iter().map(Vec::len);
        is_whole = configuration.filling.is_empty() && copies.min().unwrap_or(usize::MAX) >= configuration.replicas;
        Ok(if configuration.lost().next().is_some() { Outcome::NotFound } else { Outcome::Done })
    })?;
    let is_repaired = done == ExitCode::SUCCESS && !is_whole;
    Ok(if is_repaired { ExitCode::from(crate::exit::CONDITION) } else { done })
}

/// The cores of a node that serve the epoch, and what is wrong with the others.
fn health(configuration: &Configuration, reports: &Reports, node: NodeId) -> (usize, Option<String>) {
    let of_node = reports.iter().filter(|(place, _)| place.node == node);
    let wrong = |report: &Result<Report, String>| match report {
        Err(why) => Some(format!("does not answer: {why}")),
        Ok(report) if report.incarnation != configuration.incarnation(Place { node, core: 0 }) => {
            Some("was started again, and has lost its copies".into())
        }
        Ok(report) if !report.is_safe => Some("is not heard by the cluster manager".into()),
        Ok(report) if report.opened < configuration.epoch => Some("is being recovered".into()),
        Ok(_) => None,
    };
    let all: Vec<Option<String>> = of_node.map(|(_, report)| wrong(report)).collect();
    (all.iter().filter(|wrong| wrong.is_none()).count(), all.into_iter().flatten().next())
}

/// Keys that were fetched of how many, for a copy that is being filled.
fn progress(reports: &Reports, partition: PartitionId, place: Place) -> Option<(u64, u64)> {
    let report = reports.get(&place)?.as_ref().ok()?;
    report.copies.iter().find(|copy| copy.partition == partition).map(|copy| copy.progress)
}

fn bytes(reports: &Reports, partition: PartitionId, place: Place) -> Option<usize> {
    let report = reports.get(&place)?.as_ref().ok()?;
    report.copies.iter().find(|copy| copy.partition == partition).map(|copy| copy.bytes)
}

fn as_json(configuration: &Configuration, reports: &Reports) -> Value {
    let member = |(node, member): (&NodeId, &dunlin_txn::Member)| {
        let (serving, wrong) = health(configuration, reports, *node);
        let count = |role: Role| {
            let at = configuration
                .partitions
                .iter()
                .enumerate()
                .flat_map(|(number, copies)| copies.iter().map(move |place| (number, *place)));
            let here = at.filter(|(_, place)| place.node == *node);
            here.filter(|(number, place)| configuration.role(PartitionId(*number as u32), *place) == Some(role)).count()
        };
        json!({
            "id": node, "incarnation": member.incarnation, "cores": member.cores.len(), "serving": serving,
            "at": member.cores.iter().map(ToString::to_string).collect::<Vec<_>>(), "trouble": wrong,
            "primaries": count(Role::Primary), "backups": count(Role::Backup),
        })
    };
    let copy = |place: &Place| json!({ "node": place.node, "core": place.core });
    let partition = |(number, copies): (usize, &Vec<Place>)| {
        let id = PartitionId(number as u32);
        let is_filling = |place: &&Place| configuration.filling_since(id, place.node).is_some();
        let filling = copies.iter().filter(is_filling).map(|place| {
            let (fetched, keys) = progress(reports, id, *place).unwrap_or_default();
            json!({ "node": place.node, "core": place.core, "fetched": fetched, "keys": keys })
        });
        let backups = copies.iter().skip(1).filter(|place| !is_filling(place)).map(copy);
        json!({
            "id": number, "primary": copies.first().map(copy), "backups": backups.collect::<Vec<_>>(),
            "filling": filling.collect::<Vec<_>>(),
            "bytes": copies.first().and_then(|place| bytes(reports, id, *place)),
        })
    };
    let complete = |number: usize| {
        let id = PartitionId(number as u32);
        let copies = configuration.copies(id);
        copies.iter().filter(|place| configuration.filling_since(id, place.node).is_none()).count()
    };
    let missing = (0..configuration.partitions.len()).filter(|number| complete(*number) < configuration.replicas);
    json!({
        "cluster": format!("{:016x}", configuration.cluster),
        "epoch": configuration.epoch,
        "replicas": configuration.replicas,
        "tables": configuration.tables.iter().map(|table| table.name.clone()).collect::<Vec<_>>(),
        "members": configuration.nodes.iter().map(member).collect::<Vec<_>>(),
        "incomplete": missing.count(),
        "repaired": configuration.filling.len(),
        "lost": configuration.lost().map(|partition| partition.0).collect::<Vec<_>>(),
        "partitions": configuration.partitions.iter().enumerate().map(partition).collect::<Vec<_>>(),
    })
}

fn as_text(configuration: &Configuration, reports: &Reports) -> String {
    let Configuration { cluster, epoch, replicas, nodes, partitions, tables, .. } = configuration;
    let mut text = format!(
        "cluster {cluster:016x}, epoch {epoch}: {} members, {} tables, {} partitions with {replicas} copies\n",
        nodes.len(),
        tables.len(),
        partitions.len()
    );
    let mut line = |words: String| text.push_str(&format!("{}\n", words.trim_end()));
    let lost: Vec<String> = configuration.lost().map(|partition| partition.0.to_string()).collect();
    if !lost.is_empty() {
        line(format!("LOST: all copies of partitions {} are gone, with their items", lost.join(", ")));
    }
    line("members:".into());
    for (node, member) in nodes {
        let (serving, wrong) = health(configuration, reports, *node);
        let (cores, at) = (member.cores.len(), member.cores.first().map(ToString::to_string).unwrap_or_default());
        let primaries =
            partitions.iter().filter(|copies| copies.first().is_some_and(|place| place.node == *node)).count();
        let all = partitions.iter().flatten().filter(|place| place.node == *node).count();
        let wrong = wrong.map(|wrong| format!("; {wrong}")).unwrap_or_default();
        line(format!(
            "  {node}  {at}  {serving} of {cores} cores serve; {primaries} primaries, {} backups{wrong}",
            all - primaries
        ));
    }
    let is_whole = |number: usize, copies: &[Place]| {
        let filling =
            copies.iter().any(|place| configuration.filling_since(PartitionId(number as u32), place.node).is_some());
        !filling && copies.len() >= *replicas
    };
    let whole = partitions.iter().enumerate().filter(|(number, copies)| is_whole(*number, copies)).count();
    line(format!("partitions: {whole} have all copies, {} copies are being filled", configuration.filling.len()));
    for (number, copies) in partitions.iter().enumerate() {
        let id = PartitionId(number as u32);
        let Some(first) = copies.first() else {
            line(format!("  {number}  LOST"));
            continue;
        };
        let mut words = format!("  {number}  primary {}.{}", first.node, first.core);
        for place in &copies[1..] {
            let Place { node, core } = place;
            match configuration.filling_since(id, *node) {
                None => words.push_str(&format!("  backup {node}.{core}")),
                Some(_) => {
                    let (fetched, keys) = progress(reports, id, *place).unwrap_or_default();
                    words.push_str(&format!("  filling {node}.{core} ({fetched} of {keys} keys)"));
                }
            }
        }
        if copies.len() < *replicas {
            words.push_str(&format!("  {} copies wait for a node", replicas - copies.len()));
        }
        line(words);
    }
    text
}

#[cfg(test)]
mod tests {
    use dunlin_txn::Plan;

    use super::*;

    #[test]
    fn what_is_wrong_is_said() {
        let member = |node: u32| {
            let cores = vec![format!("udp://127.0.0.1:{}", 7000 + node).parse().unwrap()];
            (node, dunlin_txn::Member { incarnation: 5, cores })
        };
        let plan = Plan {
            cluster: 9,
            nodes: (1..=3).map(member).collect(),
            partitions_per_core: 1,
            replicas: 2,
            tables: vec!["t".into()],
            seed: [1; 16],
        };
        let mut configuration = plan.configure().unwrap();
        let served = Report { incarnation: 5, epoch: 1, opened: 1, is_safe: true, ..Report::default() };
        let mut reports: Reports = configuration.places().map(|place| (place, Ok(served.clone()))).collect();
        let text = as_text(&configuration, &reports);
        assert!(
            text.starts_with(
                "cluster 0000000000000009, epoch 1: 3 members, 1 tables, 3 partitions with 2 copies\nmembers:\n  1  udp"
            ),
            "{text}"
        );
        assert!(text.contains("partitions: 3 have all copies, 0 copies are being filled\n"), "{text}");
        configuration.partitions[0].clear();
        configuration.partitions[1].truncate(1);
        reports.insert(Place { node: 2, core: 0 }, Err("no route".into()));
        reports.insert(Place { node: 3, core: 0 }, Ok(Report { incarnation: 6, ..served }));
        let text = as_text(&configuration, &reports);
        for said in [
            "LOST: all copies of partitions 0 are gone",
            "does not answer: no route",
            "was started again",
            "  0  LOST",
            "1 copies wait for a node",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
        let json = as_json(&configuration, &reports);
        assert_eq!((&json["lost"], &json["incomplete"], &json["epoch"]), (&json!([0]), &json!(2), &json!(1)), "{json}");
    }
}
