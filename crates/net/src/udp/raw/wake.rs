//! Waking a thread that sleeps on a socket: a lower bound for the wake-up of an endpoint.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::clock::Clock;

use super::{Half, LOST_AFTER, ready, say_goodbye, two_sockets};

/// How long a measurement without any sample continues past its time, as when other work has the cores.
const GIVE_UP_AFTER: Duration = Duration::from_secs(3);

/// Measures, again and again for about `duration`, the nanoseconds from sending a datagram of 64 bytes over IPv4
/// loopback until the thread that slept in `poll` on the other socket had received it. Between two datagrams the sender
/// polls for `gap`, so that the other thread falls asleep. `on_start` runs first in each thread, to pin it.
///
/// # Errors
/// The system's error; [`io::ErrorKind::TimedOut`] if nothing was ever received.
pub fn wake_ups(
    mut gap: impl FnMut() -> Duration,
    duration: Duration,
    on_start: impl Fn(Half) + Sync,
) -> io::Result<Vec<u64>> {
    let (server, client, server_addr) = two_sockets()?;
    client.connect(server_addr)?;
    let (clock, woken_at) = (Clock::new(), AtomicU64::new(0));
    let (clock, woken_at, on_start) = (&clock, &woken_at, &on_start);
    thread::scope(|scope| {
        let sleeping = scope.spawn(move || {
            on_start(Half::Server);
            sleep_and_receive(&server, || woken_at.store(clock.now().max(1), Ordering::Release))
        });
        on_start(Half::Client);
        let start = Instant::now();
        let mut samples = Vec::new();
        while start.elapsed() < duration || samples.is_empty() && start.elapsed() < duration + GIVE_UP_AFTER {
            let gap_end = clock.now() + gap().as_nanos() as u64;
            while clock.now() < gap_end {}
            woken_at.store(0, Ordering::Release);
            let sent_at = clock.now();
            ready(client.send(&[1; 64]))?;
            let lost_at = sent_at + LOST_AFTER.as_nanos() as u64;
            while woken_at.load(Ordering::Acquire) == 0 && clock.now() < lost_at {}
            match woken_at.load(Ordering::Acquire) {
                0 => {}
                woken_at => samples.push(woken_at.saturating_sub(sent_at)),
            }
        }
        let goodbye = say_goodbye(&client, server_addr);
        sleeping.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        goodbye?;
        if samples.is_empty() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(samples) }
    })
}

/// Sleeps until a datagram comes, receives it and calls `on_datagram`, until an empty one comes.
fn sleep_and_receive(socket: &UdpSocket, on_datagram: impl Fn()) -> io::Result<()> {
    /// After this time without a datagram the other thread must have failed: nobody wakes this one any more.
    const ABANDONED_AFTER: Duration = Duration::from_secs(5);
    let mut buffer = [0; 2048];
    let mut heard = Instant::now();
    while heard.elapsed() < ABANDONED_AFTER {
        let mut fd = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the pointer is to one entry.
        if unsafe { libc::poll(&mut fd, 1, 500) } <= 0 {
            continue;
        }
        match ready(socket.recv(&mut buffer))? {
            Some(0) => return Ok(()),
            Some(_) => on_datagram(),
            None => {}
        }
        heard = Instant::now();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_is_woken() {
        let samples = wake_ups(|| Duration::from_micros(200), Duration::from_millis(20), |_| ()).unwrap();
        assert!(samples.iter().all(|&ns| ns > 0));
    }
}
