//! A report as one self-contained page: no scripts, no fonts, no external resources. It follows the reader's light or
//! dark theme and adapts to a phone.

mod bars;
mod lines;
mod percentiles;
mod scale;

use std::fmt::Write;

use super::row::{Row, Verdict};
use super::{Conditions, Metric, Report, human};

const STYLE: &str = include_str!("style.css");

/// The page of one or several reports.
pub fn page(reports: &[Report]) -> String {
    let title = match reports {
        [report] => format!("Dunlin · {}", report.experiment),
        _ => "Dunlin · benchmarks".to_owned(),
    };
    let sections: String = reports.iter().map(section).collect();
    let title = escape(&title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n{sections}</main>\n</body>\n</html>\n"
    )
}

fn section(report: &Report) -> String {
    let mut html = String::new();
    let _ = write!(
        html,
        "<section>\n<h1>{}</h1>\n{}{}{}",
        escape(&report.experiment),
        facts(report),
        misses(report),
        LEGEND
    );
    html.push_str("<div class=\"charts\">\n");
    html.push_str(&percentiles::charts(&report.rows));
    html.push_str(&bars::charts(&report.rows));
    html.push_str(&lines::charts(&report.plots));
    html.push_str("</div>\n");
    html.push_str(&table(&report.rows));
    html.push_str("</section>\n");
    html
}

const LEGEND: &str = "<p class=\"legend\"><span class=\"key ours\"></span>Dunlin, median; whisker lowest to highest run\
    <span class=\"key floor\"></span>raw floor: the bare transport in the same run\
    <span class=\"key paper\"></span>the paper, on its hardware<span class=\"key target\"></span>target</p>\n";

/// Shown beside a disturbed floor.
const DISTURBED: &str = " <span class=\"chip missed\">disturbed</span>";

fn facts(report: &Report) -> String {
    let machine = &report.machine;
    let met = report.rows.iter().filter(|row| row.verdict() == Some(Verdict::Met)).count();
    let missed = report.missed().count();
    let mut chips = String::new();
    if met > 0 {
        let _ = write!(chips, "<span class=\"chip met\">{met} met</span>");
    }
    if missed > 0 {
        let _ = write!(chips, "<span class=\"chip missed\">{missed} missed</span>");
    }
    let notes = report.disturbance().into_iter().chain(report.notes.iter().cloned());
    let notes: String = notes.map(|note| format!("<p>{}</p>\n", escape(&note))).collect();
    let how = report.conditions.as_ref().map_or_else(|| "unknown runs".to_owned(), Conditions::in_words);
    let facts = [
        how,
        machine.date.clone(),
        format!("{} cores of {}", machine.cores, machine.cpu),
        human::bytes(machine.mem as f64),
        format!("{}, Linux {}", machine.os, machine.kernel),
        format!("load {:.2}", machine.load),
        machine.rust.clone(),
        format!("commit {}", report.commit),
    ];
    let list: String = facts.iter().map(|fact| format!("<li>{}</li>", escape(fact))).collect();
    format!("<p class=\"chips\">{chips}</p>\n<ul class=\"facts\">{list}</ul>\n{notes}")
}

/// Height of an axis.
const AXIS_PX: u32 = 20;

/// The marks of a chart's axis, as lines with their values at the top.
fn axis(metric: Metric, scale: scale::Scale, height: u32) -> String {
    let mut lines = String::new();
    for tick in scale.ticks() {
        let x = scale.percent(tick);
        let text = human::figure(metric, tick);
        // The value is to the right of its line, so that the first one stays within the edge.
        let _ = writeln!(
            lines,
            "<line class=\"grid\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"0\" y2=\"{height}\"/>\
             <text class=\"tick\" x=\"{x:.2}%\" dx=\"4\" y=\"12\">{text}</text>"
        );
    }
    lines
}

/// The rows that miss their targets, with the reasons.
fn misses(report: &Report) -> String {
    let miss = |row: &Row| {
        let target = row.target.map_or_else(String::new, |target| super::table::bar(row, target));
        let limit = row.limit.as_ref().map_or_else(String::new, |limit| format!(": {}", escape(limit)));
        let (metric, value) = (row.metric.name(), human::figure(row.metric, row.value));
        format!("<li>{}, {metric}: {value}, target {target}{limit}</li>\n", escape(&row.case))
    };
    let list: String = report.missed().map(miss).collect();
    if list.is_empty() { list } else { format!("<ul class=\"misses\">\n{list}</ul>\n") }
}

fn table(rows: &[Row]) -> String {
    let head: String = ["Case", "Metric", "Ours", "Runs", "Raw floor", "Ratio", "Rival", "Paper", "Target"]
        .iter()
        .map(|name| format!("<th scope=\"col\">{name}</th>"))
        .collect();
    let body: String = rows.iter().map(table_row).collect();
    format!("<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n")
}

