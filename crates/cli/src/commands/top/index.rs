//! An ordered index, watched.

use std::rc::Rc;

use dunlin_index::service::{CoreStats, HandlerFigures, IndexFigures, Latency};
use dunlin_index::{Client, ClientConfig, IndexError, ServerStats, ServiceStats};
use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::Endpoint;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Stylize;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::Watched;
use super::human::{bytes, count, time, uptime};
use super::lines::{Column, whole};
use super::poll::DEADLINE;
use super::screen::Screen;
use super::view::{GRAPH_ROWS, cores_of, draw_graph, draw_keys, draw_memory, draw_title, label, table, waiting};

/// Minimum time between two samples for computing rates, in microseconds.
const SPAN_MICROS_MIN: u64 = 1000;
/// The handlers whose requests count as operations: the others are questions about the server.
const OPERATIONS: [&str; 5] = ["operate", "scan", "long-scan", "count", "delete-range"];

/// An index, or one core of its server, over one interval.
#[derive(Debug, Clone)]
pub struct Figures {
    seconds: f64,
    /// What each handler did in the interval.
    handlers: Vec<HandlerFigures>,
    /// The counters now, and those before.
    service: (ServiceStats, ServiceStats),
    index: IndexFigures,
    workers: u16,
    sessions: u64,
}

impl Figures {
    fn new(
        stats: &ServerStats,
        seconds: f64,
        (now, before): (&[HandlerFigures], &[HandlerFigures]),
        service: (ServiceStats, ServiceStats),
        sessions: u64,
    ) -> Figures {
        let none = HandlerFigures::default();
        let since = |now: &HandlerFigures| {
            let before = before.iter().find(|before| before.name == now.name);
            now.since(before.unwrap_or(&none))
        };
        let handlers = now.iter().map(since).collect();
        Figures { seconds, handlers, service, index: stats.index, workers: stats.workers, sessions }
    }

    fn handler(&self, name: &str) -> Option<&HandlerFigures> {
        self.handlers.iter().find(|handler| handler.name == name)
    }

    /// Requests of a type per second.
    fn rate_of(&self, name: &str) -> f64 {
        self.handler(name).map_or(0.0, |handler| handler.requests as f64 / self.seconds)
    }

    /// The change of a counter per second.
    fn per_second(&self, counter: fn(&ServiceStats) -> u64) -> f64 {
        counter(&self.service.0).saturating_sub(counter(&self.service.1)) as f64 / self.seconds
    }

    fn latency(&self, name: &str) -> Latency {
        self.handler(name).map(|handler| handler.latency.clone()).unwrap_or_default()
    }
}

fn micros(latency: &Latency, percent: f64) -> String {
    if latency.count() == 0 {
        return "-".into();
    }
    format!("{:.2}", latency.percentile(percent).as_nanos() as f64 / 1000.0)
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

const COLUMNS: [Column<Figures>; 14] = [
    ("ops/s", |figures| whole(ServerStats::rate(figures))),
    ("get/s", |figures| whole(figures.per_second(|service| service.gets))),
    ("put/s", |figures| whole(figures.per_second(|service| service.puts))),
    ("delete/s", |figures| whole(figures.per_second(|service| service.deletes))),
    ("scan/s", |figures| whole(figures.per_second(|service| service.scans))),
    ("scanned/s", |figures| whole(figures.per_second(|service| service.items))),
    ("busy", |figures| figures.service.0.in_progress.to_string()),
    ("p50_us", |figures| micros(&figures.latency("operate"), 50.0)),
    ("p99_us", |figures| micros(&figures.latency("operate"), 99.0)),
    ("mem_MiB", |figures| mebibytes(figures.index.memory_bytes)),
    ("idle_MiB", |figures| mebibytes(figures.index.idle_bytes)),
    ("items", |figures| figures.index.items.to_string()),
    ("nodes", |figures| figures.index.nodes().to_string()),
    ("sessions", |figures| figures.sessions.to_string()),
];

impl Watched for ServerStats {
    type Figures = Figures;
    type Client = Client<AnyTransport>;
    type Error = IndexError;

    fn client(endpoint: &Rc<Endpoint<AnyTransport>>, server: &Addr) -> Client<AnyTransport> {
        Client::new(endpoint, server.clone(), ClientConfig { timeout: DEADLINE, ..ClientConfig::default() })
    }

    async fn ask(client: &Client<AnyTransport>) -> Result<ServerStats, IndexError> {
        client.stats().await
    }

    fn is_same_process(&self, before: &ServerStats) -> bool {
        ServerStats::is_same_process(self, before)
    }

    fn figures(&self, before: &ServerStats) -> Option<Figures> {
        let seconds = seconds_between(self, before)?;
        let sessions = self.cores.iter().fold(0u64, |sum, core| sum.saturating_add(core.sessions));
        let handlers = (&self.handlers()[..], &before.handlers()[..]);
        Some(Figures::new(self, seconds, handlers, (self.service(), before.service()), sessions))
    }

    fn figures_of_cores(&self, before: &ServerStats) -> Vec<Figures> {
        let Some(seconds) = seconds_between(self, before) else { return Vec::new() };
        let of_core = |(now, before): (&CoreStats, &CoreStats)| {
            let handlers = (&now.handlers[..], &before.handlers[..]);
            Figures::new(self, seconds, handlers, (now.service, before.service), now.sessions)
        };
        self.cores.iter().zip(&before.cores).map(of_core).collect()
    }

    fn rate(figures: &Figures) -> f64 {
        OPERATIONS.iter().map(|name| figures.rate_of(name)).sum()
    }

    fn columns() -> &'static [Column<Figures>] {
        &COLUMNS
    }

    fn draw(frame: &mut Frame<'_>, screen: &Screen<ServerStats>) {
        let handlers = screen.figures.as_ref().map_or(0, |figures| figures.handlers.len());
        let rows = [
            Constraint::Length(1),
            Constraint::Length(4),
            Constraint::Length(GRAPH_ROWS),
            Constraint::Length(handlers as u16 + 3),
            Constraint::Min(0),
            Constraint::Length(1),
        ];
        let [title, totals, graph, kinds, cores, keys] = Layout::vertical(rows).areas(frame.area());
        let facts = screen.latest.as_ref().map(|stats| {
            let (cores, up) = (cores_of(stats.cores.len()), uptime(stats.uptime_micros));
            format!("  ordered index · {cores} · {} workers · up {up} · {}", stats.workers, stats.server_version)
        });
        draw_title(frame, title, screen, facts);
        match &screen.figures {
            Some(figures) => {
                draw_totals(frame, totals, figures);
                draw_handlers(frame, kinds, figures);
            }
            None => frame.render_widget(Paragraph::new(waiting(screen)), totals),
        }
        draw_graph(frame, graph, screen);
        draw_cores(frame, cores, &screen.cores);
        draw_keys(frame, keys, screen);
    }
}

