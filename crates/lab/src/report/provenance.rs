//! How a row was measured: what somebody needs to measure it again.

use std::collections::{BTreeMap, BTreeSet};

use dunlin_sim::CostModel;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The origin of one row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// The commit, as in the report.
    pub commit: String,
    /// Length of a measured run, in seconds. In virtual time it is the scale of the runs.
    pub run_seconds: f64,
    /// Runs behind the row.
    pub runs: u32,
    /// The seeds of the runs, one each; `None` in real time.
    pub seeds: Option<Seeds>,
    /// CPU time of packets in virtual time.
    pub cost: Option<CostModel>,
    /// What carried the packets: `shm`, `udp`, or the words of the experiment's axis `transport`.
    pub transport: BTreeSet<String>,
    /// Operations in flight of each process that keeps some in flight, the floor's and the rival's too, by role.
    pub in_flight: BTreeMap<String, u64>,
    /// The processes of each core, by role. One that chooses its cores itself is not among them.
    pub cores: BTreeMap<usize, Vec<String>>,
    /// The processes of one run. Those of all systems, if these were measured in turn.
    pub processes: Vec<Process>,
}

/// Consecutive seeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seeds {
    /// The first.
    pub first: u64,
    /// Their number.
    pub count: u32,
}

/// A process of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Its role.
    pub role: String,
    /// The core that it was pinned to when it started.
    pub core: Option<usize>,
    /// The parameters of its role.
    pub task: Value,
}

/// Parameters of roles that say what carries packets, how much is in flight, and which cores threads are pinned to.
const CARRIER: &str = "carrier";
const IN_FLIGHT: [&str; 2] = ["in_flight", "window"];
const CORES: &str = "cores";

impl Provenance {
    /// Takes what the processes' parameters say.
    #[must_use]
    pub fn with_processes(mut self, processes: &[Process]) -> Self {
        for Process { role, core, task } in processes {
            each_field(task, &mut |name, value| match value {
                Value::String(carrier) if name == CARRIER => drop(self.transport.insert(carrier.to_lowercase())),
                Value::Number(number) if IN_FLIGHT.contains(&name) => {
                    self.in_flight.extend(number.as_u64().map(|number| (role.clone(), number)));
                }
                // A floor is one process, and each of its threads has a core.
                Value::Object(pair) if name == CORES => {
                    for core in pair.values().filter_map(Value::as_u64) {
                        self.cores.entry(core as usize).or_default().push(role.clone());
                    }
                }
                _ => {}
            });
            if let Some(core) = core {
                self.cores.entry(*core).or_default().push(role.clone());
            }
        }
        self.processes = processes.to_vec();
        self
    }
}

/// Calls `visit` with all fields of an object, and of the objects in it.
fn each_field(value: &Value, visit: &mut impl FnMut(&str, &Value)) {
    if let Value::Object(fields) = value {
        for (name, value) in fields {
            visit(name, value);
            each_field(value, visit);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parameters_of_processes_tell_what_was_measured() {
        let plain = Provenance {
            commit: "abc".into(),
            run_seconds: 1.0,
            runs: 5,
            seeds: None,
            cost: None,
            transport: BTreeSet::new(),
            in_flight: BTreeMap::new(),
            cores: BTreeMap::new(),
            processes: Vec::new(),
        };
        let process = |role: &str, core, task| Process { role: role.into(), core, task };
        let processes = [
            process("floor", None, json!({"carrier": "Udp", "in_flight": 60, "cores": {"server": 1, "client": 0}})),
            process("server", Some(1), json!({"setup": {"carrier": "Udp"}})),
            process("load", Some(0), json!({"setup": {"carrier": "Udp"}, "load": {"window": 8}, "one": "Udp"})),
        ];
        let told = plain.with_processes(&processes);
        assert_eq!(told.transport, BTreeSet::from(["udp".to_owned()]));
        assert_eq!(told.in_flight, BTreeMap::from([("floor".to_owned(), 60), ("load".to_owned(), 8)]));
        let roles = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(told.cores, BTreeMap::from([(0, roles(&["floor", "load"])), (1, roles(&["floor", "server"]))]));
        assert_eq!(serde_json::from_value::<Provenance>(serde_json::to_value(&told).unwrap()).unwrap(), told);
    }
}
