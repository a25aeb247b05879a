//! What bare system calls on UDP sockets can do: the floors that benchmarks print beside the transport's own results.
//!
//! Nothing here is framed, routed or coalesced. Each measurement has two halves, which run in two threads
//! ([`ping_pong`], [`one_way`]) or in two processes: one process calls [`ping_serve`] or [`receive`] on a socket from
//! [`bind`], the other calls [`ping_call`] or [`send`] with the address of the first ([`echo_rate`] and [`wake_ups`]
//! run in two threads only). Every half ends by itself: at its deadline, or when the other half signals that it is
//! done.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;

use crate::clock::Clock;

use super::open::{ask_buffer, set};
use super::sockaddr::SockAddr;
use super::socket::{Arrival, Socket};
use super::train::{TRAIN_BYTES_MAX, TRAIN_DATAGRAMS_MAX};

mod echo;
mod wake;

pub use echo::echo_rate;
pub use wake::wake_ups;

/// Most datagrams of one [`Method::Batched`] call.
pub const BATCH_MAX: usize = 32;

/// Receive buffer that [`bind`] requests, in bytes: the transport's default.
const RECV_BUFFER_BYTES: usize = 64 << 20;
/// How long [`ping_call`] waits before it treats a datagram as lost.
const LOST_AFTER: Duration = Duration::from_millis(50);
/// How much longer than asked [`ping_call`] and [`echo_rate`] wait for the first answer: the other thread may be
/// descheduled for all of the time.
const GIVE_UP_AFTER: Duration = Duration::from_secs(3);
/// How often a half signals that it is done: the other's queue may be full.
const GOODBYES: usize = 5;
/// Calls between two reads of the clock.
const CALLS_PER_CHECK: usize = 16;

/// How datagrams are handed to and taken from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// One by one: `sendto`, `recvfrom`.
    Plain,
    /// This many by one `sendmmsg`, at most [`BATCH_MAX`]; `recvmmsg` likewise.
    Batched(usize),
    /// This many by one `sendmsg` with segmentation offload, at most 64 and 64 KiB in all; `recvmsg` with receive
    /// offload.
    Offload(usize),
}

impl Method {
    /// Datagrams of `size` bytes that one call sends, if the call is within its limits.
    fn datagrams(self, size: usize) -> io::Result<usize> {
        let (count, count_max, bytes_max) = match self {
            Method::Plain => (1, 1, TRAIN_BYTES_MAX),
            Method::Batched(count) => (count, BATCH_MAX, BATCH_MAX * TRAIN_BYTES_MAX),
            Method::Offload(count) => (count, TRAIN_DATAGRAMS_MAX, TRAIN_BYTES_MAX),
        };
        let fits =
            (1..=count_max).contains(&count) && (1..=TRAIN_BYTES_MAX).contains(&size) && count * size <= bytes_max;
        if fits { Ok(count) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }
}

/// The half of a measurement that a thread runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// It answers, or receives.
    Server,
    /// It calls, or sends.
    Client,
}

/// What arrived, and how long it took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rate {
    /// Datagrams received.
    pub packets: u64,
    /// Their bytes, without headers.
    pub bytes: u64,
    /// From the first to the last of them.
    pub elapsed: Duration,
}

impl Rate {
    /// Datagrams per second; 0 if there was no time to measure.
    pub fn packets_per_second(&self) -> f64 {
        if self.elapsed.is_zero() { 0.0 } else { self.packets as f64 / self.elapsed.as_secs_f64() }
    }

    /// Gigabits of payload per second; 0 if there was no time to measure.
    pub fn gbit_per_second(&self) -> f64 {
        if self.elapsed.is_zero() { 0.0 } else { self.bytes as f64 * 8e-9 / self.elapsed.as_secs_f64() }
    }
}

/// A non-blocking socket at `addr` with the buffers that the transport would have.
///
/// # Errors
/// The system's error.
pub fn bind(addr: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(addr)?;
    socket.set_nonblocking(true)?;
    ask_buffer(&socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, RECV_BUFFER_BYTES)?;
    Ok(socket)
}