fn seconds_between(now: &ServerStats, before: &ServerStats) -> Option<f64> {
    let micros = now.uptime_micros.checked_sub(before.uptime_micros)?;
    (now.is_same_process(before) && micros >= SPAN_MICROS_MIN).then(|| micros as f64 / 1e6)
}

fn draw_totals(frame: &mut Frame<'_>, area: Rect, figures: &Figures) {
    let [rates, scans, store, memory] = Layout::vertical([Constraint::Length(1); 4]).areas(area);
    let mut line = |area, figures: Vec<(&'static str, String)>| {
        let parts = figures.into_iter().flat_map(|(name, value)| [label(name), Span::from(value).bold()]);
        frame.render_widget(Paragraph::new(Line::from(parts.collect::<Vec<_>>())), area);
    };
    let operate = figures.latency("operate");
    let [p50, p99] = [50.0, 99.0].map(|percent| time(operate.percentile(percent)));
    let rate = format!("{}/s", count(ServerStats::rate(figures)));
    line(rates, vec![("operations ", rate), ("  of one key p50 ", p50), ("  p99 ", p99)]);
    let begun = format!("{}/s", count(figures.per_second(|service| service.scans)));
    let items = format!("{}/s", count(figures.per_second(|service| service.items)));
    let busy = format!("{} of {}", figures.service.0.in_progress, figures.workers);
    line(scans, vec![("scans ", begun), ("  their items ", items), ("  workers busy ", busy)]);
    let (items, nodes) = (count(figures.index.items as f64), count(figures.index.nodes() as f64));
    let idle = bytes(figures.index.idle_bytes);
    let sessions = figures.sessions.to_string();
    line(store, vec![("items ", items), ("  nodes ", nodes), ("  idle ", idle), ("  sessions ", sessions)]);
    draw_memory(frame, memory, figures.index.held_bytes(), figures.index.memory_bytes_max);
}

fn draw_handlers(frame: &mut Frame<'_>, area: Rect, figures: &Figures) {
    let rows = figures.handlers.iter().map(|handler| {
        let mut cells = vec![handler.name.clone()];
        cells.extend([handler.requests, handler.failed].map(|requests| count(requests as f64 / figures.seconds)));
        cells.extend([50.0, 99.0, 99.9].map(|percent| time(handler.latency.percentile(percent))));
        cells.extend([50.0, 99.0].map(|percent| time(handler.queued.percentile(percent))));
        cells
    });
    let heading = ["handler", "total/s", "failed/s", "p50", "p99", "p99.9", "queued", "queue p99"];
    frame.render_widget(table("by handler", heading, rows.collect()), area);
}

