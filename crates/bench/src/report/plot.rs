//! Figures over time: what a row's one number was made of.

/// Lines over one axis of time. It is shown on the page, and on the terminal if it says so, and not kept in the JSON file.
#[derive(Debug, Clone, PartialEq)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// Unit of the values.
    pub unit: &'static str,
    /// At most [`LINES_MAX`] are told apart.
    pub lines: Vec<Line>,
    /// Where it is shown.
    pub places: Places,
}

/// Where a plot is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Places {
    /// On the page.
    Page,
    /// There, and in rough lines on the terminal.
    PageAndTerminal,
}

/// Lines of one plot that have colours of their own.
pub const LINES_MAX: usize = 4;

/// One line of a plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// What it is of.
    pub name: String,
    /// Time in milliseconds, and the value.
    pub points: Vec<(f64, f64)>,
}
