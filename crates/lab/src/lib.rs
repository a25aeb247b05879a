//! What every experiment needs: processes on their cores, repeated runs beside a floor, measurements, and a report.
//!
//! It knows no experiment and no service. An experiment gets a [`Lab`], starts processes ([`peer`]) or simulations
//! ([`Trial`]), takes runs of each case, and adds rows to a [`report::Report`], which is shown as a table, a JSON file or
//! a page.
//!
//! | Module | What it holds |
//! |---|---|
//! | `lab` | the environment of one experiment; `lab/simulate.rs` runs cases in virtual time |
//! | `lab/cases.rs`, `lab/figures.rs` | an experiment as data: the cases as the product of axes, and the figures of each |
//! | `lab/selection.rs` | which cases are measured, how each was, and options that not every experiment can honour |
//! | [`peer`] | the processes of an experiment |
//! | [`measure`] | cores, clocks, memory, latencies, and figures beside their floors |
//! | [`report`] | rows with floors, papers, targets and provenance; tables, pages, plots and documents; comparisons |
//!
//! A program whose experiments start processes must call [`peer::serve`] if its first argument is [`peer::ARGUMENT`].
//! Start reading at [`Lab`].
#![forbid(unsafe_code)]

mod error;
mod glob;
mod lab;
pub mod measure;
pub mod peer;
pub mod report;

pub use error::LabError;
pub use glob::matches;
pub use lab::{Case, Cases, Figure, Lab, Rounds, Settings, Simulations, Trial, World, spread};
