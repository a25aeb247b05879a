//! The port for metrics and health, with good and bad requests.

use std::cell::Cell;
use std::rc::Rc;

use dunlin_serve::port::{CONNECTIONS_MAX, METRICS_TYPE, Pages, serve};
use dunlin_serve::{Failure, Health};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::task::LocalSet;

const METRICS: &str = "# EOF\n";

/// Runs `test` beside a port whose source fails while the flag is set.
fn beside_a_port<T>(test: impl AsyncFnOnce(String, Rc<Cell<bool>>, Failure) -> T) -> T {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (fails, failure) = (Rc::new(Cell::new(false)), Failure::default());
        let metrics = {
            let fails = Rc::clone(&fails);
            async move || -> Result<String, &str> {
                if fails.get() { Err("core 1 does not answer") } else { Ok(METRICS.to_owned()) }
            }
        };
        let server =
            tokio::task::spawn_local(serve(listener, Pages { title: "A test", metrics, failure: failure.clone() }));
        let outcome = test(address, fails, failure).await;
        server.abort();
        outcome
    })
}

/// Sends a request and returns the status line and headers, and the body.
async fn ask(address: &str, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    (head.to_owned(), body.to_owned())
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
}

#[test]
fn a_scrape_gets_the_statistics_of_the_moment() {
    beside_a_port(async |address, fails, _| {
        let (head, body) = ask(&address, &get("/metrics")).await;
        assert!(head.starts_with("HTTP/1.1 200 ") && head.contains(METRICS_TYPE), "{head}");
        assert_eq!(body, METRICS);
        fails.set(true);
        let (head, body) = ask(&address, &get("/metrics")).await;
        assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
        assert_eq!(body, "core 1 does not answer\n");
    });
}

#[test]
fn other_requests_are_told_what_to_do() {
    beside_a_port(async |address, _, _| {
        let (head, body) = ask(&address, &get("/")).await;
        assert!(head.starts_with("HTTP/1.1 200 ") && body.contains("/metrics"));
        assert!(ask(&address, &get("/other")).await.0.starts_with("HTTP/1.1 404 "));
        let post = "POST /metrics HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        let (head, _) = ask(&address, post).await;
        assert!(head.starts_with("HTTP/1.1 405 ") && head.contains("GET, HEAD"), "{head}");
        let (head, _) = ask(&address, &format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(1 << 20))).await;
        assert!(head.starts_with("HTTP/1.1 4"), "{head}");
        assert!(ask(&address, "\r\r\r nonsense \0\r\n\r\n").await.0.starts_with("HTTP/1.1 400 "));
    });
}

#[test]
fn connections_that_say_nothing_keep_nobody_out_for_long() {
    beside_a_port(async |address, _, _| {
        let mut idle = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            idle.push(TcpStream::connect(&address).await.unwrap());
        }
        let waiting = tokio::task::spawn_local({
            let address = address.clone();
            async move { ask(&address, &get("/metrics")).await }
        });
        drop(idle.pop());
        assert!(waiting.await.unwrap().0.starts_with("HTTP/1.1 200 "));
    });
}

#[test]
fn a_service_is_healthy_while_no_core_has_failed() {
    beside_a_port(async |address, fails, failure| {
        // This request scrapes nothing.
        fails.set(true);
        let health = async || ask(&address, &get("/healthz")).await;
        let (head, body) = health().await;
        assert!(head.starts_with("HTTP/1.1 200 ") && body == "ok\n", "{head}");
        let (mailboxes, _receivers) = dunlin_serve::mailbox::mailboxes::<()>(1, 1);
        Health::new(0, failure, &mailboxes).fail("it is a test".into());
        let (head, body) = health().await;
        assert!(head.starts_with("HTTP/1.1 503 ") && body == "core 0 has failed: it is a test\n", "{head}");
    });
}
