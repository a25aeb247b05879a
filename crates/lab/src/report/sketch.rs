//! Plots in the characters of a terminal: a row of bars for each line.

use std::fmt::Write;

use super::plot::{Line, Places, Plot};

/// Characters of a row.
const COLUMNS: usize = 64;
/// From low to high; zero is a dot.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const NOTHING: char = '·';

/// Sketches of the plots that are for the terminal.
pub(super) fn sketches(plots: &[Plot]) -> String {
    plots.iter().filter(|plot| plot.places == Places::PageAndTerminal).map(sketch).collect()
}

fn sketch(plot: &Plot) -> String {
    let rows: Vec<Vec<f64>> = plot.lines.iter().map(|line| columns(line, time(plot))).collect();
    let most = rows.iter().flatten().copied().fold(0.0, f64::max);
    let mut text = format!("{}: up to {most:.0} {}, over {:.0} ms\n", plot.title, plot.unit, time(plot));
    for (line, row) in plot.lines.iter().zip(rows) {
        let bars: String = row.into_iter().map(|value| bar(value, most)).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {bars}  {}", line.name);
    }
    text
}

/// The latest time of all lines.
fn time(plot: &Plot) -> f64 {
    plot.lines.iter().flat_map(|line| &line.points).map(|point| point.0).fold(0.0, f64::max)
}

/// The mean of the values in each column; an empty column repeats the one before.
fn columns(line: &Line, time: f64) -> Vec<f64> {
    let mut columns = [(0.0, 0_u32); COLUMNS];
    for (at, value) in line.points.iter().filter(|(at, value)| at.is_finite() && value.is_finite() && *at >= 0.0) {
        let column = &mut columns[((at / time.max(f64::MIN_POSITIVE) * COLUMNS as f64) as usize).min(COLUMNS - 1)];
        *column = (column.0 + value, column.1 + 1);
    }
    let mut before = 0.0;
    let mean = |(sum, count): (f64, u32)| {
        if count > 0 {
            before = sum / f64::from(count);
        }
        before
    };
    columns.into_iter().map(mean).collect()
}

fn bar(value: f64, most: f64) -> char {
    if value <= 0.0 {
        return NOTHING;
    }
    BARS[((value / most * BARS.len() as f64) as usize).min(BARS.len() - 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_seen() {
        let points = (0..640).map(|at| (f64::from(at), if (200..300).contains(&at) { 0.0 } else { 50.0 })).collect();
        let plot = |places| Plot {
            title: "writes".into(),
            unit: "1/s",
            lines: vec![Line { name: "first".into(), points }],
            places,
        };
        let text = sketches(&[plot(Places::PageAndTerminal)]);
        let gap = format!("{}{}{}", "█".repeat(20), "·".repeat(10), "█".repeat(34));
        assert_eq!(text, format!("writes: up to 50 1/s, over 639 ms\n  {gap}  first\n"));
    }

    #[test]
    fn nothing_to_draw_is_no_trouble() {
        let empty = Line { name: "a".into(), points: vec![] };
        let wrong = Line { name: "b".into(), points: vec![(f64::NAN, 1.0), (1.0, f64::INFINITY), (-1.0, 1.0)] };
        let plot = |places| Plot { title: String::new(), unit: "", lines: vec![empty.clone(), wrong.clone()], places };
        assert_eq!(sketches(&[plot(Places::Page)]), "");
        assert_eq!(sketches(&[plot(Places::PageAndTerminal)]).matches(NOTHING).count(), 2 * COLUMNS);
    }
}
