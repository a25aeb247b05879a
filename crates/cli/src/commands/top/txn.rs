//! A node of a transaction service, watched.

use std::rc::Rc;

use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::Endpoint;
use dunlin_serve::{Channel, ChannelConfig};
use dunlin_txn::node::{CoreStats, NodeStats, RemoteError, stats_of};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Stylize;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::Watched;
use super::human::{bytes, count};
use super::lines::{Column, whole};
use super::poll::DEADLINE;
use super::screen::Screen;
use super::view::{GRAPH_ROWS, cores_of, draw_graph, draw_keys, draw_title, label, table, waiting};

/// Minimum time between two samples for computing rates, in microseconds.
const SPAN_MICROS_MIN: u64 = 1000;
/// Requests that count as operations, with the names that they are shown by.
const REQUESTS: [(&str, &str); 6] = [
    ("reads", "read, lock"),
    ("validations", "validate"),
    ("logs", "log"),
    ("backed", "backup"),
    ("commits", "commit"),
    ("fills", "fill"),
];
/// A node, or one of its cores, over one interval.
#[derive(Debug, Clone)]
pub struct Figures {
    seconds: f64,
    /// Now and before; of each core that is meant.
    cores: Vec<(CoreStats, CoreStats)>,
}

impl Figures {
    /// The sum of a counter.
    fn now(&self, name: &str) -> u64 {
        self.cores.iter().fold(0u64, |sum, (now, _)| sum.saturating_add(now.get(name)))
    }

    /// The lowest value: a node is where its last core is.
    fn lowest(&self, name: &str) -> u64 {
        self.cores.iter().map(|(now, _)| now.get(name)).min().unwrap_or(0)
    }

    /// The change of a counter per second.
    fn per_second(&self, name: &str) -> f64 {
        let change = |(now, before): &(CoreStats, CoreStats)| now.get(name).saturating_sub(before.get(name));
        self.cores.iter().map(change).fold(0u64, u64::saturating_add) as f64 / self.seconds
    }
}

const COLUMNS: [Column<Figures>; 14] = [
    ("ops/s", |figures| whole(NodeStats::rate(figures))),
    ("commit/s", |figures| whole(figures.per_second("commits"))),
    ("locked/s", |figures| whole(figures.per_second("locked"))),
    ("changed/s", |figures| whole(figures.per_second("changed"))),
    ("epoch/s", |figures| whole(figures.per_second("other_epoch"))),
    ("refused/s", |figures| whole(figures.per_second("refused"))),
    ("epoch", |figures| figures.lowest("epoch").to_string()),
    ("opened", |figures| figures.lowest("opened").to_string()),
    ("primaries", |figures| figures.now("primaries").to_string()),
    ("backups", |figures| figures.now("backups").to_string()),
    ("filling", |figures| figures.now("filling").to_string()),
    ("locks", |figures| figures.now("locks").to_string()),
    ("records", |figures| figures.now("records").to_string()),
    ("mem_MiB", |figures| format!("{:.1}", figures.now("bytes") as f64 / f64::from(1 << 20))),
];

impl Watched for NodeStats {
    type Figures = Figures;
    type Client = Channel<AnyTransport>;
    type Error = RemoteError;

    fn client(endpoint: &Rc<Endpoint<AnyTransport>>, server: &Addr) -> Channel<AnyTransport> {
        Channel::new(endpoint, vec![server.clone()], ChannelConfig::default())
    }

    async fn ask(client: &Channel<AnyTransport>) -> Result<NodeStats, RemoteError> {
        stats_of(client, DEADLINE).await
    }

    fn is_same_process(&self, before: &NodeStats) -> bool {
        self.incarnation == before.incarnation && self.micros >= before.micros
    }

    fn figures(&self, before: &NodeStats) -> Option<Figures> {
        let micros = self.micros.checked_sub(before.micros).filter(|micros| *micros >= SPAN_MICROS_MIN)?;
        let cores = || self.cores.iter().cloned().zip(before.cores.iter().cloned()).collect();
        self.is_same_process(before).then(|| Figures { seconds: micros as f64 / 1e6, cores: cores() })
    }

    fn figures_of_cores(&self, before: &NodeStats) -> Vec<Figures> {
        let Some(Figures { seconds, cores }) = self.figures(before) else { return Vec::new() };
        cores.into_iter().map(|core| Figures { seconds, cores: vec![core] }).collect()
    }

    fn rate(figures: &Figures) -> f64 {
        REQUESTS.iter().map(|(name, _)| figures.per_second(name)).sum()
    }

    fn columns() -> &'static [Column<Figures>] {
        &COLUMNS
    }

    fn draw(frame: &mut Frame<'_>, screen: &Screen<NodeStats>) {
        let rows = [
            Constraint::Length(1),
            Constraint::Length(4),
            Constraint::Length(GRAPH_ROWS),
            Constraint::Length(REQUESTS.len() as u16 + 3),
            Constraint::Min(0),
            Constraint::Length(1),
        ];
        let [title, totals, graph, kinds, cores, keys] = Layout::vertical(rows).areas(frame.area());
        let facts = screen.latest.as_ref().map(|stats| format!("  transactions · {}", cores_of(stats.cores.len())));
        draw_title(frame, title, screen, facts);
        match &screen.figures {
            Some(figures) => {
                draw_totals(frame, totals, figures);
                draw_requests(frame, kinds, figures);
            }
            None => frame.render_widget(Paragraph::new(waiting(screen)), totals),
        }
        draw_graph(frame, graph, screen);
        draw_cores(frame, cores, &screen.cores);
        draw_keys(frame, keys, screen);
    }
}

