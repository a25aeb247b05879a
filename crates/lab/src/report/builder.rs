//! Collects rows while an experiment runs.

use super::Report;
use super::conditions::Conditions;
use super::machine::Machine;
use super::plot::Plot;
use super::row::{self, RowBuilder};

/// A report under construction. If an experiment is interrupted, its contents are still a valid report.
#[derive(Debug, Clone)]
pub struct ReportBuilder {
    experiment: String,
    machine: Machine,
    conditions: Option<Conditions>,
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
            conditions: None,
            rows: Vec::new(),
            notes: Vec::new(),
            plots: Vec::new(),
        }
    }

    /// Sets the conditions of measurement.
    pub fn conditions(mut self, conditions: Conditions) -> Self {
        self.conditions = Some(conditions);
        self
    }

    /// The name of the experiment.
    pub fn experiment(&self) -> &str {
        &self.experiment
    }

    /// Adds a row.
    pub fn push(&mut self, row: RowBuilder) {
        self.rows.push(row);
    }

    /// Adds a note: what could not be measured, why, and what to do about it.
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
            conditions: self.conditions,
            commit: env!("DUNLIN_COMMIT").to_owned(),
            rows: row::finish(self.rows),
            notes: self.notes,
            plots: self.plots,
        }
    }
}
