//! Echoes of small datagrams with segmentation offload, many in flight: an upper bound for a rate of calls.

use std::io::{self, IoSlice};
use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use super::super::open::set;
use super::super::sockaddr::SockAddr;
use super::super::socket::{Arrival, Socket};
use super::{CALLS_PER_CHECK, GIVE_UP_AFTER, Half, LOST_AFTER, Method, ready, say_goodbye, two_sockets};

/// Trains in flight: one is sent while the other is answered.
const TRAINS: usize = 2;

/// Measures how many datagrams of `size` bytes per second come back over IPv4 loopback, sent in two trains of `train`
/// each, with one system call for each train at each end. Two threads, both polling, for about `duration`; `on_start`
/// runs first in each, to pin it.
///
/// # Errors
/// The system's error; [`io::ErrorKind::InvalidInput`] if a train of this size exceeds the limits of one call;
/// [`io::ErrorKind::TimedOut`] if nothing was ever answered.
pub fn echo_rate(size: usize, train: usize, duration: Duration, on_start: impl Fn(Half) + Sync) -> io::Result<f64> {
    let train = Method::Offload(train).datagrams(size)?;
    let (server, client, server_addr) = two_sockets()?;
    thread::scope(|scope| {
        let on_start = &on_start;
        let serving = scope.spawn(move || {
            on_start(Half::Server);
            serve(&server, duration + 2 * GIVE_UP_AFTER)
        });
        on_start(Half::Client);
        client.connect(server_addr)?;
        let rate = call(&client, size, train, duration);
        let goodbye = say_goodbye(&client, server_addr);
        serving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        goodbye.and(rate)
    })
}

/// A socket that sends and receives trains.
fn with_offload(socket: &UdpSocket) -> io::Result<Socket> {
    set(socket, libc::SOL_UDP, libc::UDP_GRO, 1)?;
    Ok(Socket::new(socket.try_clone()?.into()))
}

/// The segment size of a train, unless it is a single datagram.
fn segment(arrival: &Arrival) -> Option<u16> {
    (arrival.len > arrival.segment).then_some(arrival.segment as u16)
}

/// Sends each train back unchanged, until an empty datagram comes.
fn serve(socket: &UdpSocket, deadline: Duration) -> io::Result<()> {
    let raw = with_offload(socket)?;
    let start = Instant::now();
    let mut buffer = vec![0; 65_536];
    let mut connected = false;
    while start.elapsed() < deadline {
        for _ in 0..CALLS_PER_CHECK {
            let Some(arrival) = ready(raw.receive(&mut buffer))? else { continue };
            if arrival.len == 0 {
                return Ok(());
            }
            if let (false, Some(from)) = (connected, arrival.from) {
                socket.connect(from)?;
                connected = true;
            }
            ready(raw.send_slices(&[IoSlice::new(&buffer[..arrival.len])], None, segment(&arrival)))?;
        }
    }
    Ok(())
}

/// Keeps [`TRAINS`] in flight and counts what comes back.
fn call(socket: &UdpSocket, size: usize, train: usize, duration: Duration) -> io::Result<f64> {
    let raw = with_offload(socket)?;
    let bytes = vec![1; size * train];
    let mut buffer = vec![0; 65_536];
    let send = || {
        let to: Option<&SockAddr> = None;
        ready(raw.send_slices(&[IoSlice::new(&bytes)], to, (train > 1).then_some(size as u16))).map(drop)
    };
    let start = Instant::now();
    let (mut answered, mut owed, mut heard) = (0, 0, start);
    for _ in 0..TRAINS {
        send()?;
    }
    while start.elapsed() < duration || answered == 0 && start.elapsed() < duration + GIVE_UP_AFTER {
        for _ in 0..CALLS_PER_CHECK {
            let Some(arrival) = ready(raw.receive(&mut buffer))? else { continue };
            let datagrams = arrival.len.div_ceil(arrival.segment);
            answered += datagrams;
            // The kernel may have cut or joined trains: the echoed datagrams go out again in whole trains.
            owed += datagrams;
            while owed >= train {
                owed -= train;
                send()?;
            }
            heard = Instant::now();
        }
        if heard.elapsed() > LOST_AFTER {
            heard = Instant::now();
            send()?;
        }
    }
    if answered == 0 {
        Err(io::ErrorKind::TimedOut.into())
    } else {
        Ok(answered as f64 / start.elapsed().as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trains_come_back() {
        for train in [1, 30] {
            assert!(echo_rate(64, train, Duration::from_millis(20), |_| ()).unwrap() > 0.0);
        }
        assert_eq!(echo_rate(64, 65, Duration::ZERO, |_| ()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
