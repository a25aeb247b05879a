//! Where reports go: always to standard output, to files if asked for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use dunlin_bench::BenchError;
use dunlin_bench::experiments::Outcome;
use dunlin_lab::LabError;
use dunlin_lab::report::{self, Comparison, Report, html, table};
use dunlin_serve::signals::EXIT_INTERRUPTED;

use crate::{exit, output};

/// How reports are shown, and files to keep them in.
#[derive(Debug, clap::Args)]
pub struct Files {
    /// Print JSON instead of tables, all at the end
    #[arg(long)]
    json: bool,
    /// Keep the figures in this file: as JSON (.json), or as one web page with plots that needs nothing else (.html)
    #[arg(long, value_name = "FILE", value_parser = known_kind)]
    save: Vec<PathBuf>,
}

fn known_kind(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("json" | "html") => Ok(path),
        _ => Err("give a name that ends in .json or .html".into()),
    }
}

impl Files {
    /// Checks, before minutes of measuring, that the files can be written.
    pub fn check(&self) -> Result<()> {
        for file in &self.save {
            fs::OpenOptions::new().create(true).append(true).open(file).with_context(|| cannot_write(file))?;
        }
        Ok(())
    }

    /// Prints tables, or JSON if that is asked for, and writes the files.
    pub fn show(&self, reports: &[Report]) -> Result<()> {
        for report in reports.iter().filter(|_| !self.json) {
            output::line(format_args!("{}\n", table::render(report)))?;
        }
        self.write(reports)
    }

    /// Writes the files; prints JSON if that is asked for.
    pub fn write(&self, reports: &[Report]) -> Result<()> {
        let json = || report::json(reports).context("cannot write the report as JSON");
        for file in &self.save {
            let is_page = file.extension().is_some_and(|extension| extension == "html");
            let text = if is_page { html::page(reports) } else { json()? + "\n" };
            fs::write(file, text).with_context(|| cannot_write(file))?;
        }
        if self.json {
            output::line(json()?)?;
        }
        Ok(())
    }
}

/// The reports in a file that `--save` wrote.
pub fn read(file: &Path) -> Result<Vec<Report>> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let is_one = text.trim_start().starts_with('{');
    let reports =
        if is_one { serde_json::from_str(&text).map(|report| vec![report]) } else { serde_json::from_str(&text) };
    reports.with_context(|| format!("{} has no reports of `bench run --save`", file.display()))
}

fn cannot_write(file: &Path) -> String {
    format!("cannot write {}", file.display())
}

/// Reports of one invocation, shown one by one and kept together at the end.
#[derive(Debug)]
pub struct Collected<'a> {
    files: &'a Files,
    reports: Vec<Report>,
    error: Option<anyhow::Error>,
}

impl<'a> Collected<'a> {
    /// None yet.
    pub fn new(files: &'a Files) -> Collected<'a> {
        Collected { files, reports: Vec::new(), error: None }
    }

    /// Shows what an experiment gave. False if there is no use in going on to the next.
    pub fn add(&mut self, outcome: Outcome) -> bool {
        if !outcome.report.rows.is_empty() {
            if !self.files.json {
                let shown = output::line(format_args!("{}\n", table::render(&outcome.report)));
                self.error = shown.err().map(Into::into);
            }
            self.reports.push(outcome.report);
        }
        self.error = outcome.error.map(Into::into).or(self.error.take());
        self.error.is_none()
    }

    /// Whether nothing was measured, without an error.
    pub fn is_empty(&self) -> bool {
        self.reports.is_empty() && self.error.is_none()
    }

    /// Shows what has changed since these reports, and returns the number of rows that are worse.
    pub fn compare(&self, old: &[Report]) -> Result<usize> {
        let comparison = Comparison::of(old, &self.reports);
        if !self.files.json {
            output::line(format_args!("{}\n", comparison.render()))?;
        } else {
            eprintln!("{}", comparison.render());
        }
        Ok(comparison.worse().count())
    }

    /// Writes the files, also when an experiment was cut short.
    pub fn finish(self) -> Result<ExitCode> {
        self.files.write(&self.reports)?;
        match self.error {
            None => Ok(ExitCode::SUCCESS),
            Some(error) if matches!(error.downcast_ref(), Some(BenchError::Lab(LabError::Interrupted))) => {
                eprintln!("dunlin: interrupted; what was measured until then is above");
                Ok(ExitCode::from(EXIT_INTERRUPTED))
            }
            Some(error) => Err(error),
        }
    }

    /// As [`Collected::finish`], with another exit code if a target was missed, or if rows are `worse` than they were.
    pub fn finish_checked(self, worse: usize) -> Result<ExitCode> {
        let missed: usize = self.reports.iter().map(|report| report.missed().count()).sum();
        let code = self.finish()?;
        if missed == 0 && worse == 0 {
            return Ok(code);
        }
        eprintln!("dunlin: targets missed: {missed}; rows worse than before: {worse}");
        Ok(ExitCode::from(exit::NOT_FOUND))
    }
}
