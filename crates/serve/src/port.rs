//! The HTTP port of a service: `/metrics` for Prometheus and `/healthz` for health checks, on a thread of its own,
//! never on a core's thread.

use std::convert::Infallible;
use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::thread::JoinHandle;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{sleep, timeout};

use crate::error::ServeError;
use crate::failure::{Failed, Failure};
use crate::side;

/// Connections at a time. Further ones wait until one is closed.
pub const CONNECTIONS_MAX: usize = 64;
/// Media type of the metrics: OpenMetrics.
pub const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// How long a connection may take to send the head of a request.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// How long a connection may live: a scraper opens another.
const CONNECTION_LIMIT: Duration = Duration::from_secs(300);
/// How long the cores may take to report their counts.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// How long the port pauses after the system refused a connection: most likely it has no file descriptors left.
const REFUSED_REST: Duration = Duration::from_millis(100);
/// Longest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// The contents of a port.
#[derive(Debug, Clone)]
pub struct Pages<S> {
    /// The name of what answers there, in a few words.
    pub title: &'static str,
    /// Returns the current metrics, as OpenMetrics, or the reason why it cannot.
    pub metrics: S,
    /// Whether a core has failed, or hangs.
    pub failure: Failure,
}

type Metrics = Pin<Box<dyn Future<Output = Result<String, String>>>>;

/// [`Pages`] whatever their type, so that the server and its library are compiled once, here, and not again for each
/// service.
#[derive(Clone)]
struct Shown {
    title: &'static str,
    metrics: Rc<dyn Fn() -> Metrics>,
    failure: Failure,
}

impl Shown {
    fn of<S, E>(pages: Pages<S>) -> Shown
    where
        S: AsyncFn() -> Result<String, E> + Clone + 'static,
        E: Display + 'static,
    {
        let Pages { title, metrics, failure } = pages;
        let metrics = move || -> Metrics {
            let metrics = metrics.clone();
            Box::pin(async move { metrics().await.map_err(|error| error.to_string()) })
        };
        Shown { title, metrics: Rc::new(metrics), failure }
    }
}

/// A port that is served until this is dropped.
#[derive(Debug)]
pub struct Port {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Option<()>>>,
}

impl Port {
    /// Serves pages at `http://ADDRESS`, on a thread of its own.
    ///
    /// # Errors
    /// [`ServeError::Port`], [`ServeError::System`].
    pub fn open<S, E>(address: SocketAddr, pages: Pages<S>) -> Result<Port, ServeError>
    where
        S: AsyncFn() -> Result<String, E> + Clone + Send + 'static,
        E: Display + 'static,
    {
        Port::show(address, Box::new(move || Shown::of(pages)))
    }

    fn show(address: SocketAddr, pages: Box<dyn FnOnce() -> Shown + Send>) -> Result<Port, ServeError> {
        let failed = |why: io::Error| ServeError::Port { address, why };
        let listener = std::net::TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (stop, stopped) = oneshot::channel();
        let work = move || {
            LocalSet::new().block_on(&runtime, async move {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                tokio::select! {
                    () = serve_all(listener, pages()) => {}
                    _ = stopped => {}
                }
            });
        };
        Ok(Port { address, stop: Some(stop), thread: Some(side::start("metrics", work)?) })
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // Dropping the sender ends the thread.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there does not matter here.
            let _ = thread.join();
        }
    }
}

/// Serves pages until it is dropped. Run it in a `LocalSet`. If the metrics fail, the answer is status 503 with the
/// error.
///
/// # Panics
/// If it is polled outside of a `LocalSet`.
pub async fn serve<S, E>(listener: TcpListener, pages: Pages<S>)
where
    S: AsyncFn() -> Result<String, E> + Clone + 'static,
    E: Display + 'static,
{
    serve_all(listener, Shown::of(pages)).await;
}

async fn serve_all(listener: TcpListener, pages: Shown) {
    // Dropped with this future; its connections then end too.
    let mut connections = JoinSet::new();
    loop {
        while connections.len() >= CONNECTIONS_MAX {
            connections.join_next().await;
        }
        // Remove those that have ended.
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.spawn_local(connection(stream, pages.clone()));
            }
            Err(error) => {
                tracing::warn!(%error, "the metrics port cannot accept a connection");
                sleep(REFUSED_REST).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, pages: Shown) {
    let service = service_fn(async |request| Ok::<_, Infallible>(answer(&request, &pages).await));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    // A scraper that disconnects half-way, or does not speak HTTP, affects no other.
    let _ = timeout(CONNECTION_LIMIT, pin!(connection)).await;
}

async fn answer(request: &Request<Incoming>, pages: &Shown) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n".into());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match request.uri().path() {
        "/metrics" => metrics(pages).await,
        "/healthz" => health(&pages.failure),
        "/" => text(StatusCode::OK, format!("{}; metrics are at /metrics, health at /healthz\n", pages.title)),
        _ => text(StatusCode::NOT_FOUND, "metrics are at /metrics, health at /healthz\n".into()),
    }
}

async fn metrics(pages: &Shown) -> Response<Full<Bytes>> {
    match timeout(ANSWER_LIMIT, (pages.metrics)()).await {
        Ok(Ok(metrics)) => {
            let mut response = Response::new(Full::from(metrics));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(METRICS_TYPE));
            response
        }
        Ok(Err(error)) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
        Err(_) => text(StatusCode::SERVICE_UNAVAILABLE, format!("no answer within {ANSWER_LIMIT:?}\n")),
    }
}

/// A service is healthy if no core has failed. The server itself asks all cores repeatedly, and a core that does not
/// answer counts as failed.
fn health(failure: &Failure) -> Response<Full<Bytes>> {
    match failure.get() {
        Some(Failed { core, why }) => text(StatusCode::SERVICE_UNAVAILABLE, format!("core {core} has failed: {why}\n")),
        None => text(StatusCode::OK, "ok\n".into()),
    }
}

fn text(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response
}