fn draw_totals(frame: &mut Frame<'_>, area: Rect, figures: &Figures) {
    let lines: [Rect; 4] = Layout::vertical([Constraint::Length(1); 4]).areas(area);
    let mut line = |area, figures: Vec<(&'static str, String)>| {
        let parts = figures.into_iter().flat_map(|(name, value)| [label(name), Span::from(value).bold()]);
        frame.render_widget(Paragraph::new(Line::from(parts.collect::<Vec<_>>())), area);
    };
    let rate = |name: &str| format!("{}/s", count(figures.per_second(name)));
    let now = |name: &str| count(figures.now(name) as f64);
    let all = format!("{}/s", count(NodeStats::rate(figures)));
    line(lines[0], vec![("requests ", all), ("  commits ", rate("commits")), ("  recovered ", rate("recovered"))]);
    let refused = [
        ("refused for a lock ", "locked"),
        ("  a version ", "changed"),
        ("  an epoch ", "other_epoch"),
        ("  other ", "refused"),
    ];
    line(lines[1], refused.map(|(shown, name)| (shown, rate(name))).to_vec());
    let (epoch, opened) = (figures.lowest("epoch"), figures.lowest("opened"));
    let state = if opened < epoch { "being recovered" } else { "open" };
    line(
        lines[2],
        vec![
            ("epoch ", epoch.to_string()),
            (" ", state.into()),
            ("  primaries ", now("primaries")),
            ("  backups ", now("backups")),
            ("  being filled ", now("filling")),
        ],
    );
    let memory = bytes(figures.now("bytes"));
    line(lines[3], vec![("copies ", memory), ("  locks ", now("locks")), ("  records ", now("records"))]);
}

fn draw_requests(frame: &mut Frame<'_>, area: Rect, figures: &Figures) {
    let row = |(name, shown): (&str, &str)| vec![shown.to_owned(), count(figures.per_second(name))];
    frame.render_widget(table("by request", ["request", "total/s"], REQUESTS.map(row).to_vec()), area);
}

fn draw_cores(frame: &mut Frame<'_>, area: Rect, cores: &[Figures]) {
    let rows = cores.iter().enumerate().map(|(number, core)| {
        let mut cells = vec![number.to_string(), count(NodeStats::rate(core))];
        cells.extend(["commits", "locked", "changed"].map(|name| count(core.per_second(name))));
        cells.extend(["primaries", "backups", "filling"].map(|name| core.now(name).to_string()));
        cells
    });
    let heading = ["core", "total/s", "commit/s", "locked/s", "changed/s", "primaries", "backups", "filling"];
    frame.render_widget(table("by core", heading, rows.collect()), area);
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::lines;
    use super::*;

    /// A node of two cores after this many requests on each.
    fn node(incarnation: u64, micros: u64, requests: u64, opened: u64) -> NodeStats {
        let counters = [
            ("reads", requests),
            ("commits", requests / 2),
            ("locked", requests / 10),
            ("epoch", 5),
            ("opened", opened),
            ("primaries", 4),
            ("backups", 8),
            ("filling", 1),
            ("bytes", 3 << 20),
        ];
        NodeStats { incarnation, micros, cores: vec![counters.into_iter().collect(); 2] }
    }

    fn drawn(screen: &Screen<NodeStats>, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| NodeStats::draw(frame, screen)).unwrap();
        let buffer = terminal.backend().buffer();
        let rows = (0..height).map(|y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>());
        rows.map(|row| row.trim_end().to_owned()).collect()
    }

    #[test]
    fn shows_every_figure_in_any_size() {
        let mut screen = Screen::<NodeStats>::new("udp://node".into());
        assert!(drawn(&screen, 80, 24)[1].contains("Waiting for the first interval"));
        screen.update(Ok(node(7, 1_000_000, 1000, 5)));
        screen.update(Ok(node(7, 3_000_000, 7000, 4)));
        let rows = drawn(&screen, 100, 30);
        let has = |parts: &[&str]| {
            let found = rows.iter().any(|row| parts.iter().all(|part| row.contains(part)));
            assert!(found, "{parts:?} is in no line of\n{}", rows.join("\n"));
        };
        has(&["udp://node", "transactions", "2 cores"]);
        has(&["requests 9.00k/s", "commits 3.00k/s", "recovered 0/s"]);
        has(&["refused for a lock 600/s", "a version 0/s", "an epoch 0/s", "other 0/s"]);
        has(&["epoch 5 being recovered", "primaries 8", "backups 16", "being filled 2"]);
        has(&["copies 6.00 MiB", "locks 0", "records 0"]);
        has(&["read, lock", "6.00k"]);
        has(&["0 ", "4.50k", "1.50k", "300"]);
        for (width, height) in [(1, 1), (2, 40), (200, 2), (33, 11), (300, 100)] {
            assert_eq!(drawn(&screen, width, height).len(), usize::from(height));
        }
    }

    #[test]
    fn lines_have_a_number_below_each_heading_and_a_new_member_is_no_interval() {
        let (before, now) = (node(7, 1_000_000, 1000, 5), node(7, 3_000_000, 7000, 5));
        let figures = now.figures(&before).unwrap();
        let (heading, line) = (lines::heading::<NodeStats>(), lines::interval::<NodeStats>(&figures));
        assert_eq!(heading.len(), line.len(), "columns stay below their headings");
        let numbers: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(numbers, ["9000", "3000", "600", "0", "0", "0", "5", "5", "8", "16", "2", "0", "0", "6.0"]);
        assert!(node(8, 3_000_000, 7000, 5).figures(&before).is_none(), "another member");
        assert!(node(7, 1_000_100, 1000, 5).figures(&before).is_none(), "too close together");
    }
}
