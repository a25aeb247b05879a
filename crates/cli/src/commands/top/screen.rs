//! The content of the screen, independent of terminals.

use std::collections::VecDeque;

use super::Watched;

/// Intervals in the graph.
const HISTORY_MAX: usize = 1024;

/// The state of the view.
pub struct Screen<W: Watched> {
    /// The server's address.
    pub server: String,
    /// The last sample.
    pub latest: Option<W>,
    /// The last interval.
    pub figures: Option<W::Figures>,
    /// The same by core.
    pub cores: Vec<W::Figures>,
    /// Operations per second of each interval, the latest one last.
    pub rates: VecDeque<u64>,
    /// Why the last poll got no answer.
    pub error: Option<String>,
    /// Whether it is paused.
    pub is_paused: bool,
}

impl<W: Watched> Screen<W> {
    /// A screen without data.
    pub fn new(server: String) -> Screen<W> {
        let (rates, cores) = (VecDeque::new(), Vec::new());
        Screen { server, latest: None, figures: None, cores, rates, error: None, is_paused: false }
    }

    /// Takes an answer of the server, or the error.
    pub fn update(&mut self, answer: Result<W, String>) {
        if self.is_paused {
            return;
        }
        match answer {
            Err(error) => {
                self.error = Some(error);
                // The graph shows the gap.
                self.remember(0);
            }
            Ok(stats) => {
                self.error = None;
                if let Some(before) = &self.latest {
                    if let Some(figures) = stats.figures(before) {
                        self.cores = stats.figures_of_cores(before);
                        self.remember(W::rate(&figures) as u64);
                        self.figures = Some(figures);
                    } else if !stats.is_same_process(before) {
                        (self.figures, self.cores) = (None, Vec::new());
                    }
                }
                self.latest = Some(stats);
            }
        }
    }

    fn remember(&mut self, rate: u64) {
        if self.rates.len() == HISTORY_MAX {
            self.rates.pop_front();
        }
        self.rates.push_back(rate);
    }
}

#[cfg(test)]
mod tests {
    use dunlin_kv::metrics::ServerStats;

    use super::super::tests::{server, server_with};
    use super::*;

    #[test]
    fn a_restarted_server_is_followed() {
        let mut screen = Screen::<ServerStats>::new("shm:kv".into());
        screen.update(Ok(server(1_000_000, 100)));
        assert!(screen.figures.is_none() && screen.rates.is_empty(), "one look is no interval");
        screen.update(Ok(server(2_000_000, 200)));
        screen.update(Err("the peer died".into()));
        assert!(screen.figures.is_some() && screen.error.is_some(), "the last figures stay while nobody answers");
        screen.update(Ok(server_with(8, 100_000, 5)));
        assert!(screen.figures.is_none() && screen.error.is_none() && screen.cores.is_empty());
        screen.update(Ok(server_with(8, 1_100_000, 55)));
        assert_eq!(screen.rates, [200, 0, 100]);
        assert_eq!(screen.cores.len(), 2);
    }

    #[test]
    fn a_paused_screen_stands_still() {
        let mut screen = Screen::<ServerStats>::new("shm:kv".into());
        screen.update(Ok(server(1_000_000, 100)));
        screen.is_paused = true;
        screen.update(Ok(server(2_000_000, 200)));
        screen.update(Err("silent".into()));
        assert!(screen.figures.is_none() && screen.error.is_none());
        screen.is_paused = false;
        screen.update(Ok(server(3_000_000, 300)));
        assert_eq!(screen.rates, [200], "the interval is as long as the pause was");
    }

    #[test]
    fn the_graph_forgets() {
        let mut screen = Screen::<ServerStats>::new("shm:kv".into());
        (0..3000).for_each(|_| screen.update(Err("nobody".into())));
        assert_eq!(screen.rates.len(), HISTORY_MAX);
    }
}
