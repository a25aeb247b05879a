//! Plots over time: a line for each case, with axes.

use std::fmt::Write;

use plotters::prelude::*;

use super::super::plot::{LINES_MAX, Line, Plot};
use super::escape;

/// Width and height. The page scales them to its own width.
const SIZE: (u32, u32) = (960, 320);
/// Space for labels.
const LABELS_PX: (u32, u32) = (44, 72);

/// The charts of plots.
pub(super) fn charts(plots: &[Plot]) -> String {
    plots.iter().map(chart).collect()
}

fn chart(plot: &Plot) -> String {
    let mut svg = String::new();
    // Drawing into memory cannot fail, unless the library finds no room for the axes.
    let svg = match draw(plot, &mut svg) {
        Ok(()) => themed(&svg, &plot.title),
        Err(error) => format!("<p>cannot be drawn: {}</p>\n", escape(&error.to_string())),
    };
    let mut legend = String::new();
    for (number, line) in plot.lines.iter().enumerate() {
        let class = number % LINES_MAX;
        let _ = write!(legend, "<span class=\"key line{class}\"></span>{}", escape(&line.name));
    }
    format!(
        "<figure>\n<figcaption>{}</figcaption>\n{svg}<p class=\"legend\">{legend}</p>\n</figure>\n",
        escape(&plot.title)
    )
}

/// A colour that stands for the class of a line until [`themed`] names it.
fn colour(line: usize) -> RGBColor {
    RGBColor(250, 0, (line % LINES_MAX) as u8)
}

fn points(line: &Line) -> impl Iterator<Item = (f64, f64)> + '_ {
    line.points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite())
}

fn draw(plot: &Plot, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let all = || plot.lines.iter().flat_map(points);
    // An axis must have some length.
    let end = |values: &mut dyn Iterator<Item = f64>| {
        Some(values.fold(0.0, f64::max)).filter(|end| *end > 0.0).unwrap_or(1.0)
    };
    let (x_end, y_end) = (end(&mut all().map(|point| point.0)), end(&mut all().map(|point| point.1)));
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    let mut chart = ChartBuilder::on(&root)
        .margin(10)
        .x_label_area_size(LABELS_PX.0)
        .y_label_area_size(LABELS_PX.1)
        .build_cartesian_2d(0.0..x_end, 0.0..y_end)?;
    chart.configure_mesh().max_light_lines(1).x_desc("time, ms").y_desc(plot.unit).draw()?;
    for (number, line) in plot.lines.iter().enumerate() {
        chart.draw_series(LineSeries::new(points(line), colour(number).stroke_width(2)))?;
    }
    root.present()?;
    Ok(())
}

/// The drawing as a part of a page: as wide as that, and in its colours.
fn themed(svg: &str, title: &str) -> String {
    let (width, height) = SIZE;
    let size = format!("width=\"{width}\" height=\"{height}\"");
    let mut svg = svg
        .replacen(&size, &format!("role=\"img\" aria-label=\"{}\" width=\"100%\"", escape(title)), 1)
        // Within a page that is known.
        .replacen(" xmlns=\"http://www.w3.org/2000/svg\"", "", 1)
        .replace("#000000", "currentColor");
    for line in 0..LINES_MAX {
        let RGBColor(red, green, blue) = colour(line);
        svg = svg.replace(&format!("stroke=\"#{red:02X}{green:02X}{blue:02X}\""), &format!("class=\"line{line}\""));
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::super::super::plot::{Line, Places};
    use super::*;

    #[test]
    fn lines_have_axes_with_units() {
        let line = |name: &str, points: &[(f64, f64)]| Line { name: name.into(), points: points.to_vec() };
        let lines = vec![line("a", &[(0.0, 0.0), (2.0, 50.0)]), line("b", &[(1.0, 25.0), (2.0, f64::NAN)])];
        let html = charts(&[Plot { title: "queue & co".into(), unit: "kB", lines, places: Places::Page }]);
        for part in
            ["time, ms", "kB", "10.0", "1.0", "class=\"line0\"", "class=\"line1\"", "aria-label=\"queue &amp; co\""]
        {
            assert!(html.contains(part), "{part} is not in\n{html}");
        }
        for part in ["NaN", "http", "#000000", "#FA00"] {
            assert!(!html.contains(part), "{part} is in\n{html}");
        }
    }

    #[test]
    fn nothing_to_draw_is_no_trouble() {
        let html = charts(&[Plot {
            title: String::new(),
            unit: "",
            lines: vec![Line { name: "a".into(), points: vec![] }],
            places: Places::Page,
        }]);
        assert!(!html.contains("NaN") && !html.contains("inf") && html.contains("<svg"));
    }
}