/// Echoes each datagram of the first sender that comes, polling without sleep. Returns how many.
///
/// # Errors
/// The system's error.
pub fn ping_serve(socket: &UdpSocket, deadline: Duration) -> io::Result<u64> {
    let start = Instant::now();
    let mut buffer = vec![0; 65_536];
    let mut answered = 0;
    let mut connected = false;
    while start.elapsed() < deadline {
        for _ in 0..CALLS_PER_CHECK {
            let received = if connected {
                ready(socket.recv(&mut buffer))?
            } else {
                ready(socket.recv_from(&mut buffer))?
                    .map(|(len, from)| socket.connect(from).map(|()| len))
                    .transpose()?
            };
            match received {
                None => {}
                Some(0) => return Ok(answered),
                Some(len) => {
                    connected = true;
                    answered += u64::from(ready(socket.send(&buffer[..len]))?.is_some());
                }
            }
        }
    }
    Ok(answered)
}

/// Sends `size` bytes (1 to 65,487) to a [`ping_serve`] and polls for the answer, again and again for `duration`.
/// Returns the round trips, in nanoseconds, in order.
///
/// # Errors
/// The system's error; [`io::ErrorKind::TimedOut`] if nothing was ever answered.
pub fn ping_call(socket: &UdpSocket, server: SocketAddr, size: usize, duration: Duration) -> io::Result<Vec<u64>> {
    socket.connect(server)?;
    let clock = Clock::new();
    let end = duration.as_nanos() as u64;
    let give_up_at = (duration + GIVE_UP_AFTER).as_nanos() as u64;
    let out = vec![1; size.clamp(1, TRAIN_BYTES_MAX)];
    let mut buffer = vec![0; 65_536];
    let mut samples = Vec::with_capacity(1 << 20);
    let mut sent_at = clock.now();
    while sent_at < end || samples.is_empty() && sent_at < give_up_at {
        ready(socket.send(&out))?;
        loop {
            let answered = ready(socket.recv(&mut buffer))?.is_some();
            let now = clock.now();
            if answered {
                samples.push(now - sent_at);
            }
            if answered || now - sent_at > LOST_AFTER.as_nanos() as u64 {
                sent_at = now;
                break;
            }
        }
    }
    say_goodbye(socket, server)?;
    if samples.is_empty() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(samples) }
}

/// Both halves of a ping-pong over IPv4 loopback, in this thread and another. `on_start` runs first in each, to pin it.
///
/// # Errors
/// The system's error.
pub fn ping_pong(size: usize, duration: Duration, on_start: impl Fn(Half) + Sync) -> io::Result<Vec<u64>> {
    let (server, client, server_addr) = two_sockets()?;
    thread::scope(|scope| {
        let on_start = &on_start;
        let serving = scope.spawn(move || {
            on_start(Half::Server);
            ping_serve(&server, duration + 2 * GIVE_UP_AFTER)
        });
        on_start(Half::Client);
        let samples = ping_call(&client, server_addr, size, duration);
        serving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        samples
    })
}

/// Sends datagrams of `size` bytes to `to` as fast as it can for `duration`. Returns how many the kernel accepted.
///
/// # Errors
/// The system's error; [`io::ErrorKind::InvalidInput`] if `method` and `size` exceed the limits of one call.
pub fn send(socket: &UdpSocket, to: SocketAddr, method: Method, size: usize, duration: Duration) -> io::Result<u64> {
    let per_call = method.datagrams(size)?;
    let raw = Socket::new(socket.try_clone()?.into());
    let addr = SockAddr::from(to);
    let bytes = vec![1; size * per_call];
    let slices: Vec<_> = bytes.chunks(size).map(io::IoSlice::new).collect();
    let datagrams: Vec<_> = slices.chunks(1).collect();
    let start = Instant::now();
    let mut sent = 0;
    while start.elapsed() < duration {
        for _ in 0..CALLS_PER_CHECK {
            let taken = match method {
                Method::Plain => raw.send_to(&bytes, Some(&addr)).map(|()| 1),
                Method::Batched(_) => raw.send_each(&datagrams, Some(&addr)),
                Method::Offload(_) => {
                    raw.send_slices(&[io::IoSlice::new(&bytes)], Some(&addr), Some(size as u16)).map(|()| per_call)
                }
            };
            sent += ready(taken)?.unwrap_or(0) as u64;
        }
    }
    say_goodbye(socket, to)?;
    Ok(sent)
}

