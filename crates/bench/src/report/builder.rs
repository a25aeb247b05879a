//! Collects rows while an experiment runs.

use super::Report;
use super::machine::Machine;
use super::plot::Plot;
use super::row::{self, RowBuilder};

/// A report in the making. What it holds when an experiment is cut short is still a valid report.
#[derive(Debug, Clone)]
pub struct ReportBuilder {
    experiment: String,
    machine: Machine,
    rows: Vec<RowBuilder>,
    notes: Vec<String>,
    plots: Vec<Plot>,
}

impl ReportBuilder {
    /// An empty report; its date is now.
    pub fn new(experiment: &str) -> Self {
        ReportBuilder {
            experiment: experiment.to_owned(),
            machine: Machine::detect(),
            rows: Vec::new(),
            notes: Vec::new(),
            plots: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn push(&mut self, row: RowBuilder) {
        self.rows.push(row);
    }

    /// Says what could not be measured, why, and what to do about it.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Adds a plot.
    pub fn plot(&mut self, plot: Plot) {
        self.plots.push(plot);
    }

    /// Resolves the targets, which may refer to any row.
    pub fn finish(self) -> Report {
        Report {
            experiment: self.experiment,
            machine: self.machine,
            commit: env!("DUNLIN_COMMIT").to_owned(),
            rows: row::finish(self.rows),
            notes: self.notes,
            plots: self.plots,
        }
    }
}
