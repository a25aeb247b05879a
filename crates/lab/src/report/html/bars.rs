//! One bar chart per metric: for each case ours, the floor and the paper, and a mark at the target.
//!
//! Horizontal positions are percentages and vertical ones pixels, so that a narrow screen shortens the bars but not the
//! text.

use std::fmt::Write;

use super::super::human;
use super::super::metric::Metric;
use super::super::row::Row;
use super::scale::Scale;
use super::{AXIS_PX, axis, escape};

const LABEL_PX: u32 = 20;
const OURS_PX: u32 = 18;
const OTHER_PX: u32 = 12;
const GAP_PX: u32 = 4;
const CASE_GAP_PX: u32 = 12;

/// The charts of all metrics except latency percentiles, which have their own.
pub(super) fn charts(rows: &[Row]) -> String {
    let mut metrics: Vec<Metric> = Vec::new();
    for row in rows {
        if !metrics.contains(&row.metric) && !super::percentiles::shows(row.metric) {
            metrics.push(row.metric);
        }
    }
    metrics.into_iter().map(|metric| chart(metric, rows)).collect()
}

fn chart(metric: Metric, rows: &[Row]) -> String {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.metric == metric).collect();
    let figures = rows.iter().flat_map(|row| [Some(row.value), row.max, row.floor, row.paper, row.target]).flatten();
    let scale = Scale::for_bars(figures);
    let (mut body, mut y) = (String::new(), AXIS_PX);
    for row in &rows {
        y = case(&mut body, row, scale, y) + CASE_GAP_PX;
    }
    let note = if scale.is_log() { ", logarithmic" } else { "" };
    let better = match metric.better() {
        super::super::Better::Higher => "more is better",
        super::super::Better::Lower => "less is better",
    };
    format!(
        "<figure>\n<figcaption>{}<small>{better}{note}</small></figcaption>\n\
         <svg role=\"img\" aria-label=\"{0}\" width=\"100%\" height=\"{y}\">\n{}{body}</svg>\n</figure>\n",
        metric.name(),
        axis(metric, scale, y)
    )
}

/// Draws one case from `y` on and returns where it ends.
fn case(body: &mut String, row: &Row, scale: Scale, y: u32) -> u32 {
    let top = y + LABEL_PX;
    let _ = writeln!(body, "<text class=\"label\" x=\"0\" y=\"{}\">{}</text>", y + LABEL_PX - 6, escape(&row.case));
    bar(body, "ours", scale.percent(row.value), (top, OURS_PX));
    whisker(body, row, scale, top);
    target(body, row, scale, top);
    let longest = row.max.map_or(row.value, |max| max.max(row.value));
    value(body, "ours", scale.percent(longest), (top, OURS_PX), &human::figure(row.metric, row.value));
    let mut bottom = top + OURS_PX;
    for (class, figure) in [("floor", row.floor), ("paper", row.paper)] {
        if let Some(figure) = figure {
            bottom += GAP_PX;
            bar(body, class, scale.percent(figure), (bottom, OTHER_PX));
            value(body, class, scale.percent(figure), (bottom, OTHER_PX), &human::figure(row.metric, figure));
            bottom += OTHER_PX;
        }
    }
    bottom
}

fn bar(body: &mut String, class: &str, percent: f64, (top, height): (u32, u32)) {
    let _ = writeln!(
        body,
        "<rect class=\"{class}\" x=\"0\" y=\"{top}\" width=\"{percent:.2}%\" height=\"{height}\" rx=\"2\"/>"
    );
}

/// Text after the end of a bar.
fn value(body: &mut String, class: &str, percent: f64, (top, height): (u32, u32), text: &str) {
    let baseline = top + height / 2 + 4;
    let _ = writeln!(body, "<text class=\"value {class}\" x=\"{percent:.2}%\" dx=\"8\" y=\"{baseline}\">{text}</text>");
}

/// A thin line from the lowest to the highest run across the bar.
fn whisker(body: &mut String, row: &Row, scale: Scale, top: u32) {
    let (Some(min), Some(max)) = (row.min, row.max) else { return };
    if min < max {
        let (from, to, middle) = (scale.percent(min), scale.percent(max), top + OURS_PX / 2);
        let _ = writeln!(
            body,
            "<line class=\"whisker\" x1=\"{from:.2}%\" x2=\"{to:.2}%\" y1=\"{middle}\" y2=\"{middle}\"/>"
        );
    }
}

fn target(body: &mut String, row: &Row, scale: Scale, top: u32) {
    if let Some(target) = row.target {
        let (x, from, to) = (scale.percent(target), top - 3, top + OURS_PX + 3);
        let _ = writeln!(body, "<line class=\"target\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"{from}\" y2=\"{to}\"/>");
    }
}
