//! A report on a terminal.

use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, LineStyle, Table, TableStyle};

use super::row::{Row, Verdict};
use super::{Report, human, sketch};

const COLUMNS: [&str; 8] = ["case", "metric", "ours", "min..max", "raw floor", "ratio", "paper", "target"];
/// Columns with figures.
const RIGHT_ALIGNED: [usize; 4] = [2, 3, 4, 5];

const RULE: LineStyle = LineStyle::none().fill('─').junction('─');
const STYLE: TableStyle = TableStyle::new().top_border(RULE).header_separator(RULE).bottom_border(RULE);

/// The report as a table, below a line about the machine. On a terminal it is coloured and wrapped to the terminal's
/// width.
pub fn render(report: &Report) -> String {
    let mut table = plain(&COLUMNS);
    let mut case_above = None;
    for row in &report.rows {
        let case = if case_above == Some(&row.case) { "" } else { row.case.as_str() };
        table.add_row(cells(case, row));
        case_above = Some(&row.case);
    }
    for column in RIGHT_ALIGNED {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let disturbance = report.disturbance().map_or_else(String::new, |note| format!("\n(!) {note}"));
    let notes: String = report.notes.iter().map(|note| format!("\n(!) {note}")).collect();
    let sketches = sketch::sketches(&report.plots);
    format!("{}\n{}{table}\n{sketches}{}{disturbance}{notes}", heading(report), misses(report), summary(report))
}

/// An empty table with these columns.
pub(super) fn plain(columns: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(columns.iter().map(|name| Cell::new(name).add_attribute(Attribute::Bold)));
    table
}

fn cells(case: &str, row: &Row) -> Vec<Cell> {
    let show = |value: Option<f64>| value.map_or_else(String::new, |value| human::figure(row.metric, value));
    let range = match (row.min, row.max) {
        (Some(min), Some(max)) if min != max => human::range(row.metric, row.value, min, max),
        _ => String::new(),
    };
    let paper = match &row.paper_setup {
        Some(setup) => format!("{} · {setup}", show(row.paper)),
        None => show(row.paper),
    };
    vec![
        Cell::new(case),
        Cell::new(row.metric.name()),
        Cell::new(show(Some(row.value))).add_attribute(Attribute::Bold),
        Cell::new(range),
        Cell::new(format!("{}{}", show(row.floor), if row.is_disturbed() { " (!)" } else { "" })),
        Cell::new(row.ratio().map_or_else(String::new, human::ratio)),
        Cell::new(paper),
        target_cell(row),
    ]
}

fn target_cell(row: &Row) -> Cell {
    let (Some(target), Some(verdict)) = (row.target, row.verdict()) else { return Cell::new("") };
    let bar = bar(row, target);
    match verdict {
        Verdict::Met => Cell::new(format!("{bar} met")).fg(Color::Green),
        Verdict::Missed => Cell::new(format!("{bar} MISSED")).fg(Color::Red),
    }
}

/// The target in words.
pub(super) fn bar(row: &Row, target: f64) -> String {
    let figure = |value| human::figure(row.metric, value);
    match row.not_beyond {
        Some(limit) => format!("{} to {}", figure(target.min(limit)), figure(target.max(limit))),
        None => format!("{} {}", row.metric.better().sign(), figure(target)),
    }
}

fn heading(report: &Report) -> String {
    let machine = &report.machine;
    format!(
        "{} · {} · {} cores of {} · {} · Linux {} · load {:.2} · commit {}{}",
        report.experiment,
        machine.date,
        machine.cores,
        machine.cpu,
        human::bytes(machine.mem as f64),
        machine.kernel,
        machine.load,
        report.commit,
        report.conditions.as_ref().map_or_else(String::new, |how| format!(" · {}", how.in_words()))
    )
}

/// The rows that miss their targets, which are listed first.
fn misses(report: &Report) -> String {
    let miss = |row: &Row| {
        let target = row.target.map_or_else(String::new, |target| bar(row, target));
        let (name, value) = (row.metric.name(), human::figure(row.metric, row.value));
        let limit = row.limit.as_ref().map_or_else(String::new, |limit| format!("; {limit}"));
        format!("MISSED: {}, {name}: {value}, target {target}{limit}\n", row.case)
    };
    report.missed().map(miss).collect()
}

fn summary(report: &Report) -> String {
    let with_target = report.rows.iter().filter(|row| row.target.is_some()).count();
    match (with_target, report.missed().count()) {
        (0, _) => "No targets for these rows.".into(),
        (all, 0) => format!("All {all} targets met."),
        (all, missed) => format!("{} of {all} targets met, {missed} missed.", all - missed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Spread;
    use crate::report::{Metric, PaperFigure, ReportBuilder, RowBuilder, Target};

    #[test]
    fn shows_every_column() {
        let mut builder = ReportBuilder::new("rpc-latency");
        let spread = Spread { median: 512.0, min: 498.0, max: 530.0 };
        let paper = PaperFigure { value: 2300.0, setup: "CX5".into(), source: "eRPC, Table 2".into() };
        builder.push(
            RowBuilder::new("shm 32 B", Metric::LatencyP50, spread)
                .floor(256.0)
                .paper(Some(paper))
                .target(Target::Absolute(600.0)),
        );
        let missed = RowBuilder::new("shm 32 B", Metric::LatencyP99, spread).limit("the scheduler's tick");
        builder.push(missed.target(Target::Absolute(100.0)));
        let text = render(&builder.finish());
        for part in ["512 ns", "498..530", "256 ns", "2.00x", "2.30 µs · CX5", "≤ 600 ns met", "≤ 100 ns MISSED"]
        {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(text.contains("1 of 2 targets met, 1 missed."));
        let (misses, rows) = text.split_once("case").unwrap();
        assert!(
            misses.contains("MISSED: shm 32 B, latency p99: 512 ns, target ≤ 100 ns; the scheduler's tick\n"),
            "{misses}"
        );
        assert_eq!(rows.matches("shm 32 B").count(), 1, "a repeated case is left blank");
    }
}
