//! Plots over time: a line for each case.
//!
//! Lines are drawn in a box of fixed size that is stretched to the width of the page; text is outside of it, so that it
//! keeps its shape.

use std::fmt::Write;

use super::super::plot::{LINES_MAX, Plot};
use super::escape;

const HEIGHT_PX: u32 = 200;
/// Width and height of the box.
const BOX: f64 = 1000.0;

/// The charts of plots.
pub(super) fn charts(plots: &[Plot]) -> String {
    plots.iter().map(chart).collect()
}

fn chart(plot: &Plot) -> String {
    let points = || plot.lines.iter().flat_map(|line| &line.points).filter(|(x, y)| x.is_finite() && y.is_finite());
    let most = |numbers: &mut dyn Iterator<Item = f64>| numbers.fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let (x_max, y_max) = (most(&mut points().map(|point| point.0)), most(&mut points().map(|point| point.1)));
    let (mut body, mut legend) = (String::new(), String::new());
    for (number, line) in plot.lines.iter().enumerate() {
        let class = number % LINES_MAX;
        let _ = write!(legend, "<span class=\"key line{class}\"></span>{}", escape(&line.name));
        let _ = write!(body, "<polyline class=\"line{class}\" vector-effect=\"non-scaling-stroke\" points=\"");
        for (x, y) in line.points.iter().filter(|(x, y)| x.is_finite() && y.is_finite()) {
            let _ = write!(body, "{:.1},{:.1} ", x / x_max * BOX, BOX - y / y_max * BOX);
        }
        body.push_str("\"/>\n");
    }
    let title = escape(&plot.title);
    format!(
        "<figure>\n<figcaption>{title}<small>up to {} {}, over {} ms</small></figcaption>\n\
         <svg role=\"img\" aria-label=\"{title}\" width=\"100%\" height=\"{HEIGHT_PX}\" viewBox=\"0 0 {BOX} {BOX}\" \
         preserveAspectRatio=\"none\">\n{body}</svg>\n<p class=\"legend\">{legend}</p>\n</figure>\n",
        number(y_max),
        escape(plot.unit),
        number(x_max)
    )
}

/// A number for the caption: whole, if it is large.
fn number(value: f64) -> String {
    if value >= 100.0 || value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::super::super::plot::{Line, Places};
    use super::*;

    #[test]
    fn lines_fill_the_box() {
        let line = |name: &str, points: &[(f64, f64)]| Line { name: name.into(), points: points.to_vec() };
        let lines = vec![line("a", &[(0.0, 0.0), (2.0, 50.0)]), line("b", &[(1.0, 25.0), (2.0, f64::NAN)])];
        let html = charts(&[Plot { title: "queue".into(), unit: "kB", lines, places: Places::Page }]);
        assert!(
            html.contains("points=\"0.0,1000.0 1000.0,0.0 \"") && html.contains("points=\"500.0,500.0 \""),
            "{html}"
        );
        assert!(html.contains("up to 50 kB, over 2 ms") && !html.contains("NaN"));
    }

    #[test]
    fn nothing_to_draw_is_no_trouble() {
        let html = charts(&[Plot {
            title: String::new(),
            unit: "",
            lines: vec![Line { name: "a".into(), points: vec![] }],
            places: Places::Page,
        }]);
        assert!(!html.contains("NaN") && !html.contains("inf"));
    }
}
