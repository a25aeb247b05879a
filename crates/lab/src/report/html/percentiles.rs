//! One chart of all latencies, on a logarithmic axis: for each case a line from the median over the 99th to the 99.9th
//! percentile, those of the floor beneath it, and a mark at the paper's median.

use std::fmt::Write;

use super::super::human;
use super::super::metric::Metric;
use super::super::row::Row;
use super::scale::Scale;
use super::{AXIS_PX, axis, escape};

const PERCENTILES: [Metric; 3] = [Metric::LatencyP50, Metric::LatencyP99, Metric::LatencyP999];
const LABEL_PX: u32 = 20;
const FIGURES_PX: u32 = 18;
const OURS_PX: u32 = 20;
const OTHER_PX: u32 = 18;
const CASE_GAP_PX: u32 = 12;

/// Whether this chart has rows of this metric.
pub(super) fn shows(metric: Metric) -> bool {
    PERCENTILES.contains(&metric)
}

/// The chart, or nothing if no latency was measured.
pub(super) fn charts(rows: &[Row]) -> String {
    let rows: Vec<&Row> = rows.iter().filter(|row| shows(row.metric)).collect();
    if rows.is_empty() {
        return String::new();
    }
    let figures = rows.iter().flat_map(|row| [Some(row.value), row.floor, row.paper, row.target]).flatten();
    let scale = Scale::for_dots(figures);
    let mut cases: Vec<&str> = Vec::new();
    for row in &rows {
        if !cases.contains(&row.case.as_str()) {
            cases.push(&row.case);
        }
    }
    let (mut body, mut y) = (String::new(), AXIS_PX);
    for case_name in cases {
        let of_case: Vec<&Row> = rows.iter().copied().filter(|row| row.case == case_name).collect();
        y = case(&mut body, case_name, &of_case, scale, y) + CASE_GAP_PX;
    }
    format!(
        "<figure>\n<figcaption>latency<small>p50 · p99 · p99.9, less is better, logarithmic</small></figcaption>\n\
         <svg role=\"img\" aria-label=\"latency percentiles\" width=\"100%\" height=\"{y}\">\n{}{body}</svg>\n</figure>\n",
        axis(Metric::LatencyP50, scale, y)
    )
}

/// Draws one case from `y` on and returns where it ends.
fn case(body: &mut String, name: &str, rows: &[&Row], scale: Scale, y: u32) -> u32 {
    let figures: Vec<String> = rows.iter().map(|row| human::figure(row.metric, row.value)).collect();
    let _ = writeln!(
        body,
        "<text class=\"label\" x=\"0\" y=\"{}\">{}</text><text class=\"value ours\" x=\"0\" y=\"{}\">{}</text>",
        y + LABEL_PX - 6,
        escape(name),
        y + LABEL_PX + FIGURES_PX - 6,
        figures.join(" · ")
    );
    let mut top = y + LABEL_PX + FIGURES_PX;
    let middle = top + OURS_PX / 2;
    for target in rows.iter().filter_map(|row| row.target) {
        let (x, from, to) = (scale.percent(target), middle - 9, middle + 9);
        let _ = writeln!(body, "<line class=\"target\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"{from}\" y2=\"{to}\"/>");
    }
    let values: Vec<f64> = rows.iter().map(|row| row.value).collect();
    dots(body, "ours", &values, scale, middle);
    top += OURS_PX;
    let floors: Vec<f64> = rows.iter().filter_map(|row| row.floor).collect();
    let papers: Vec<f64> = rows.iter().filter_map(|row| row.paper).collect();
    for (class, figures) in [("floor", floors), ("paper", papers)] {
        if let Some(first) = figures.first() {
            let y = top + OTHER_PX / 2;
            let right = dots(body, class, &figures, scale, y);
            let (text, baseline) = (human::figure(Metric::LatencyP50, *first), y + 4);
            let _ = writeln!(
                body,
                "<text class=\"value {class}\" x=\"{right:.2}%\" dx=\"10\" y=\"{baseline}\">{text}</text>"
            );
            top += OTHER_PX;
        }
    }
    top
}

/// A line through the figures and a dot at each. Returns where it ends, in percent.
fn dots(body: &mut String, class: &str, figures: &[f64], scale: Scale, y: u32) -> f64 {
    let positions: Vec<f64> = figures.iter().map(|figure| scale.percent(*figure)).collect();
    let (left, right) = positions.iter().fold((100.0, 0.0), |(l, r): (f64, f64), x| (l.min(*x), r.max(*x)));
    let _ = writeln!(body, "<line class=\"span {class}\" x1=\"{left:.2}%\" x2=\"{right:.2}%\" y1=\"{y}\" y2=\"{y}\"/>");
    for x in &positions {
        let _ = writeln!(body, "<circle class=\"{class}\" cx=\"{x:.2}%\" cy=\"{y}\" r=\"4\"/>");
    }
    right
}
