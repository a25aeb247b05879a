//! Two sets of reports beside each other: what changed by more than the runs differ among themselves.

use comfy_table::{Cell, CellAlignment, Color};
use serde::Serialize;

use super::metric::{Better, Metric};
use super::row::Row;
use super::{Report, human, table};

/// How a figure changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// All new runs are better than all old ones; in virtual time with one seed, the figure is.
    Better,
    /// All new runs are worse than all old ones.
    Worse,
    /// Some runs of each overlap with those of the other.
    WithinSpread,
    /// One side is a single run in real time, which says nothing about the spread.
    Unknown,
}

/// A row of both sets.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    /// The experiment.
    pub experiment: String,
    /// The case.
    pub case: String,
    /// The metric of the figures.
    pub metric: Metric,
    /// The old median.
    pub old: f64,
    /// The new median.
    pub new: f64,
    /// The new median over the old; `None` if that is zero.
    pub ratio: Option<f64>,
    /// The new floor over the old: whether the machine changed.
    pub floor_ratio: Option<f64>,
    /// The verdict.
    pub change: Change,
}

/// The result of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Rows of both.
    pub rows: Vec<Compared>,
    /// Rows that only the new reports have.
    pub added: usize,
    /// What else differs between the two: commits, machines, conditions.
    pub differences: Vec<String>,
}

/// What identifies a row.
fn key<'a>(report: &'a Report, row: &'a Row) -> (&'a str, &'a str, Metric) {
    (&report.experiment, &row.case, row.metric)
}

fn rows_of(reports: &[Report]) -> impl DoubleEndedIterator<Item = (&Report, &Row)> {
    reports.iter().flat_map(|report| report.rows.iter().map(move |row| (report, row)))
}

impl Comparison {
    /// Compares the rows that both have. Of several old rows with one name the last counts.
    pub fn of(old: &[Report], new: &[Report]) -> Self {
        let (mut rows, mut added, mut differences) = (Vec::new(), 0, Vec::new());
        for (report, row) in rows_of(new) {
            match rows_of(old).rfind(|(of, it)| key(of, it) == key(report, row)) {
                Some((of, before)) => {
                    for difference in differing(of, report) {
                        if !differences.contains(&difference) {
                            differences.push(difference);
                        }
                    }
                    rows.push(Compared::of(&report.experiment, before, row));
                }
                None => added += 1,
            }
        }
        Comparison { rows, added, differences }
    }

    /// The rows that became worse.
    pub fn worse(&self) -> impl Iterator<Item = &Compared> {
        self.rows.iter().filter(|row| row.change == Change::Worse)
    }

    /// The comparison on a terminal, changes first.
    pub fn render(&self) -> String {
        let mut table = table::plain(&["experiment", "case", "metric", "old", "new", "change", "floor", "verdict"]);
        let rank = |row: &&Compared| match row.change {
            Change::Worse => 0,
            Change::Better => 1,
            Change::Unknown => 2,
            Change::WithinSpread => 3,
        };
        let mut rows: Vec<&Compared> = self.rows.iter().collect();
        rows.sort_by_key(rank);
        for row in rows {
            let percent =
                |ratio: Option<f64>| ratio.map_or_else(String::new, |ratio| format!("{:+.1} %", (ratio - 1.0) * 100.0));
            let (word, colour) = match row.change {
                Change::Worse => ("WORSE", Some(Color::Red)),
                Change::Better => ("better", Some(Color::Green)),
                Change::WithinSpread => ("within the spread", None),
                Change::Unknown => ("one run: unknown", None),
            };
            let verdict = Cell::new(word);
            let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
            table.add_row(vec![
                Cell::new(&row.experiment),
                Cell::new(&row.case),
                Cell::new(row.metric.name()),
                right(human::figure(row.metric, row.old)),
                right(human::figure(row.metric, row.new)),
                right(percent(row.ratio)),
                right(percent(row.floor_ratio)),
                colour.map_or(verdict.clone(), |colour| verdict.fg(colour)),
            ]);
        }
        let count = |change| self.rows.iter().filter(|row| row.change == change).count();
        let differences: String = self.differences.iter().map(|it| format!("(!) {it}\n")).collect();
        let added = if self.added > 0 { format!(" {} rows have no old one.", self.added) } else { String::new() };
        format!(
            "{differences}{table}\n{} worse, {} better, {} within the spread, {} unknown.{added}",
            count(Change::Worse),
            count(Change::Better),
            count(Change::WithinSpread),
            count(Change::Unknown)
        )
    }
}

impl Compared {
    fn of(experiment: &str, old: &Row, new: &Row) -> Self {
        let ratio = |new: f64, old: f64| (old != 0.0).then(|| new / old);
        Compared {
            experiment: experiment.to_owned(),
            case: new.case.clone(),
            metric: new.metric,
            old: old.value,
            new: new.value,
            ratio: ratio(new.value, old.value),
            floor_ratio: old.floor.zip(new.floor).and_then(|(old, new)| ratio(new, old)),
            change: change(old, new),
        }
    }
}

