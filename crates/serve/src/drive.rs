//! An rpc endpoint inside a tokio runtime: one thread runs both, and sleeps once for everything it waits for.

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::time::Duration;

use dunlin_net::{NetError, Transport};
use dunlin_rpc::{Endpoint, Turn};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::yield_now;
use tokio::time::timeout;

/// Nanoseconds after which other tasks, and tokio's sockets, get their turn.
const YIELD_NANOS: u64 = 20_000;
/// Tokio's timers fire up to a millisecond late. Deadlines that are closer than this are waited for awake: those of a
/// retransmission, or of a paced packet.
const SLEEP_MIN: Duration = Duration::from_millis(1);

/// Runs an endpoint as a task of a tokio runtime of one thread, until the task is dropped. It polls while there is work
/// and as long after that as the endpoint's [`PollPolicy`](dunlin_net::PollPolicy) says; otherwise it sleeps in tokio's
/// own wait. A packet over any of the endpoint's transports ends that sleep, as does a call that another task of the
/// thread issues, or a waker from another thread.
///
/// Packets that come while other tasks run wait for those tasks, so no task of the thread should run longer than
/// packets may wait.
///
/// # Errors
/// [`NetError::Io`] if the system has no descriptor left, or tokio's driver is gone.
///
/// # Panics
/// Outside a tokio runtime with its I/O and time drivers; and as [`Endpoint::turn`].
///
/// ```
/// use std::rc::Rc;
///
/// use dunlin_serve::drive::drive;
/// use dunlin_net::AnyTransport;
/// use dunlin_rpc::{Endpoint, EndpointConfig};
///
/// let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// let local = tokio::task::LocalSet::new();
/// let any_port = "udp://127.0.0.1:0".parse()?;
/// # let done: Result<(), Box<dyn std::error::Error>> =
/// local.block_on(&runtime, async {
///     let server = Rc::new(Endpoint::new(AnyTransport::bind(&any_port)?, EndpointConfig::default())?);
///     server.register(7, |request| request.respond(b"pong"))?;
///     let client = Rc::new(Endpoint::new(AnyTransport::bind(&any_port)?, EndpointConfig::default())?);
///     for endpoint in [server.clone(), client.clone()] {
///         tokio::task::spawn_local(async move { drive(&endpoint).await });
///     }
///     let session = client.connect(&server.local_addr()).await?;
///     assert_eq!(&session.call(7, b"ping".to_vec()).await?.response[..], b"pong");
///     Ok(())
/// });
/// # done?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub async fn drive<T: Transport>(endpoint: &Endpoint<T>) -> Result<Infallible, NetError> {
    let fd = endpoint.wake_fd()?;
    #[allow(
        deprecated,
        reason = "what replaces it is an unsafe function; for a descriptor that is owned the two are alike"
    )]
    let fd = AsyncFd::with_interest(fd, Interest::READABLE).map_err(refused)?;
    loop {
        let mut yielded_at = endpoint.now();
        let time = loop {
            match endpoint.turn() {
                Turn::Sleep(time) if time >= SLEEP_MIN => break time,
                Turn::Busy | Turn::Spin | Turn::Sleep(_) => {}
            }
            // Reading the clock after each turn would take a busy server a twentieth of its time.
            if endpoint.loop_time().saturating_sub(yielded_at) >= YIELD_NANOS {
                yield_now().await;
                yielded_at = endpoint.now();
            }
        };
        sleep(&fd, time).await?;
    }
}

/// Sleeps until the descriptor is readable or the time is over.
async fn sleep(fd: &AsyncFd<OwnedFd>, time: Duration) -> Result<(), NetError> {
    if let Ok(readable) = timeout(time, fd.readable()).await {
        // What makes it readable from now on is reported anew; the next turn looks for what did before.
        readable.map_err(refused)?.clear_ready();
    }
    Ok(())
}

fn refused(cause: std::io::Error) -> NetError {
    NetError::Io { doing: "wait for an endpoint in tokio's event loop".into(), cause }
}
