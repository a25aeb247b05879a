//! The HTTP port that Prometheus reads, on a thread of its own and never on a core's.

use std::convert::Infallible;
use std::fmt::Display;
use std::io;
use std::pin::pin;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::exposition::{self, exposition};
use super::snapshot::ServerStats;

/// Connections at a time. More wait until one is closed.
pub const CONNECTIONS_MAX: usize = 64;
/// How long a connection may take to send the head of a request.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// How long a connection may live: a scraper opens another.
const CONNECTION_LIMIT: Duration = Duration::from_secs(300);
/// How long the port rests after the system refused a connection: it has no file descriptors left, most likely.
const REFUSED_REST: Duration = Duration::from_millis(100);
/// Longest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Answers `GET /metrics` with what `source` gives at that moment, until it is dropped.
///
/// Run it in a `LocalSet` of the management thread. A source that fails answers that request with status 503 and its error.
///
/// # Panics
/// If it is polled outside of a `LocalSet`.
pub async fn serve<S, E>(listener: TcpListener, source: S)
where
    S: AsyncFn() -> Result<ServerStats, E> + Clone + 'static,
    E: Display + 'static,
{
    // Dropped with this future, and its connections with it.
    let mut connections = JoinSet::new();
    loop {
        while connections.len() >= CONNECTIONS_MAX {
            connections.join_next().await;
        }
        // Forgets those that have ended.
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.spawn_local(connection(stream, source.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "the metrics port cannot accept a connection");
                sleep(REFUSED_REST).await;
            }
        }
    }
}

/// Listens at an address, `HOST:PORT`; port 0 takes a free one.
///
/// # Errors
/// Whatever the system says.
pub async fn listen(address: &str) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}

async fn connection<S, E>(stream: TcpStream, source: S)
where
    S: AsyncFn() -> Result<ServerStats, E>,
    E: Display,
{
    let service = service_fn(async |request| Ok::<_, Infallible>(answer(&request, &source).await));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    // A scraper that goes away in the middle, or speaks no HTTP, concerns nobody else.
    let _ = timeout(CONNECTION_LIMIT, pin!(connection)).await;
}

async fn answer<S, E>(request: &Request<Incoming>, source: &S) -> Response<Full<Bytes>>
where
    S: AsyncFn() -> Result<ServerStats, E>,
    E: Display,
{
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n".into());
        response.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/metrics" => match source().await {
            Ok(stats) => {
                let mut response = Response::new(Full::from(exposition(stats)));
                let content_type = hyper::header::HeaderValue::from_static(exposition::CONTENT_TYPE);
                response.headers_mut().insert(CONTENT_TYPE, content_type);
                response
            }
            Err(error) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
        },
        "/" => text(StatusCode::OK, "Dunlin key-value server; metrics are at /metrics\n".into()),
        _ => text(StatusCode::NOT_FOUND, "metrics are at /metrics\n".into()),
    }
}

fn text(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    let plain = hyper::header::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}
