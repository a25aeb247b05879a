//! The target of a row, stated as in the requirement, and resolved to one number when the report is finished.

use super::metric::Metric;
use super::row::Row;

/// A bar. The metric of its row determines which side is good.
#[derive(Debug, Clone, PartialEq)]
pub enum Target {
    /// This figure, in the unit of the metric.
    Absolute(f64),
    /// This many times the floor of the same row.
    FloorTimes(f64),
    /// The floor of the same row plus this much, in the unit of the metric.
    FloorPlus(f64),
    /// This many times the value of another case's row for the same metric.
    CaseTimes {
        /// The other case.
        case: String,
        /// The factor to reach.
        factor: f64,
    },
    /// All of these: the strictest counts. There is no target for the easier of two.
    All(Vec<Target>),
}

impl Target {
    /// The cases that it refers to.
    pub(crate) fn cases(&self) -> Vec<String> {
        match self {
            Target::Absolute(_) | Target::FloorTimes(_) | Target::FloorPlus(_) => Vec::new(),
            Target::CaseTimes { case, .. } => vec![case.clone()],
            Target::All(targets) => targets.iter().flat_map(Target::cases).collect(),
        }
    }

    /// The bar as a number, in the unit of the metric. `None` if it refers to something that was not measured.
    pub(super) fn resolve(&self, metric: Metric, floor: Option<f64>, rows: &[Row]) -> Option<f64> {
        match self {
            Target::Absolute(bar) => Some(*bar),
            Target::FloorTimes(factor) => floor.map(|floor| floor * factor),
            Target::FloorPlus(more) => floor.map(|floor| floor + more),
            Target::CaseTimes { case, factor } => {
                rows.iter().find(|row| row.metric == metric && row.case == *case).map(|row| row.value * factor)
            }
            Target::All(targets) => {
                let bars = targets.iter().filter_map(|target| target.resolve(metric, floor, rows));
                bars.reduce(|a, b| metric.better().stricter(a, b))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Spread;
    use crate::report::{ReportBuilder, RowBuilder};

    fn targets(build: impl FnOnce(&mut ReportBuilder)) -> Vec<Option<f64>> {
        let mut report = ReportBuilder::new("test");
        build(&mut report);
        report.finish().rows.iter().map(|row| row.target).collect()
    }

    fn row(case: &str, metric: Metric, value: f64) -> RowBuilder {
        RowBuilder::new(case, metric, Spread::single(value))
    }

    #[test]
    fn strictest_of_several_counts() {
        let both = || Target::All(vec![Target::Absolute(600.0), Target::FloorTimes(2.5)]);
        let resolved = targets(|report| {
            report.push(row("a", Metric::LatencyP50, 500.0).floor(200.0).target(both()));
            report.push(row("b", Metric::LatencyP50, 500.0).floor(300.0).target(both()));
            report.push(row("c", Metric::Rate, 500.0).floor(200.0).target(both()));
        });
        assert_eq!(resolved, [Some(500.0), Some(600.0), Some(600.0)]);
    }

    #[test]
    fn refers_to_floor_and_to_rows_that_come_later() {
        let resolved = targets(|report| {
            let five_times = Target::CaseTimes { case: "plain".into(), factor: 5.0 };
            report.push(row("batched", Metric::Rate, 9.0).target(five_times));
            report.push(row("plain", Metric::Rate, 2.0));
            report.push(row("udp", Metric::LatencyP50, 5.0).floor(4.0).target(Target::FloorPlus(0.5)));
        });
        assert_eq!(resolved, [Some(10.0), None, Some(4.5)]);
    }

    #[test]
    fn absent_when_what_it_refers_to_was_not_measured() {
        let resolved = targets(|report| {
            let other = Target::CaseTimes { case: "never".into(), factor: 1.0 };
            report.push(row("a", Metric::Rate, 1.0).target(Target::FloorTimes(1.0)));
            report.push(row("b", Metric::Rate, 1.0).target(other));
        });
        assert_eq!(resolved, [None, None]);
    }
}