fn change(old: &Row, new: &Row) -> Change {
    let better = new.metric.better();
    let is_better = |a: f64, b: f64| a != b && better.reaches(a, b);
    // Equal figures have not changed, however few runs there were.
    if old.value == new.value {
        return Change::WithinSpread;
    }
    if [old, new].into_iter().any(|row| row.min.is_some() && runs(row) == Some(1)) {
        return Change::Unknown;
    }
    let (old_best, old_worst) = ends(old, better);
    let (new_best, new_worst) = ends(new, better);
    if is_better(old_worst, new_best) {
        Change::Worse
    } else if is_better(new_worst, old_best) {
        Change::Better
    } else {
        Change::WithinSpread
    }
}

/// Runs behind a row. A report of an earlier commit does not say so, but a range of nothing is one run.
fn runs(row: &Row) -> Option<u32> {
    match &row.provenance {
        Some(provenance) => Some(provenance.runs),
        None => (row.min == row.max).then_some(1),
    }
}

/// The best and the worst run.
fn ends(row: &Row, better: Better) -> (f64, f64) {
    let (min, max) = (row.min.unwrap_or(row.value), row.max.unwrap_or(row.value));
    (better.stricter(min, max), better.easier(min, max))
}

/// What else differs between two reports.
fn differing(old: &Report, new: &Report) -> Vec<String> {
    let said = |what: &str, old: &str, new: &str| (old != new).then(|| format!("{what}: {old} then, {new} now."));
    let how = |report: &Report| report.conditions.as_ref().map_or_else(|| "unknown".into(), |it| it.in_words());
    let machine = |report: &Report| format!("{} cores of {}", report.machine.cores, report.machine.cpu);
    [
        said("Commit", &old.commit, &new.commit),
        said("Machine", &machine(old), &machine(new)),
        said("Kernel", &old.machine.kernel, &new.machine.kernel),
        said("Conditions", &how(old), &how(new)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Spread;
    use crate::report::{ReportBuilder, RowBuilder};

    fn report(rows: Vec<RowBuilder>) -> Report {
        let mut builder = ReportBuilder::new("rpc-rate");
        rows.into_iter().for_each(|row| builder.push(row));
        builder.finish()
    }

    fn row(case: &str, metric: Metric, (min, median, max): (f64, f64, f64)) -> RowBuilder {
        RowBuilder::new(case, metric, Spread { median, min, max })
    }

    fn change_of(metric: Metric, old: (f64, f64, f64), new: (f64, f64, f64)) -> Change {
        let compared = Comparison::of(&[report(vec![row("a", metric, old)])], &[report(vec![row("a", metric, new)])]);
        compared.rows[0].change
    }

    #[test]
    fn ranges_that_overlap_are_no_change() {
        let old = (9.0, 10.0, 11.0);
        assert_eq!(change_of(Metric::Rate, old, (10.9, 12.0, 13.0)), Change::WithinSpread);
        assert_eq!(change_of(Metric::Rate, old, (11.0, 12.0, 13.0)), Change::WithinSpread);
        assert_eq!(change_of(Metric::Rate, old, (11.1, 12.0, 13.0)), Change::Better);
        assert_eq!(change_of(Metric::Rate, old, (7.0, 8.0, 8.9)), Change::Worse);
        assert_eq!(change_of(Metric::LatencyP50, old, (11.1, 12.0, 13.0)), Change::Worse);
        assert_eq!(change_of(Metric::LatencyP50, old, (7.0, 8.0, 8.9)), Change::Better);
        assert_eq!(change_of(Metric::Rate, old, old), Change::WithinSpread);
    }

    #[test]
    fn one_run_has_no_spread_but_one_seed_is_exact() {
        assert_eq!(change_of(Metric::Rate, (10.0, 10.0, 10.0), (7.0, 8.0, 9.0)), Change::Unknown);
        assert_eq!(change_of(Metric::Rate, (7.0, 8.0, 9.0), (10.0, 10.0, 10.0)), Change::Unknown);
        assert_eq!(change_of(Metric::Rate, (10.0, 10.0, 10.0), (10.0, 10.0, 10.0)), Change::WithinSpread);
        let seed = |value| report(vec![RowBuilder::of_seeds("a", Metric::Rate, &[value]).unwrap()]);
        let change = |old, new| Comparison::of(&[seed(old)], &[seed(new)]).rows[0].change;
        assert_eq!((change(10.0, 9.9), change(10.0, 10.0)), (Change::Worse, Change::WithinSpread));
    }

    #[test]
    fn worse_rows_come_first_and_other_differences_are_told() {
        let old = report(vec![
            row("same", Metric::Rate, (9.0, 10.0, 11.0)),
            row("slower", Metric::Rate, (9.0, 10.0, 11.0)).floor(20.0),
            row("gone", Metric::Rate, (1.0, 1.0, 1.0)),
        ]);
        let mut new = report(vec![
            row("same", Metric::Rate, (9.0, 10.1, 11.0)),
            row("slower", Metric::Rate, (4.0, 5.0, 6.0)).floor(21.0),
            row("added", Metric::Rate, (1.0, 1.0, 1.0)),
        ]);
        new.commit = "another".into();
        let compared = Comparison::of(&[old], &[new]);
        assert_eq!((compared.rows.len(), compared.added, compared.worse().count()), (2, 1, 1));
        let text = compared.render();
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} is not in\n{text}"));
        assert!(at("Commit: ") < at("slower") && at("slower") < at("same"), "{text}");
        for part in ["-50.0 %", "+5.0 %", "WORSE", "1 worse, 0 better, 1 within the spread, 0 unknown. 1 rows have"] {
            at(part);
        }
    }
}
