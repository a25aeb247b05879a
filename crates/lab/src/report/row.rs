//! One figure of a report, with everything it is compared with.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::metric::Metric;
use super::papers::PaperFigure;
use super::provenance::Provenance;
use super::target::Target;
use crate::LabError;
use crate::measure::Spread;

/// A finished row: one metric of one case. All figures are in the unit of the metric.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Row {
    /// The case, such as `shm B=3`.
    pub case: String,
    /// The quantity.
    pub metric: Metric,
    /// Median of the runs.
    pub value: f64,
    /// Lowest run.
    pub min: Option<f64>,
    /// Highest run.
    pub max: Option<f64>,
    /// The floor, measured with the bare transport in the same run: median.
    pub floor: Option<f64>,
    /// Lowest run of the floor.
    #[serde(default)]
    pub floor_min: Option<f64>,
    /// Highest run of the floor.
    #[serde(default)]
    pub floor_max: Option<f64>,
    /// Runs that were repeated because the floor showed that the machine was disturbed.
    #[serde(default)]
    pub repeated: u32,
    /// The paper's figure.
    pub paper: Option<f64>,
    /// The paper's hardware.
    pub paper_setup: Option<String>,
    /// The paper, and its table, figure or section; `None` in reports of earlier commits.
    #[serde(default)]
    pub paper_source: Option<String>,
    /// The bar that the value must reach.
    pub target: Option<f64>,
    /// The bar that the value must not exceed: if an experiment is to reproduce a paper's observation, much better is
    /// as wrong as much worse.
    #[serde(default)]
    pub not_beyond: Option<f64>,
    /// The place of the case on each axis of the experiment, by name; empty in reports of earlier commits.
    #[serde(default)]
    pub axes: BTreeMap<String, String>,
    /// What limits the figure: the reason, if the target is missed.
    #[serde(default)]
    pub limit: Option<String>,
    /// The case of another system that does the same work.
    #[serde(default)]
    pub rival_case: Option<String>,
    /// Its figure.
    #[serde(default)]
    pub rival: Option<f64>,
    /// How it was measured; `None` in reports of earlier commits.
    #[serde(default)]
    pub provenance: Option<Provenance>,
}

/// If a floor varies by more than this factor between the runs of a case, the machine was disturbed.
const FLOOR_RANGE_MAX: f64 = 2.0;

/// The row in the file: [`Row`] with the metric's unit and derived values.
#[derive(Serialize)]
struct FileRow<'a> {
    case: &'a str,
    metric: Metric,
    unit: &'static str,
    value: f64,
    min: Option<f64>,
    max: Option<f64>,
    floor: Option<f64>,
    floor_min: Option<f64>,
    floor_max: Option<f64>,
    repeated: u32,
    disturbed: bool,
    paper: Option<f64>,
    paper_setup: Option<&'a str>,
    paper_source: Option<&'a str>,
    target: Option<f64>,
    not_beyond: Option<f64>,
    axes: &'a BTreeMap<String, String>,
    limit: Option<&'a str>,
    rival_case: Option<&'a str>,
    rival: Option<f64>,
    provenance: Option<&'a Provenance>,
}

impl Serialize for Row {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        FileRow {
            case: &self.case,
            metric: self.metric,
            unit: self.metric.unit(),
            value: self.value,
            min: self.min,
            max: self.max,
            floor: self.floor,
            floor_min: self.floor_min,
            floor_max: self.floor_max,
            repeated: self.repeated,
            disturbed: self.is_disturbed(),
            paper: self.paper,
            paper_setup: self.paper_setup.as_deref(),
            paper_source: self.paper_source.as_deref(),
            target: self.target,
            not_beyond: self.not_beyond,
            axes: &self.axes,
            limit: self.limit.as_deref(),
            rival_case: self.rival_case.as_deref(),
            rival: self.rival,
            provenance: self.provenance.as_ref(),
        }
        .serialize(serializer)
    }
}

/// The result of comparing a value with its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// At least as good, and not beyond the bounds.
    Met,
    /// Worse, or beyond.
    Missed,
}

impl Row {
    /// Value divided by floor; `None` without a floor.
    pub fn ratio(&self) -> Option<f64> {
        self.floor.filter(|floor| *floor > 0.0).map(|floor| self.value / floor)
    }

    /// Whether the floor varied so much between the runs that other work must have used the machine: then neither
    /// figure nor ratio is reliable.
    pub fn is_disturbed(&self) -> bool {
        matches!((self.floor_min, self.floor_max), (Some(min), Some(max)) if max > min * FLOOR_RANGE_MAX)
    }

    /// Whether the target is met; `None` without a target.
    pub fn verdict(&self) -> Option<Verdict> {
        let better = self.metric.better();
        let reached = better.reaches(self.value, self.target?);
        let beyond = self.not_beyond.is_some_and(|limit| !better.reaches(limit, self.value));
        Some(if reached && !beyond { Verdict::Met } else { Verdict::Missed })
    }
}

/// A row under construction: its target may refer to rows that are not measured yet.
#[derive(Debug, Clone)]
pub struct RowBuilder {
    row: Row,
    target: Option<Target>,
    /// The bounds, as factors of the paper's figure.
    like_paper: Option<RangeInclusive<f64>>,
}

