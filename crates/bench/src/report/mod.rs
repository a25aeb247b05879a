//! What an experiment hands out: rows of figures, each beside its floor, the paper's figure and its target.
//!
//! A [`ReportBuilder`] collects rows while the experiment runs; [`ReportBuilder::finish`] resolves the targets and gives the
//! [`Report`], which serialises to the JSON file as it is. [`table`] shows it on a terminal and [`html`] as one page.

mod builder;
pub mod html;
pub mod human;
mod machine;
mod metric;
mod row;
pub mod table;
mod target;

pub use builder::ReportBuilder;
pub use machine::Machine;
pub use metric::{Better, Metric};
pub use row::{PaperFigure, Row, RowBuilder, Verdict};
pub use target::Target;

use serde::{Deserialize, Serialize};

/// The result of one experiment, and the format of its JSON file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the experiment.
    pub experiment: String,
    /// What it ran on.
    pub machine: Machine,
    /// What was built: a commit, `-dirty` after it if the tree differed, or `unknown`.
    pub commit: String,
    /// The figures, in the order they were measured.
    pub rows: Vec<Row>,
}

impl Report {
    /// Rows whose target is missed.
    pub fn missed(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.verdict() == Some(Verdict::Missed))
    }
}

/// The JSON file: one report as an object, several as an array of them.
///
/// # Errors
/// None for reports whose figures are finite, which those of a [`ReportBuilder`] are.
pub fn json(reports: &[Report]) -> serde_json::Result<String> {
    match reports {
        [report] => serde_json::to_string_pretty(report),
        reports => serde_json::to_string_pretty(reports),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Spread;

    fn report() -> Report {
        let mut builder = ReportBuilder::new("rpc-rate");
        let paper = PaperFigure { value: 4.96e6, setup: "CX4 25 GbE" };
        let spread = Spread { median: 1.1e7, min: 1e7, max: 1.2e7 };
        builder.push(
            RowBuilder::new("shm B=3", Metric::Rate, spread).floor(6e7).paper(Some(paper)).target(Target::Absolute(1e7)),
        );
        builder.push(RowBuilder::new("udp B=3", Metric::Rate, spread).target(Target::Absolute(2e7)));
        builder.finish()
    }

    #[test]
    fn json_has_the_documented_shape() {
        let value: serde_json::Value = serde_json::from_str(&json(&[report()]).unwrap()).unwrap();
        let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&value), ["commit", "experiment", "machine", "rows"]);
        assert_eq!(
            value["rows"][0],
            serde_json::json!({"case": "shm B=3", "metric": "rate", "unit": "RPC/s", "value": 1.1e7, "min": 1e7, "max": 1.2e7,
                "floor": 6e7, "paper": 4.96e6, "paper_setup": "CX4 25 GbE", "target": 1e7})
        );
        assert!(value["rows"][1]["floor"].is_null() && value["rows"][1]["paper_setup"].is_null());
    }

    #[test]
    fn json_reads_back() {
        let report = report();
        assert_eq!(serde_json::from_str::<Report>(&json(std::slice::from_ref(&report)).unwrap()).unwrap(), report);
        let two: Vec<Report> = serde_json::from_str(&json(&[report.clone(), report]).unwrap()).unwrap();
        assert_eq!(two.len(), 2);
    }

    #[test]
    fn verdict_and_ratio() {
        let report = report();
        assert_eq!(report.rows[0].verdict(), Some(Verdict::Met));
        assert_eq!(report.rows[1].verdict(), Some(Verdict::Missed));
        assert_eq!(report.missed().count(), 1);
        assert_eq!(report.rows[0].ratio(), Some(1.1e7 / 6e7));
        assert_eq!(report.rows[1].ratio(), None);
    }
}
