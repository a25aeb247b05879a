//! Draws the screen.

use dunlin_kv::metrics::ServerStats;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Gauge, Paragraph, Row, Sparkline, Table};

use super::Watched;
use super::figures::Figures;
use super::human::{bytes, count, share, time, uptime};
use super::screen::Screen;

/// Rows of the graph, including its border.
pub const GRAPH_ROWS: u16 = 6;
/// Width of a figure.
const FIGURE_COLUMNS: u16 = 10;

/// Draws everything, in any size.
pub fn draw(frame: &mut Frame<'_>, screen: &Screen<ServerStats>) {
    let operations = screen.figures.as_ref().map_or(0, |figures| figures.operations.len());
    let rows = [
        Constraint::Length(1),
        Constraint::Length(4),
        Constraint::Length(GRAPH_ROWS),
        Constraint::Length(operations as u16 + 3),
        Constraint::Min(0),
        Constraint::Length(1),
    ];
    let [title, totals, graph, kinds, cores, keys] = Layout::vertical(rows).areas(frame.area());
    let facts = screen.latest.as_ref().map(|stats| {
        let (mode, version) = (&stats.mode, &stats.server_version);
        format!("  {mode} · {} · up {} · {version}", cores_of(stats.cores.len()), uptime(stats.uptime_micros))
    });
    draw_title(frame, title, screen, facts);
    match &screen.figures {
        Some(figures) => {
            draw_totals(frame, totals, figures);
            draw_kinds(frame, kinds, figures);
        }
        None => frame.render_widget(Paragraph::new(waiting(screen)), totals),
    }
    draw_graph(frame, graph, screen);
    draw_cores(frame, cores, &screen.cores);
    draw_keys(frame, keys, screen);
}

/// A number of cores.
pub fn cores_of(cores: usize) -> String {
    if cores == 1 { "1 core".into() } else { format!("{cores} cores") }
}

/// What is said before there are figures.
pub fn waiting<W: Watched>(screen: &Screen<W>) -> &'static str {
    if screen.error.is_some() { "No answer; asking again." } else { "Waiting for the first interval to end." }
}

/// Draws the first line: the server, facts about it, and an error.
pub fn draw_title<W: Watched>(frame: &mut Frame<'_>, area: Rect, screen: &Screen<W>, facts: Option<String>) {
    let mut spans = vec![Span::from(screen.server.as_str()).bold().cyan()];
    spans.extend(facts.map(Span::from));
    match &screen.error {
        Some(error) => spans.push(Span::from(format!("  {error}")).red().bold()),
        None if screen.is_paused => spans.push("  paused".yellow().bold()),
        None => {}
    }
    frame.render_widget(Paragraph::new(Line::from(spans)), area);
}

fn draw_totals(frame: &mut Frame<'_>, area: Rect, figures: &Figures) {
    let [rates, times, store, memory] = Layout::vertical([Constraint::Length(1); 4]).areas(area);
    let latency = figures.latency();
    let [p50, p99, p999] = [50.0, 99.0, 99.9].map(|percent| time(latency.percentile(percent)));
    let line = |parts: Vec<Span<'static>>| Paragraph::new(Line::from(parts));
    let rate = format!("{}/s", count(figures.rate()));
    let rates_line = vec![label("operations "), rate.bold(), label("  hit ratio "), share(figures.hit_ratio()).bold()];
    frame.render_widget(line(rates_line), rates);
    let times_line =
        vec![label("latency p50 "), p50.bold(), label("  p99 "), p99.bold(), label("  p99.9 "), p999.bold()];
    frame.render_widget(line(times_line), times);
    let items = count(figures.store.items as f64);
    let evictions = format!("{}/s", count(figures.eviction_rate()));
    let mut store_line = vec![
        label("items "),
        items.bold(),
        label("  evictions "),
        evictions.bold(),
        label("  sessions "),
        figures.sessions.to_string().bold(),
        label("  connections "),
        figures.connections.open.to_string().bold(),
    ];
    // By level, the fastest first.
    let by_level = |lengths: &[u64]| lengths.iter().map(ToString::to_string).collect::<Vec<_>>().join("/").bold();
    if let Some(tier) = &figures.tier {
        let items = count(tier.count("items") as f64).bold();
        store_line.extend([label("  tier "), items, label("  waiting "), by_level(&tier.lengths)]);
    }
    if let Some(queue) = &figures.multi_gets {
        store_line.extend([label("  multi-gets waiting "), by_level(&queue.lengths)]);
    }
    frame.render_widget(line(store_line), store);
    draw_memory(frame, memory, figures.store.memory_bytes, figures.store.memory_bytes_max);
}

