//! Reports as documents: a page of results for each area, and a few highlights between two markers of another document.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::metric::Metric;
use super::row::{Row, Verdict};
use super::{Report, human, table};

/// A page: the experiments of one area.
#[derive(Debug, Clone)]
pub struct Page<'a> {
    /// The name of the area.
    pub area: &'a str,
    /// Each experiment with what it measures.
    pub experiments: Vec<(&'a str, &'a str)>,
}

/// A figure for the first page of the documentation, beside a rival's.
#[derive(Debug, Clone, Copy)]
pub struct Highlight {
    /// The experiment.
    pub experiment: &'static str,
    /// The metric.
    pub metric: Metric,
    /// What the row says.
    pub what: &'static str,
    /// The case.
    pub case: &'static str,
    /// The rival's case, which begins with the rival's name.
    pub rival: &'static str,
}

/// The lines between which highlights stand.
const MARKERS: [&str; 2] = ["<!-- figures: begin -->\n", "<!-- figures: end -->"];
/// Width of text.
const COLUMNS: usize = 120;

/// The commits of some reports.
pub fn commits(reports: &[Report]) -> Vec<&str> {
    let mut commits: Vec<&str> = Vec::new();
    for report in reports {
        if !commits.contains(&report.commit.as_str()) {
            commits.push(&report.commit);
        }
    }
    commits
}

impl Page<'_> {
    /// The page in Markdown, with missed targets first; `None` if no report is of this area.
    pub fn render(&self, reports: &[Report]) -> Option<String> {
        let of_area: Vec<(&Report, &str)> = self
            .experiments
            .iter()
            .flat_map(|(name, about)| {
                reports.iter().filter(move |it| it.experiment == *name).map(move |it| (it, *about))
            })
            .collect();
        let rows = || of_area.iter().flat_map(|(report, _)| report.rows.iter().map(move |row| (*report, row)));
        let all: Vec<&Report> = of_area.iter().map(|(report, _)| *report).collect();
        if all.is_empty() {
            return None;
        }
        let mut text = format!(
            "# Results: {}\n\n{}\n\n{}\n\n",
            self.area,
            wrapped(
                "Written by `dunlin bench report --write-docs`: do not edit. [How figures are taken, and notes on single \
                 experiments](../performance.md)"
            ),
            wrapped(&setting(&all))
        );
        let absent = self.experiments.iter().filter(|(name, _)| all.iter().all(|report| report.experiment != *name));
        let absent: Vec<&str> = absent.map(|(name, _)| *name).collect();
        if !absent.is_empty() {
            let _ = write!(text, "{}\n\n", wrapped(&format!("Not measured this time: {}.", absent.join(", "))));
        }
        text += &misses(rows());
        for (report, about) in of_area {
            let _ = write!(text, "\n## {}\n\n{}\n", report.experiment, wrapped(&sentence(about)));
            if let Some(how) = &report.conditions {
                let _ = write!(text, "\n{}\n", wrapped(&format!("{}.", how.in_words())));
            }
            for note in report.disturbance().iter().chain(&report.notes) {
                let _ = write!(text, "\n{}\n", wrapped(note));
            }
            text +=
                "\n| Case | Metric | Measured (lowest to highest) | Floor | of the floor | Rival | Target | Paper |\n";
            text += "|---|---|---|---|---|---|---|---|\n";
            for row in &report.rows {
                line(&mut text, &cells(row));
            }
        }
        Some(text)
    }
}

/// The table of highlights.
///
/// # Errors
/// The rows that no report has.
pub fn highlights(highlights: &[Highlight], reports: &[Report]) -> Result<String, Vec<String>> {
    let find = |experiment: &str, case: &str, metric: Metric| {
        let mut rows = reports.iter().filter(|report| report.experiment == experiment).flat_map(|report| &report.rows);
        let row = rows.rfind(|row| row.case == case && row.metric == metric);
        row.ok_or_else(|| format!("{experiment}, {case}, {}", metric.name()))
    };
    let (mut text, mut missing) = (String::new(), Vec::new());
    line(&mut text, &["What", "Dunlin", "Floor", "Rival", "Target"].map(str::to_owned));
    text += "|---|---|---|---|---|\n";
    for Highlight { experiment, metric, what, case, rival } in highlights {
        match (find(experiment, case, *metric), find(experiment, rival, *metric)) {
            (Ok(ours), Ok(theirs)) => {
                let name = rival.split([' ', ',']).next().unwrap_or(rival);
                let rival = format!("{} ({name})", human::figure(*metric, theirs.value));
                let floor = ours.floor.map_or_else(String::new, |floor| human::figure(*metric, floor));
                line(&mut text, &[(*what).to_owned(), measured(ours), floor, rival, target(ours)]);
            }
            (ours, theirs) => missing.extend([ours.err(), theirs.err()].into_iter().flatten()),
        }
    }
    let used: Vec<&Report> =
        reports.iter().filter(|report| highlights.iter().any(|it| it.experiment == report.experiment)).collect();
    if missing.is_empty() { Ok(format!("{}\n\n{text}", wrapped(&setting(&used)))) } else { Err(missing) }
}