fn draw_cores(frame: &mut Frame<'_>, area: Rect, cores: &[Figures]) {
    let rows = cores.iter().enumerate().map(|(number, core)| {
        let mut cells = vec![number.to_string(), count(ServerStats::rate(core))];
        let counters: [fn(&ServiceStats) -> u64; 3] = [|now| now.gets, |now| now.puts, |now| now.deletes];
        cells.extend(counters.map(|counter| count(core.per_second(counter))));
        cells.extend([core.sessions.to_string(), time(core.latency("operate").percentile(99.0))]);
        cells
    });
    let heading = ["core", "total/s", "get/s", "put/s", "delete/s", "sessions", "p99"];
    frame.render_widget(table("by core", heading, rows.collect()), area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::lines;
    use super::*;

    /// A server of two cores after this many look-ups on each.
    fn server(incarnation: u64, uptime_micros: u64, gets: u64) -> ServerStats {
        let mut counts = vec![0; 26];
        // Up to 1 us.
        counts[3] = gets;
        let latency = Latency { counts, sum_nanos: 700 * gets };
        let operate = HandlerFigures { name: "operate".into(), requests: gets, latency, ..HandlerFigures::default() };
        let removal = HandlerFigures { name: "delete-range".into(), requests: gets / 500, ..HandlerFigures::default() };
        let scan = HandlerFigures { name: "long-scan".into(), requests: gets / 100, ..HandlerFigures::default() };
        let service = ServiceStats { gets, scans: gets / 100, items: gets, in_progress: 1, ..ServiceStats::default() };
        let core = CoreStats { core: 0, sessions: 2, service, handlers: vec![operate, scan, removal] };
        let index = IndexFigures {
            items: 1400,
            memory_bytes: 8 << 20,
            memory_bytes_max: 1 << 30,
            idle_bytes: 2 << 20,
            interior_nodes: 3,
            leaves: [1, 0, 60],
            ..IndexFigures::default()
        };
        let cores = vec![core.clone(), core];
        ServerStats { incarnation, uptime_micros, workers: 4, index, cores, ..ServerStats::default() }
    }

    fn drawn(screen: &Screen<ServerStats>, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| ServerStats::draw(frame, screen)).unwrap();
        let buffer = terminal.backend().buffer();
        let rows = (0..height).map(|y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>());
        rows.map(|row| row.trim_end().to_owned()).collect()
    }

    #[test]
    fn shows_every_figure_in_any_size() {
        let mut screen = Screen::<ServerStats>::new("shm:index".into());
        assert!(drawn(&screen, 80, 24)[1].contains("Waiting for the first interval"));
        screen.update(Ok(server(7, 1_000_000, 1000)));
        screen.update(Ok(server(7, 3_000_000, 7000)));
        let rows = drawn(&screen, 100, 30);
        let has = |parts: &[&str]| {
            let found = rows.iter().any(|row| parts.iter().all(|part| row.contains(part)));
            assert!(found, "{parts:?} is in no line of\n{}", rows.join("\n"));
        };
        has(&["shm:index", "ordered index", "2 cores", "4 workers", "up 3s"]);
        has(&["operations 6.07k/s", "of one key p50 750 ns"]);
        has(&["scans 60/s", "their items 6.00k/s", "workers busy 2 of 4"]);
        has(&["items 1.40k", "nodes 64", "idle 2.00 MiB", "sessions 4"]);
        has(&["memory 10.0 MiB of 1.00 GiB"]);
        has(&["operate", "6.00k", "750 ns"]);
        // A name has ten columns.
        has(&["delete-ran", "12"]);
        has(&["long-scan", "60"]);
        has(&["0 ", "3.04k", "3.00k"]);
        for (width, height) in [(1, 1), (2, 40), (200, 2), (33, 11), (300, 100)] {
            assert_eq!(drawn(&screen, width, height).len(), usize::from(height));
        }
    }

    #[test]
    fn lines_have_a_number_below_each_heading_and_a_restart_is_no_interval() {
        let (before, now) = (server(7, 1_000_000, 1000), server(7, 3_000_000, 7000));
        let figures = now.figures(&before).unwrap();
        let (heading, line) = (lines::heading::<ServerStats>(), lines::interval::<ServerStats>(&figures));
        assert_eq!(heading.len(), line.len(), "columns stay below their headings");
        let numbers: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(numbers[..7], ["6072", "6000", "0", "0", "60", "6000", "2"], "removals of ranges are operations");
        assert_eq!(numbers[9..], ["8.0", "2.0", "1400", "64", "4"]);
        let json = lines::as_json::<ServerStats>(&figures);
        assert!(json["get/s"] == 6000.0 && json["nodes"] == 64.0, "{json}");
        assert!(server(8, 3_000_000, 7000).figures(&before).is_none(), "another process");
        assert!(server(7, 1_000_100, 1000).figures(&before).is_none(), "too close together");
    }
}