/// The name of a figure.
pub fn label(text: &'static str) -> Span<'static> {
    Span::from(text).dark_gray()
}

/// Draws how much of the memory is used.
pub fn draw_memory(frame: &mut Frame<'_>, area: Rect, used: u64, limit: u64) {
    let gauge = if limit == 0 || limit == u64::MAX {
        Gauge::default().ratio(0.0).label(format!("memory {}", bytes(used)))
    } else {
        let ratio = (used as f64 / limit as f64).clamp(0.0, 1.0);
        Gauge::default().ratio(ratio).label(format!("memory {} of {}", bytes(used), bytes(limit)))
    };
    frame.render_widget(gauge.gauge_style(Style::new().fg(Color::Blue).bg(Color::Black)), area);
}

/// Draws the rates of all intervals.
pub fn draw_graph<W: Watched>(frame: &mut Frame<'_>, area: Rect, screen: &Screen<W>) {
    let block = Block::bordered().title("operations per second");
    let room = usize::from(block.inner(area).width);
    // The last intervals, as many as fit.
    let shown: Vec<u64> = screen.rates.iter().skip(screen.rates.len().saturating_sub(room)).copied().collect();
    let highest = shown.iter().max().copied().unwrap_or(0);
    let block = block.title_bottom(format!("highest {}/s", count(highest as f64)));
    frame.render_widget(Sparkline::default().block(block).data(&shown).style(Style::new().fg(Color::Green)), area);
}

fn draw_kinds(frame: &mut Frame<'_>, area: Rect, figures: &Figures) {
    let rows = figures.operations.iter().map(|(operation, stats)| {
        let per_second = |operations: u64| count(operations as f64 / figures.seconds);
        let mut cells = vec![operation.name().to_owned()];
        cells.extend([stats.total(), stats.hits, stats.misses, stats.conflicts, stats.refused].map(per_second));
        cells.extend([50.0, 99.0, 99.9].map(|percent| time(stats.latency.percentile(percent))));
        cells
    });
    let heading = ["kind", "total/s", "hit/s", "miss/s", "conflict/s", "refused/s", "p50", "p99", "p99.9"];
    frame.render_widget(table("by kind", heading, rows.collect()), area);
}

fn draw_cores(frame: &mut Frame<'_>, area: Rect, cores: &[Figures]) {
    let rows = cores.iter().enumerate().map(|(number, core)| {
        let latency = core.latency();
        vec![
            number.to_string(),
            count(core.rate()),
            share(core.hit_ratio()),
            count(core.store.items as f64),
            bytes(core.store.memory_bytes),
            count(core.eviction_rate()),
            core.sessions.to_string(),
            core.connections.open.to_string(),
            time(latency.percentile(99.0)),
        ]
    });
    let heading = ["core", "total/s", "hits", "items", "memory", "evicted/s", "sessions", "conns", "p99"];
    frame.render_widget(table("by core", heading, rows.collect()), area);
}

/// A table whose first column is a name and whose others are figures.
pub fn table<const N: usize>(
    title: &'static str,
    heading: [&'static str; N],
    rows: Vec<Vec<String>>,
) -> Table<'static> {
    let right = |text: String| Cell::from(Line::from(text).right_aligned());
    let row = |cells: Vec<String>| {
        let mut cells = cells.into_iter();
        let name = Cell::from(cells.next().unwrap_or_default());
        Row::new([name].into_iter().chain(cells.map(right)))
    };
    let heading = row(heading.map(str::to_owned).to_vec()).style(Style::new().dark_gray());
    Table::new(rows.into_iter().map(row), [Constraint::Length(FIGURE_COLUMNS); N])
        .header(heading)
        .block(Block::bordered().title(title))
}

/// Draws the last line: what keys do.
pub fn draw_keys<W: Watched>(frame: &mut Frame<'_>, area: Rect, screen: &Screen<W>) {
    let pause = if screen.is_paused { " go on  " } else { " pause  " };
    frame.render_widget(Line::from(vec!["p".bold(), pause.into(), "q".bold(), " quit".into()]), area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::tests::server;
    use super::*;

    /// The screen as lines of text.
    fn drawn(screen: &Screen<ServerStats>, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, screen)).unwrap();
        let buffer = terminal.backend().buffer();
        let rows = (0..height).map(|y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>());
        rows.map(|row| row.trim_end().to_owned()).collect()
    }

    fn running() -> Screen<ServerStats> {
        let mut screen = Screen::new("shm:kv".into());
        screen.update(Ok(server(1_000_000, 100)));
        screen.update(Ok(server(3_000_000, 700)));
        screen
    }

    #[test]
    fn shows_every_figure() {
        let rows = drawn(&running(), 100, 30);
        let has = |parts: &[&str]| {
            let found = rows.iter().any(|row| parts.iter().all(|part| row.contains(part)));
            assert!(found, "{parts:?} is in no line of\n{}", rows.join("\n"));
        };
        has(&["shm:kv", "cache", "2 cores", "up 3s"]);
        has(&["operations 600/s", "hit ratio 90.0%"]);
        has(&["latency p50 1.5", "p99 ", "p99.9 "]);
        has(&["items 1.40k", "evictions 0/s", "sessions 4", "connections 6"]);
        has(&["memory 8.00 MiB of 2.00 GiB"]);
        has(&["operations per second"]);
        has(&["highest 600/s"]);
        has(&["get", "600", "540", "60"]);
        has(&["core", "total/s", "hits", "evicted/s"]);
        has(&["1 ", "300", "90.0%", "700", "4.00 MiB"]);
        assert_eq!(rows.last().unwrap(), "p pause  q quit");
    }

    #[test]
    fn says_what_it_waits_for() {
        let mut screen = Screen::new("shm:kv".into());
        assert!(drawn(&screen, 80, 24)[1].contains("Waiting for the first interval"));
        screen.update(Err("the peer died".into()));
        let rows = drawn(&screen, 80, 24);
        assert!(rows[0].contains("the peer died") && rows[1].contains("No answer; asking again"));
        let mut paused = running();
        paused.is_paused = true;
        let rows = drawn(&paused, 80, 24);
        assert!(rows[0].ends_with("paused") && rows[23].starts_with("p go on"));
    }

    #[test]
    fn any_size_is_drawn() {
        let screen = running();
        for (width, height) in [(1, 1), (2, 40), (200, 2), (33, 11), (80, 24), (300, 100)] {
            assert_eq!(drawn(&screen, width, height).len(), usize::from(height));
        }
    }
}