impl RowBuilder {
    /// A row with a measurement and no comparison.
    pub fn new(case: impl Into<String>, metric: Metric, spread: Spread) -> Self {
        let row = Row {
            case: case.into(),
            metric,
            value: spread.median,
            min: Some(spread.min),
            max: Some(spread.max),
            floor: None,
            floor_min: None,
            floor_max: None,
            repeated: 0,
            paper: None,
            paper_setup: None,
            paper_source: None,
            target: None,
            not_beyond: None,
            axes: BTreeMap::new(),
            limit: None,
            rival_case: None,
            rival: None,
            provenance: None,
        };
        RowBuilder { row, target: None, like_paper: None }
    }

    /// Adds the floor, measured with the bare transport.
    pub fn floor(mut self, floor: impl Into<Spread>) -> Self {
        let Spread { median, min, max } = floor.into();
        (self.row.floor, self.row.floor_min, self.row.floor_max) = (Some(median), Some(min), Some(max));
        self
    }

    /// Sets the number of repeated runs.
    pub fn repeated(mut self, runs: u32) -> Self {
        self.row.repeated = runs;
        self
    }

    /// Adds the paper's figure, if it has one for this case.
    pub fn paper(mut self, figure: Option<PaperFigure>) -> Self {
        if let Some(PaperFigure { value, setup, source }) = figure {
            (self.row.paper, self.row.paper_setup, self.row.paper_source) = (Some(value), Some(setup), Some(source));
        }
        self
    }

    /// Adds the place of the case on each axis.
    pub fn axes(mut self, axes: &[(&'static str, String)]) -> Self {
        self.row.axes = axes.iter().map(|(axis, label)| ((*axis).to_owned(), label.clone())).collect();
        self
    }

    /// The place of the case on an axis.
    pub(crate) fn axis(&self, name: &str) -> Option<&str> {
        self.row.axes.get(name).map(String::as_str)
    }

    /// Says what limits the figure, in one line: the reason that is shown if the target is missed.
    pub fn limit(mut self, limit: impl Into<String>) -> Self {
        self.row.limit = Some(limit.into());
        self
    }

    /// Names the case of another system that does the same work. The figure of its row for the same metric stands
    /// beside this one.
    pub fn rival(mut self, case: impl Into<String>) -> Self {
        self.row.rival_case = Some(case.into());
        self
    }

    /// Adds how it was measured.
    pub(crate) fn provenance(mut self, provenance: Provenance) -> Self {
        self.row.provenance = Some(provenance);
        self
    }

    /// The case.
    pub fn case(&self) -> &str {
        &self.row.case
    }

    /// The metric.
    pub fn metric(&self) -> Metric {
        self.row.metric
    }

    /// A row of a case in virtual time: the median of its seeds, and their range if there are several.
    ///
    /// # Errors
    /// [`LabError::NoSamples`] if there was no run.
    pub fn of_seeds(case: impl Into<String>, metric: Metric, values: &[f64]) -> Result<Self, LabError> {
        let spread = Spread::of(values).ok_or(LabError::NoSamples { what: "a case" })?;
        let mut builder = RowBuilder::new(case, metric, spread);
        if values.len() == 1 {
            (builder.row.min, builder.row.max) = (None, None);
        }
        Ok(builder)
    }

    /// Adds the bounds within which the row reproduces the paper's observation.
    pub fn within(mut self, bounds: RangeInclusive<f64>) -> Self {
        let better = self.row.metric.better();
        let (low, high) = bounds.into_inner();
        self.target = Some(Target::Absolute(better.easier(low, high)));
        self.row.not_beyond = Some(better.stricter(low, high));
        self
    }

    /// Adds the bounds within which the row reproduces the paper's figure, as factors of it. Without a paper's figure
    /// there are none.
    pub fn like_paper(mut self, factors: RangeInclusive<f64>) -> Self {
        self.like_paper = Some(factors);
        self
    }

    /// Adds a target.
    pub fn target(mut self, target: Target) -> Self {
        self.target = Some(target);
        self
    }
}

/// Turns drafts into rows, now that everything a target may refer to is known.
pub(super) fn finish(drafts: Vec<RowBuilder>) -> Vec<Row> {
    let bounded = drafts.into_iter().map(|mut draft| match (draft.like_paper.take(), draft.row.paper) {
        (Some(factors), Some(paper)) => draft.within(factors.start() * paper..=factors.end() * paper),
        _ => draft,
    });
    let (mut rows, targets): (Vec<_>, Vec<_>) = bounded.map(|draft| (draft.row, draft.target)).unzip();
    let bars: Vec<Option<f64>> =
        rows.iter().zip(&targets).map(|(row, target)| target.as_ref()?.resolve(row.metric, row.floor, &rows)).collect();
    // No row is its own rival.
    rows.iter_mut().for_each(|row| row.rival_case = row.rival_case.take().filter(|case| *case != row.case));
    let rival = |row: &Row| {
        let theirs =
            rows.iter().find(|other| other.metric == row.metric && Some(&other.case) == row.rival_case.as_ref());
        theirs.map(|row| row.value)
    };
    let rivals: Vec<Option<f64>> = rows.iter().map(rival).collect();
    for ((row, bar), rival) in rows.iter_mut().zip(bars).zip(rivals) {
        (row.target, row.rival) = (bar, rival);
    }
    rows
}