/// A document with other text between its markers; `None` if it has none.
pub fn between_markers(document: &str, text: &str) -> Option<String> {
    let (before, rest) = document.split_once(MARKERS[0])?;
    let (_, after) = rest.split_once(MARKERS[1])?;
    Some(format!("{before}{}{text}{}{after}", MARKERS[0], MARKERS[1]))
}

/// When, at which commits and where reports were measured.
fn setting(reports: &[&Report]) -> String {
    let mut commits: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for report in reports {
        commits.entry(&report.commit).or_default().push(&report.experiment);
    }
    let is_one = commits.len() == 1;
    let places: Vec<String> = commits
        .iter()
        .map(|(commit, names)| if is_one { (*commit).to_owned() } else { format!("{commit} ({})", names.join(", ")) })
        .collect();
    let mut days: Vec<&str> = reports.iter().filter_map(|report| report.machine.date.get(..10)).collect();
    days.sort_unstable();
    days.dedup();
    let loads = reports.iter().map(|report| report.machine.load);
    let load = loads.fold(0.0, f64::max);
    let mut machines: Vec<String> = Vec::new();
    for machine in reports.iter().map(|report| &report.machine) {
        let text = format!(
            "{}, {} cores, {}, {}, Linux {}, {}",
            machine.cpu,
            machine.cores,
            human::bytes(machine.mem as f64),
            machine.os,
            machine.kernel,
            machine.rust
        );
        if !machines.contains(&text) {
            machines.push(text);
        }
    }
    format!(
        "Measured {} at commit {}: {}; load average before: at most {load:.1}.",
        days.join(", "),
        places.join(", "),
        machines.join("; ")
    )
}

/// The missed targets, with their reasons.
fn misses<'a>(rows: impl Iterator<Item = (&'a Report, &'a Row)> + Clone) -> String {
    let with_target = rows.clone().filter(|(_, row)| row.target.is_some()).count();
    let missed = rows.filter(|(_, row)| row.verdict() == Some(Verdict::Missed)).collect::<Vec<_>>();
    if missed.is_empty() {
        return match with_target {
            0 => "None of these rows has a target.\n".to_owned(),
            all => format!("All {all} targets are met.\n"),
        };
    }
    let mut text = format!("## Targets missed: {} of {with_target}\n\n", missed.len());
    line(&mut text, &["Experiment", "Case", "Metric", "Measured", "Target", "What limits it"].map(str::to_owned));
    text += "|---|---|---|---|---|---|\n";
    for (report, row) in missed {
        let limit = row.limit.clone().unwrap_or_else(|| "not known".to_owned());
        let bar = row.target.map_or_else(String::new, |target| table::bar(row, target));
        let cells =
            [report.experiment.clone(), row.case.clone(), row.metric.name().to_owned(), measured(row), bar, limit];
        line(&mut text, &cells);
    }
    text
}

fn cells(row: &Row) -> [String; 8] {
    let figure = |value| human::figure(row.metric, value);
    let show = |value: Option<f64>| value.map_or_else(String::new, figure);
    let disturbed = if row.is_disturbed() { " (disturbed)" } else { "" };
    let rival = match (row.rival, &row.rival_case) {
        (Some(value), Some(case)) => format!("{} ({case})", figure(value)),
        _ => String::new(),
    };
    let about: Vec<&str> = [&row.paper_setup, &row.paper_source].into_iter().flatten().map(String::as_str).collect();
    let paper = row.paper.map_or_else(String::new, |value| format!("{} ({})", figure(value), about.join("; ")));
    [
        row.case.clone(),
        row.metric.name().to_owned(),
        measured(row),
        show(row.floor) + disturbed,
        row.ratio().map_or_else(String::new, human::ratio),
        rival,
        target(row),
        paper,
    ]
}

fn measured(row: &Row) -> String {
    let range = match (row.min, row.max) {
        (Some(min), Some(max)) if min != max => {
            format!(" ({})", human::range(row.metric, row.value, min, max).replace("..", " to "))
        }
        _ => String::new(),
    };
    format!("**{}**{range}", human::figure(row.metric, row.value))
}

fn target(row: &Row) -> String {
    let missed = if row.verdict() == Some(Verdict::Missed) { " (missed)" } else { "" };
    row.target.map_or_else(String::new, |target| format!("{}{missed}", table::bar(row, target)))
}

/// Adds a line to a table.
fn line(text: &mut String, cells: &[String]) {
    for cell in cells {
        let _ = write!(text, "| {} ", cell.replace('|', "\\|"));
    }
    text.push_str("|\n");
}

