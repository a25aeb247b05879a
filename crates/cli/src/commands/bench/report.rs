//! `dunlin bench report`: saved figures as tables, pages and documents.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use dunlin_bench::experiments::{self, HIGHLIGHTS};
use dunlin_lab::report::{Report, docs};

use crate::output;
use crate::reports::{self, Files};

/// Show saved figures as tables, as a web page, or as the results pages of the documentation
#[derive(Debug, clap::Args)]
#[command(after_help = "\
--write-docs writes docs/results/AREA.md below DIR for each area with figures in the files, and the highlights of
README.md, all of them or none. A page is made of one commit, unless --mixed allows several: then it says which
experiment is of which commit.

Examples:
  dunlin bench report rate.json
  dunlin bench report rpc.json kv.json --save all.html
  dunlin bench report figures.json --write-docs .
  dunlin bench report rpc.json kv.json --write-docs . --mixed")]
pub struct Arguments {
    /// Files that `bench run --save FILE.json` wrote
    #[arg(required = true, value_name = "FILE")]
    reports: Vec<PathBuf>,
    /// Write the results pages and the highlights below this directory, the root of the repository
    #[arg(long, value_name = "DIR")]
    write_docs: Option<PathBuf>,
    /// Allow figures of several commits
    #[arg(long)]
    mixed: bool,
    #[command(flatten)]
    files: Files,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    arguments.files.check()?;
    let mut all: Vec<Report> = Vec::new();
    for file in &arguments.reports {
        all.extend(reports::read(file)?);
    }
    let commits = docs::commits(&all);
    ensure!(
        arguments.mixed || commits.len() <= 1,
        "these figures are of several commits ({}); measure again at one, or allow it with --mixed",
        commits.join(", ")
    );
    match &arguments.write_docs {
        Some(root) => {
            write_docs(root, &all)?;
            arguments.files.write(&all)?;
        }
        None => arguments.files.show(&all)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the results pages, then the highlights.
fn write_docs(root: &Path, reports: &[Report]) -> Result<()> {
    let directory = root.join("docs").join("results");
    fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    for page in experiments::pages() {
        let Some(text) = page.render(reports) else { continue };
        write(&directory.join(format!("{}.md", page.area)), &text)?;
    }
    match docs::highlights(&HIGHLIGHTS, reports) {
        Ok(table) => {
            let readme = root.join("README.md");
            let document = fs::read_to_string(&readme).with_context(|| format!("cannot read {}", readme.display()))?;
            let text = docs::between_markers(&document, &table);
            let text =
                text.with_context(|| format!("{} has no lines `figures: begin` and `figures: end`", readme.display()))?;
            write(&readme, &text)
        }
        Err(missing) => {
            let rows: String = missing.iter().map(|row| format!("\n  {row}")).collect();
            eprintln!(
                "dunlin: README.md is left as it is, since these rows are missing (build with --features peers,etcd):{rows}"
            );
            Ok(())
        }
    }
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    output::line(file.display())?;
    Ok(())
}
