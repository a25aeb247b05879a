//! The results of an experiment: rows of figures, each with its floor, the paper's figure and its target.
//!
//! A [`ReportBuilder`] collects rows while the experiment runs; [`ReportBuilder::finish`] resolves the targets and
//! returns the [`Report`], which is serialized directly to the JSON file. [`table`] shows it on a terminal, [`html`] as
//! one page and [`docs`] in the documentation; a [`Comparison`] shows what changed since an earlier one.

mod builder;
mod compare;
mod conditions;
pub mod docs;
pub mod html;
pub mod human;
mod machine;
mod metric;
mod papers;
mod plot;
mod provenance;
mod row;
mod sketch;
pub mod table;
mod target;

pub use builder::ReportBuilder;
pub use compare::{Change, Compared, Comparison};
pub use conditions::Conditions;
pub use machine::Machine;
pub use metric::{Better, Metric};
pub use papers::{PaperFigure, Papers};
pub use plot::{LINES_MAX, Line, Places, Plot};
pub use provenance::{Process, Provenance, Seeds};
pub use row::{Row, RowBuilder, Verdict};
pub use target::Target;

use serde::{Deserialize, Serialize};

/// The result of one experiment, and the format of its JSON file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the experiment.
    pub experiment: String,
    /// The machine.
    pub machine: Machine,
    /// The commit, followed by `-dirty` if the tree differed, or `unknown`.
    pub commit: String,
    /// The conditions of measurement; `None` in reports of earlier commits.
    #[serde(default)]
    pub conditions: Option<Conditions>,
    /// The figures, in the order they were measured.
    pub rows: Vec<Row>,
    /// What could not be measured, why, and what to do about it.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Plots for the page.
    #[serde(skip)]
    pub plots: Vec<Plot>,
}

impl Report {
    /// Rows whose target is missed.
    pub fn missed(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.verdict() == Some(Verdict::Missed))
    }

    /// Disturbances of the machine during the measurement: unreliable rows, and repeated runs.
    fn disturbance(&self) -> Option<String> {
        let disturbed = self.rows.iter().filter(|row| row.is_disturbed()).count();
        let repeated = self.rows.iter().filter(|row| row.repeated > 0).count();
        let mut notes = Vec::new();
        if disturbed > 0 {
            notes.push(format!(
                "The machine was disturbed: in {disturbed} of {} rows the floor moved more than 2x between runs.",
                self.rows.len()
            ));
        }
        if repeated > 0 {
            notes.push(format!(
                "Behind {repeated} rows are runs that were taken again, since their floor was 1.5x the best one."
            ));
        }
        (!notes.is_empty()).then(|| notes.join(" "))
    }
}

/// The JSON file: one report as an object, several as an array of them.
///
/// # Errors
/// None for reports with finite figures, as those of a [`ReportBuilder`] are.
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
        let paper = PaperFigure { value: 4.96e6, setup: "CX4 25 GbE".into(), source: "eRPC, Figure 4".into() };
        let spread = Spread { median: 1.1e7, min: 1e7, max: 1.2e7 };
        builder.push(
            RowBuilder::new("shm B=3", Metric::Rate, spread)
                .floor(6e7)
                .paper(Some(paper))
                .axes(&[("transport", "shm".into()), ("batch", "B=3".into())])
                .target(Target::Absolute(1e7)),
        );
        builder.push(RowBuilder::new("udp B=3", Metric::Rate, spread).target(Target::Absolute(2e7)));
        builder.note("shm B=11 was skipped");
        builder.finish()
    }

    #[test]
    fn json_has_the_documented_shape() {
        let value: serde_json::Value = serde_json::from_str(&json(&[report()]).unwrap()).unwrap();
        let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&value), ["commit", "conditions", "experiment", "machine", "notes", "rows"]);
        assert_eq!(
            value["rows"][0],
            serde_json::json!({"case": "shm B=3", "metric": "rate", "unit": "RPC/s", "value": 1.1e7, "min": 1e7, "max": 1.2e7,
                "floor": 6e7, "floor_min": 6e7, "floor_max": 6e7, "repeated": 0, "disturbed": false, "paper": 4.96e6, "paper_setup": "CX4 25 GbE",
                "paper_source": "eRPC, Figure 4", "target": 1e7, "not_beyond": null, "axes": {"transport": "shm", "batch": "B=3"},
                "limit": null, "rival_case": null, "rival": null, "provenance": null})
        );
        assert!(value["rows"][1]["floor"].is_null() && value["rows"][1]["paper_setup"].is_null());
    }

    #[test]
    fn notes_are_shown_everywhere() {
        let report = report();
        assert!(json(std::slice::from_ref(&report)).unwrap().contains("shm B=11 was skipped"));
        assert!(table::render(&report).contains("shm B=11 was skipped"));
        assert!(html::page(&[report]).contains("shm B=11 was skipped"));
    }

    #[test]
    fn json_reads_back() {
        let report = report();
        assert_eq!(serde_json::from_str::<Report>(&json(std::slice::from_ref(&report)).unwrap()).unwrap(), report);
        let two: Vec<Report> = serde_json::from_str(&json(&[report.clone(), report]).unwrap()).unwrap();
        assert_eq!(two.len(), 2);
    }

    #[test]
    fn a_floor_that_moves_is_a_disturbance() {
        let mut builder = ReportBuilder::new("rpc-latency");
        let floor = |max| Spread { median: 120.0, min: 100.0, max };
        for (case, max, repeated) in [("quiet", 200.0, 0), ("disturbed", 201.0, 2)] {
            let row = RowBuilder::new(case, Metric::LatencyP50, Spread::single(300.0));
            builder.push(row.floor(floor(max)).repeated(repeated));
        }
        let report = builder.finish();
        assert_eq!(report.rows.iter().map(Row::is_disturbed).collect::<Vec<_>>(), [false, true]);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!((&json["rows"][1]["disturbed"], &json["rows"][1]["repeated"]), (&true.into(), &2.into()));
        assert!(table::render(&report).contains("The machine was disturbed: in 1 of 2 rows"));
        assert!(html::page(&[report]).contains("The machine was disturbed: in 1 of 2 rows"));
        assert_eq!(super::tests::report().disturbance(), None);
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