/// A text that begins with a capital letter and ends with a full stop.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
    format!("{first}{}.", letters.as_str().trim_end_matches('.'))
}

/// A paragraph in lines.
fn wrapped(text: &str) -> String {
    let (mut wrapped, mut width) = (String::new(), 0);
    for word in text.split_whitespace() {
        let more = word.chars().count();
        if width > 0 && width + 1 + more > COLUMNS {
            wrapped.push('\n');
            width = 0;
        } else if width > 0 {
            wrapped.push(' ');
            width += 1;
        }
        wrapped.push_str(word);
        width += more;
    }
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Spread;
    use crate::report::{PaperFigure, ReportBuilder, RowBuilder, Target};

    const KV: Highlight = Highlight {
        experiment: "kv-rate",
        metric: Metric::Operations,
        what: "GET",
        case: "Dunlin, 8 | 8",
        rival: "memcached, 8 | 8",
    };

    fn report(experiment: &str, commit: &str) -> Report {
        let mut builder = ReportBuilder::new(experiment);
        let ours = RowBuilder::new(KV.case, KV.metric, Spread { median: 2e6, min: 1.9e6, max: 2.2e6 });
        let paper = PaperFigure { value: 4e6, setup: "CX3".into(), source: "HERD, Figure 4.12".into() };
        builder.push(ours.floor(4e6).rival(KV.rival).paper(Some(paper)).target(Target::Absolute(1e6)));
        builder.push(RowBuilder::new(KV.rival, KV.metric, Spread::single(5e5)));
        let slow = RowBuilder::new("Dunlin, slow", Metric::LatencyP50, Spread::single(9e3)).limit("a system call each");
        builder.push(slow.target(Target::Absolute(5e3)));
        builder.note("one server core");
        Report { commit: commit.into(), ..builder.finish() }
    }

    fn page<'a>() -> Page<'a> {
        Page { area: "kv", experiments: vec![("kv-latency", "latency"), ("kv-rate", "GETs and PUTs of one core")] }
    }

    #[test]
    fn a_page_has_misses_first_and_the_rival_beside_ours() {
        let text = page().render(&[report("rpc-rate", "a"), report("kv-rate", "abc")]).unwrap();
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} is not in\n{text}"));
        let missed = "| kv-rate | Dunlin, slow | latency p50 | **9.00 µs** | ≤ 5.00 µs | a system call each |";
        let ours = "| Dunlin, 8 \\| 8 | operations | **2.00 M op/s** (1.90 to 2.20) | 4.00 M op/s | 0.50x | \
                    500 k op/s (memcached, 8 \\| 8) | ≥ 1.00 M op/s | 4.00 M op/s (CX3; HERD, Figure 4.12) |";
        assert!(at("at commit abc: ") < at("## Targets missed: 1 of 2") && at(missed) < at("## kv-rate"), "{text}");
        assert!(at("GETs and PUTs of one core.") < at("one server core") && at("one server core") < at(ours));
        assert!(at("Not measured this time: kv-latency.") < at(missed));
        assert!(!text.contains("rpc-rate"));
        let prose = text.lines().filter(|line| !line.starts_with('|'));
        assert!(prose.into_iter().all(|line| line.chars().count() <= COLUMNS), "{text}");
        assert_eq!(page().render(&[report("rpc-rate", "a")]), None);
    }

    #[test]
    fn commits_are_told_apart() {
        let reports = [report("kv-rate", "abc"), report("kv-latency", "def"), report("kv-rate", "abc")];
        assert_eq!(commits(&reports), ["abc", "def"]);
        assert!(page().render(&reports).unwrap().contains("at commit abc (kv-rate, kv-rate), def (kv-latency): "));
    }

    #[test]
    fn highlights_stand_between_markers() {
        let document = "# A\n<!-- figures: begin -->\nold\n<!-- figures: end -->\n## B\n";
        let table = highlights(&[KV], &[report("kv-rate", "abc")]).unwrap();
        let row = "| GET | **2.00 M op/s** (1.90 to 2.20) | 4.00 M op/s | 500 k op/s (memcached) | ≥ 1.00 M op/s |\n";
        assert!(table.ends_with(row), "{table}");
        let written = between_markers(document, &table).unwrap();
        assert!(written.starts_with("# A\n<!-- figures: begin -->\nMeasured ") && written.ends_with("-->\n## B\n"));
        assert!(!written.contains("old") && written.contains(row));
        assert_eq!(between_markers(&written, &table).unwrap(), written);
        assert_eq!(between_markers("# A\n", &table), None);
    }

    #[test]
    fn rows_that_are_missing_are_named() {
        let missing = highlights(&[KV], &[report("kv-latency", "abc")]).unwrap_err();
        assert_eq!(missing, ["kv-rate, Dunlin, 8 | 8, operations", "kv-rate, memcached, 8 | 8, operations"]);
    }
}