fn table_row(row: &Row) -> String {
    let show = |value: Option<f64>| value.map_or_else(String::new, |value| human::figure(row.metric, value));
    let range = match (row.min, row.max) {
        (Some(min), Some(max)) if min != max => human::range(row.metric, row.value, min, max),
        _ => String::new(),
    };
    let paper = match &row.paper_setup {
        Some(setup) => format!("{}<small>{}</small>", show(row.paper), escape(setup)),
        None => show(row.paper),
    };
    let target = match (row.target, row.verdict()) {
        (Some(target), Some(verdict)) => {
            let (class, word) = match verdict {
                Verdict::Met => ("met", "met"),
                Verdict::Missed => ("missed", "missed"),
            };
            let bar = super::table::bar(row, target);
            format!("{bar} <span class=\"chip {class}\">{word}</span>")
        }
        _ => String::new(),
    };
    let rival = match (row.rival, &row.rival_case) {
        (Some(value), Some(case)) => format!("{}<small>{}</small>", show(Some(value)), escape(case)),
        _ => String::new(),
    };
    let ratio = row.ratio().map_or_else(String::new, human::ratio);
    // A narrow screen shows the label beside the cell, since the table head is hidden.
    let cells = [
        ("Ours", "ours", show(Some(row.value))),
        ("Runs", "", range),
        ("Raw floor", "", show(row.floor) + if row.is_disturbed() { DISTURBED } else { "" }),
        ("Ratio", "", ratio),
        ("Rival", "", rival),
        ("Paper", "", paper),
        ("Target", "", target),
    ];
    let cells: String = cells.iter().map(|(label, class, text)| cell(label, class, text)).collect();
    let metric = cell("Metric", "", row.metric.name());
    format!("<tr><th scope=\"row\">{}</th>{metric}{cells}</tr>\n", escape(&row.case))
}

/// A cell of the body. An empty cell has no content, so that a narrow screen can leave it out.
fn cell(label: &str, class: &str, html: &str) -> String {
    let content = if html.is_empty() { String::new() } else { format!("<span>{html}</span>") };
    format!("<td class=\"{class}\" data-label=\"{label}\">{content}</td>")
}

/// Text as HTML text or attribute.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Spread;
    use crate::report::{Metric, PaperFigure, ReportBuilder, RowBuilder, Target};

    fn report() -> Report {
        let mut builder = ReportBuilder::new("demo");
        let paper = PaperFigure { value: 2300.0, setup: "CX5 <40 GbE>".into(), source: "eRPC, Table 2".into() };
        for (case, scale) in [("shm & co", 1.0), ("udp", 10.0)] {
            for (metric, ns) in
                [(Metric::LatencyP50, 500.0), (Metric::LatencyP99, 900.0), (Metric::LatencyP999, 14_000.0)]
            {
                builder.push(
                    RowBuilder::new(case, metric, Spread::single(ns * scale))
                        .floor(ns / 2.0)
                        .paper(Some(paper.clone())),
                );
            }
            let rate = Spread { median: 1e7 / scale, min: 9e6 / scale, max: 1.1e7 / scale };
            let row = RowBuilder::new(case, Metric::Rate, rate).floor(6e7).rival("shm & co");
            builder.push(row.limit("one <core>").target(Target::Absolute(5e6)));
        }
        builder.finish()
    }

    #[test]
    fn is_self_contained_and_escaped() {
        let page = page(&[report()]);
        for outside in ["http", "<script", "@import", "url(", "src="] {
            assert!(!page.contains(outside), "the page refers to something outside: {outside}");
        }
        assert!(page.contains("shm &amp; co") && !page.contains("shm & co"));
        assert!(page.contains("CX5 &lt;40 GbE&gt;"));
        let miss = page.find("<li>udp, rate: 1.00 M RPC/s, target ≥ 5.00 M RPC/s: one &lt;core&gt;</li>").unwrap();
        assert!(miss < page.find("<svg").unwrap(), "misses come first");
        assert!(page.contains("10.0 M RPC/s<small>shm &amp; co</small>"), "the rival is beside ours");
    }

    #[test]
    fn is_well_formed() {
        let page = page(&[report(), report()]);
        for tag in ["svg", "section", "table", "figure", "text", "g", "div", "p", "ul", "li", "tr", "td", "th", "span"]
        {
            let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
            let closed = page.matches(&format!("</{tag}>")).count();
            assert_eq!(opened, closed, "{tag}");
        }
        assert!(!page.contains("NaN") && !page.contains("inf%"));
    }
}
