//! Settings of a client.

use std::time::Duration;

/// Settings of a client. Start from `ClientConfig::default()`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientConfig {
    /// Sessions with each core of the server, 1 to [`ClientConfig::SESSIONS_MAX`]; each has up to 8 requests in flight,
    /// and queues further ones. Default 4.
    pub sessions_per_core: usize,
    /// How long an operation may take; the server is told the deadline. Default 2 s; `None` for as long as the server
    /// lives. [`dunlin_rpc::EndpointConfig::connect_timeout`] limits the opening of sessions instead.
    pub deadline: Option<Duration>,
}

impl ClientConfig {
    /// Maximum number of sessions with one core.
    pub const SESSIONS_MAX: usize = 256;
}

impl Default for ClientConfig {
    fn default() -> Self {
        ClientConfig { sessions_per_core: 4, deadline: Some(Duration::from_secs(2)) }
    }
}