/// Receives what [`send`] sends, until that is done or `deadline` is over, polling without sleep.
///
/// # Errors
/// The system's error.
pub fn receive(socket: &UdpSocket, method: Method, deadline: Duration) -> io::Result<Rate> {
    let offload = matches!(method, Method::Offload(_));
    set(socket, libc::SOL_UDP, libc::UDP_GRO, offload.into())?;
    let raw = Socket::new(socket.try_clone()?.into());
    let mut buffers = vec![0; 65_536 * BATCH_MAX];
    let mut arrivals: ArrayVec<Arrival, BATCH_MAX> = ArrayVec::new();
    let mut rate = Rate::default();
    let (start, mut first) = (Instant::now(), None);
    while start.elapsed() < deadline {
        for _ in 0..CALLS_PER_CHECK {
            arrivals.clear();
            let received = match method {
                Method::Plain | Method::Offload(_) => raw.receive(&mut buffers[..65_536]).map(|a| arrivals.push(a)),
                Method::Batched(_) => {
                    let mut chunks = buffers.chunks_exact_mut(65_536);
                    raw.receive_many(std::array::from_fn(|_| chunks.next().unwrap_or_default()), &mut arrivals)
                }
            };
            if ready(received)?.is_none() {
                continue;
            }
            let first = *first.get_or_insert_with(Instant::now);
            for arrival in &arrivals {
                if arrival.len == 0 {
                    return Ok(rate);
                }
                rate.packets += arrival.len.div_ceil(arrival.segment) as u64;
                rate.bytes += arrival.len as u64;
            }
            rate.elapsed = first.elapsed();
        }
    }
    Ok(rate)
}

/// Both halves of a one-way stream over IPv4 loopback, in this thread and another. `on_start` runs first in each, to
/// pin it.
///
/// # Errors
/// As [`send`] and [`receive`].
pub fn one_way(method: Method, size: usize, duration: Duration, on_start: impl Fn(Half) + Sync) -> io::Result<Rate> {
    method.datagrams(size)?;
    let (server, client, server_addr) = two_sockets()?;
    thread::scope(|scope| {
        let on_start = &on_start;
        let receiving = scope.spawn(move || {
            on_start(Half::Server);
            receive(&server, method, duration + Duration::from_secs(1))
        });
        on_start(Half::Client);
        let sent = send(&client, server_addr, method, size, duration);
        let rate = receiving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        sent.and(rate)
    })
}

fn two_sockets() -> io::Result<(UdpSocket, UdpSocket, SocketAddr)> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let (server, client) = (bind(any)?, bind(any)?);
    let server_addr = server.local_addr()?;
    Ok((server, client, server_addr))
}

/// Signals with empty datagrams that this half is done.
fn say_goodbye(socket: &UdpSocket, to: SocketAddr) -> io::Result<()> {
    let raw = Socket::new(socket.try_clone()?.into());
    for _ in 0..GOODBYES {
        match ready(raw.send_to(&[], Some(&SockAddr::from(to)))) {
            // The other half has received it and closed its socket.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(()),
            result => result?,
        };
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// `None` where a non-blocking call would have had to wait.
#[inline]
fn ready<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => Ok(None),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ping_pong_measures_round_trips() {
        let samples = ping_pong(48, Duration::from_millis(20), |_| ()).unwrap();
        assert!(samples.iter().all(|&ns| ns > 0));
    }

    #[test]
    fn every_method_moves_datagrams() {
        for (method, size) in
            [(Method::Plain, 48), (Method::Batched(8), 48), (Method::Offload(32), 48), (Method::Offload(7), 9000)]
        {
            let rate = one_way(method, size, Duration::from_millis(20), |_| ()).unwrap();
            assert!(rate.packets > 0 && rate.bytes == rate.packets * size as u64, "{method:?}: {rate:?}");
        }
    }

    #[test]
    fn limits_of_a_call_are_checked() {
        for (method, size) in
            [(Method::Batched(33), 1), (Method::Offload(65), 1), (Method::Offload(8), 9000), (Method::Plain, 0)]
        {
            let error = one_way(method, size, Duration::from_millis(1), |_| ()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{method:?}");
        }
    }
}
