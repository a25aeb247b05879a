//! A key-value server, watched.

use std::rc::Rc;

use dunlin_kv::client::{ClientConfig, KvClient, KvError};
use dunlin_kv::metrics::ServerStats;
use dunlin_net::{Addr, AnyTransport};
use dunlin_rpc::Endpoint;
use ratatui::Frame;

use super::figures::Figures;
use super::lines::{COLUMNS, Column};
use super::poll::DEADLINE;
use super::screen::Screen;
use super::{Watched, view};

impl Watched for ServerStats {
    type Figures = Figures;
    type Client = KvClient<AnyTransport>;
    type Error = KvError;

    fn client(endpoint: &Rc<Endpoint<AnyTransport>>, server: &Addr) -> KvClient<AnyTransport> {
        let mut config = ClientConfig::default();
        config.sessions_per_core = 1;
        config.deadline = Some(DEADLINE);
        KvClient::new(endpoint, server, config)
    }

    async fn ask(client: &KvClient<AnyTransport>) -> Result<ServerStats, KvError> {
        client.stats().await
    }

    fn is_same_process(&self, before: &ServerStats) -> bool {
        ServerStats::is_same_process(self, before)
    }

    fn figures(&self, before: &ServerStats) -> Option<Figures> {
        Figures::of_server(self, before)
    }

    fn figures_of_cores(&self, before: &ServerStats) -> Vec<Figures> {
        Figures::of_cores(self, before)
    }

    fn rate(figures: &Figures) -> f64 {
        figures.rate()
    }

    fn columns() -> &'static [Column<Figures>] {
        &COLUMNS
    }

    fn draw(frame: &mut Frame<'_>, screen: &Screen<ServerStats>) {
        view::draw(frame, screen);
    }
}
