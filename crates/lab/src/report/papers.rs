//! The papers' tables: the figures that rows are compared with, as data.
//!
//! A TOML file has them, a table of a document each:
//!
//! ```toml
//! [[table]]
//! experiments = ["rpc-latency"]
//! document = "eRPC"
//! table = "Table 2"
//! setup = "CX5 40 GbE"
//! cells = [{ cases = ["* 32 B"], metric = "latency p50", value = 2_300.0 }]
//! ```
//!
//! A cell belongs to the rows of these experiments with its metric and one of its cases. A `*` in a case stands for
//! any text. Values are in the unit of the metric, as printed in the document. A cell with `over` is a ratio of two
//! printed values.

use serde::Deserialize;

use super::metric::Metric;
use crate::{LabError, matches};

/// A paper's figure for one row.
#[derive(Debug, Clone, PartialEq)]
pub struct PaperFigure {
    /// In the unit of the row's metric.
    pub value: f64,
    /// The hardware, and what else differs.
    pub setup: String,
    /// The document, and its table, figure or section.
    pub source: String,
}

/// The tables of some documents.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Papers {
    #[serde(default, rename = "table")]
    tables: Vec<Table>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    experiments: Vec<String>,
    document: String,
    table: String,
    setup: String,
    cells: Vec<Cell>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cell {
    cases: Vec<String>,
    metric: Metric,
    value: f64,
    over: Option<f64>,
    /// Instead of the table's.
    setup: Option<String>,
}

impl Papers {
    /// Reads the tables of some files.
    ///
    /// # Errors
    /// [`LabError::BadPapers`] with the place of the fault.
    pub fn read<'a>(files: impl IntoIterator<Item = &'a str>) -> Result<Self, LabError> {
        let mut all = Papers::default();
        for file in files {
            let read: Papers = toml::from_str(file).map_err(|error| LabError::BadPapers(error.to_string()))?;
            all.tables.extend(read.tables);
        }
        Ok(all)
    }

    /// The figure for a row, if a table has one.
    pub fn figure(&self, experiment: &str, case: &str, metric: Metric) -> Option<PaperFigure> {
        let of_experiment = |table: &&Table| table.experiments.iter().any(|name| name == experiment);
        self.tables.iter().filter(of_experiment).find_map(|table| {
            let is_case =
                |cell: &&Cell| cell.metric == metric && cell.cases.iter().any(|pattern| matches(pattern, case));
            let cell = table.cells.iter().find(is_case)?;
            Some(PaperFigure {
                value: cell.value / cell.over.unwrap_or(1.0),
                setup: cell.setup.as_ref().unwrap_or(&table.setup).clone(),
                source: format!("{}, {}", table.document, table.table),
            })
        })
    }

    /// The experiments that have figures.
    pub fn experiments(&self) -> impl Iterator<Item = &str> {
        self.tables.iter().flat_map(|table| &table.experiments).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = r#"
        [[table]]
        experiments = ["rpc-latency", "demo"]
        document = "eRPC"
        table = "Table 2"
        setup = "CX5 40 GbE"
        cells = [
            { cases = ["* 32 B", "both"], metric = "latency p50", value = 2_300.0 },
            { cases = ["share"], metric = "advantage", value = 3.0, over = 4.0, setup = "at most" },
        ]
    "#;

    #[test]
    fn a_row_finds_its_cell() {
        let papers = Papers::read([TABLE]).unwrap();
        let value = |experiment, case, metric| papers.figure(experiment, case, metric).map(|figure| figure.value);
        assert_eq!(value("rpc-latency", "shm 32 B", Metric::LatencyP50), Some(2300.0));
        assert_eq!(value("demo", "both", Metric::LatencyP50), Some(2300.0));
        assert_eq!(value("demo", "shm 32 B", Metric::LatencyP99), None);
        assert_eq!(value("demo", "shm 32 B, twice", Metric::LatencyP50), None);
        assert_eq!(value("rpc-rate", "shm 32 B", Metric::LatencyP50), None);
        let share = papers.figure("demo", "share", Metric::Advantage).unwrap();
        let source = "eRPC, Table 2".to_owned();
        assert_eq!(share, PaperFigure { value: 0.75, setup: "at most".into(), source });
    }

    #[test]
    fn a_fault_is_named() {
        let error = Papers::read([&TABLE.replace("setup = \"CX5", "hardware = \"CX5")[..]]).unwrap_err();
        assert!(error.to_string().contains("hardware"), "{error}");
    }
}
