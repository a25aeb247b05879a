//! Figures over time: the data behind a row's single number.

/// Lines over a common time axis. A plot is shown on the page, and on the terminal if requested, and is not stored in
/// the JSON file.
#[derive(Debug, Clone, PartialEq)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// Unit of the values.
    pub unit: &'static str,
    /// At most [`LINES_MAX`] have distinct colours.
    pub lines: Vec<Line>,
    /// Where it is shown.
    pub places: Places,
}

/// Where a plot is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Places {
    /// On the page.
    Page,
    /// On the page, and as a rough sketch on the terminal.
    PageAndTerminal,
}

/// Number of lines with distinct colours in one plot.
pub const LINES_MAX: usize = 4;

/// One line of a plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Time in milliseconds, and the value.
    pub points: Vec<(f64, f64)>,
}
