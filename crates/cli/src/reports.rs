//! Where reports go: always to the terminal, to files if asked for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use dunlin_bench::BenchError;
use dunlin_bench::experiments::Outcome;
use dunlin_bench::report::{self, Report, html, table};
use dunlin_serve::signals::EXIT_INTERRUPTED;

use crate::output;

/// Files to keep reports in.
#[derive(Debug, clap::Args)]
pub struct Files {
    /// Keep the figures in this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keep the figures in this file, as one web page with plots that needs nothing else
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl Files {
    /// Makes sure, before minutes of measuring, that the files can be written.
    pub fn check(&self) -> Result<()> {
        for file in self.json.iter().chain(&self.html) {
            fs::OpenOptions::new().create(true).append(true).open(file).with_context(|| cannot_write(file))?;
        }
        Ok(())
    }

    fn write(&self, reports: &[Report]) -> Result<()> {
        if let Some(file) = &self.json {
            let json = report::json(reports).context("cannot write the report as JSON")?;
            fs::write(file, json + "\n").with_context(|| cannot_write(file))?;
        }
        if let Some(file) = &self.html {
            fs::write(file, html::page(reports)).with_context(|| cannot_write(file))?;
        }
        Ok(())
    }
}

fn cannot_write(file: &Path) -> String {
    format!("cannot write {}", file.display())
}

/// Reports of one invocation, shown one by one and kept together at the end.
#[derive(Debug, Default)]
pub struct Collected {
    reports: Vec<Report>,
    error: Option<anyhow::Error>,
}

impl Collected {
    /// Shows what an experiment gave. False if there is no use in going on to the next.
    pub fn add(&mut self, outcome: Outcome) -> bool {
        if !outcome.report.rows.is_empty() {
            let shown = output::line(format_args!("{}\n", table::render(&outcome.report)));
            self.error = shown.err().map(Into::into);
            self.reports.push(outcome.report);
        }
        self.error = outcome.error.map(Into::into).or(self.error.take());
        self.error.is_none()
    }

    /// Writes the files, also when an experiment was cut short.
    pub fn finish(self, files: &Files) -> Result<ExitCode> {
        files.write(&self.reports)?;
        match self.error {
            None => Ok(ExitCode::SUCCESS),
            Some(error) if matches!(error.downcast_ref(), Some(BenchError::Interrupted)) => {
                eprintln!("dunlin: interrupted; what was measured until then is above");
                Ok(ExitCode::from(EXIT_INTERRUPTED))
            }
            Some(error) => Err(error),
        }
    }

    /// As [`Collected::finish`], and an error if a target was missed.
    pub fn finish_checked(self, files: &Files) -> Result<ExitCode> {
        let missed: usize = self.reports.iter().map(|report| report.missed().count()).sum();
        let code = self.finish(files)?;
        if missed > 0 {
            bail!("targets missed: {missed}");
        }
        Ok(code)
    }
}
