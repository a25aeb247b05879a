//! One connection of the load: it writes as many requests as fit the window, and parses all answers that have arrived.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::load::TextOperation;
use crate::BenchError;
use crate::workload::item::{KEY_BYTES, fill_value, is_value, text_key};

/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;
/// Maximum reported length of a line with an error.
const ERROR_LINE_MAX: usize = 200;

const STORED: &[u8] = b"STORED\r\n";
const MISS: &[u8] = b"END\r\n";
const HIT_BEGIN: &[u8] = b"VALUE ";
const HIT_END: &[u8] = b"\r\nEND\r\n";

/// How answers are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Check {
    /// Every byte.
    Everything,
    /// Only their length: those of a bare server.
    Length,
}

/// A request without an answer.
struct Pending {
    number: u64,
    sent: u64,
}

/// A received answer.
pub(super) struct Answered {
    /// Nanoseconds since the request was issued.
    pub nanos: u64,
    /// Whether a read found its item; true for writes.
    pub hit: bool,
}

/// A connection and its window.
pub(super) struct Connection {
    stream: TcpStream,
    operation: TextOperation,
    value_bytes: usize,
    check: Check,
    window: usize,
    pending: VecDeque<Pending>,
    output: Vec<u8>,
    written: usize,
    input: Vec<u8>,
    /// Bytes of `input` in use.
    filled: usize,
}

impl Connection {
    pub fn open(server: SocketAddr, window: usize, value_bytes: usize, check: Check) -> Result<Self, BenchError> {
        let doing = || BenchError::io(format!("connect to {server}"));
        let stream = TcpStream::connect(server).map_err(doing())?;
        stream.set_nodelay(true).map_err(doing())?;
        stream.set_nonblocking(true).map_err(doing())?;
        Ok(Connection {
            stream,
            operation: TextOperation::Get,
            value_bytes,
            check,
            window,
            pending: VecDeque::with_capacity(window),
            output: Vec::new(),
            written: 0,
            input: vec![0; READ_BYTES + hit_bytes(value_bytes)],
            filled: 0,
        })
    }

    /// Sets the operation from now on; nothing may be pending.
    pub fn set_operation(&mut self, operation: TextOperation) {
        debug_assert!(self.pending.is_empty());
        self.operation = operation;
    }

    /// Requests without an answer.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Whether bytes wait to be written.
    pub fn wants_to_write(&self) -> bool {
        self.written < self.output.len()
    }

    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Issues requests until the window is full or there are no more numbers, and writes as much as the system accepts.
    pub fn send(&mut self, now: u64, mut next: impl FnMut() -> Option<u64>) -> Result<(), BenchError> {
        while self.pending.len() < self.window {
            let Some(number) = next() else { break };
            self.encode(number);
            self.pending.push_back(Pending { number, sent: now });
        }
        while self.wants_to_write() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(0) => return Err(closed()),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(BenchError::io("write requests")(error)),
            }
        }
        self.output.clear();
        self.written = 0;
        Ok(())
    }

    fn encode(&mut self, number: u64) {
        match self.operation {
            TextOperation::Get => {
                self.output.extend_from_slice(b"get ");
                self.output.extend_from_slice(&text_key(number));
                self.output.extend_from_slice(b"\r\n");
            }
            TextOperation::Set => {
                self.output.extend_from_slice(b"set ");
                self.output.extend_from_slice(&text_key(number));
                // Writing to a vector cannot fail.
                let _ = write!(self.output, " 0 0 {}\r\n", self.value_bytes);
                let start = self.output.len();
                self.output.resize(start + self.value_bytes, 0);
                fill_value(number, &mut self.output[start..]);
                self.output.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Reads available bytes and passes on each complete answer.
    pub fn receive(&mut self, now: impl FnOnce() -> u64, mut answered: impl FnMut(Answered)) -> Result<(), BenchError> {
        match self.stream.read(&mut self.input[self.filled..]) {
            Ok(0) => return Err(closed()),
            Ok(count) => self.filled += count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return Ok(()),
            Err(error) => return Err(BenchError::io("read answers")(error)),
        }
        let now = now();
        let mut at = 0;
        while let Some(pending) = self.pending.front() {
            let Some((len, hit)) = self.parse(&self.input[at..self.filled], pending.number)? else { break };
            answered(Answered { nanos: now.saturating_sub(pending.sent), hit });
            at += len;
            self.pending.pop_front();
        }
        if self.pending.is_empty() && at < self.filled {
            return Err(wrong(&self.input[at..self.filled]));
        }
        self.input.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(())
    }

    /// The length of the answer at the front of these bytes, and whether it is a hit. `None` if it is incomplete.
    fn parse(&self, bytes: &[u8], number: u64) -> Result<Option<(usize, bool)>, BenchError> {
        if self.operation == TextOperation::Set {
            return expect(bytes, STORED).map(|whole| whole.then_some((STORED.len(), true)));
        }
        let hit = hit_bytes(self.value_bytes);
        if bytes.first() != HIT_BEGIN.first() {
            return expect(bytes, MISS).map(|whole| whole.then_some((MISS.len(), false)));
        }
        let Some(answer) = bytes.get(..hit) else { return Ok(None) };
        if self.check == Check::Everything && !is_hit(answer, number, self.value_bytes) {
            return Err(wrong(answer));
        }
        Ok(Some((hit, true)))
    }
}

/// Bytes of the answer to a read that found its item.
pub(super) fn hit_bytes(value_bytes: usize) -> usize {
    HIT_BEGIN.len() + KEY_BYTES + " 0 ".len() + decimal_digits(value_bytes) + "\r\n".len() + value_bytes + HIT_END.len()
}

fn decimal_digits(number: usize) -> usize {
    number.checked_ilog10().map_or(1, |log| log as usize + 1)
}

/// Whether `answer`, which has the length of a hit, is the hit of this item.
fn is_hit(answer: &[u8], number: u64, value_bytes: usize) -> bool {
    let (key, rest) = answer[HIT_BEGIN.len()..].split_at(KEY_BYTES);
    let (head, rest) = rest.split_at(rest.len() - value_bytes - HIT_END.len());
    let (value, end) = rest.split_at(value_bytes);
    // If the head is right, so is the length: the value follows the head.
    answer.starts_with(HIT_BEGIN)
        && key == text_key(number)
        && head.starts_with(b" 0 ")
        && is_value(number, value)
        && end == HIT_END
}

/// Whether `bytes` begin with all of `expected`; an error if they begin with anything else.
fn expect(bytes: &[u8], expected: &[u8]) -> Result<bool, BenchError> {
    let common = bytes.len().min(expected.len());
    if bytes[..common] != expected[..common] {
        return Err(wrong(bytes));
    }
    Ok(common == expected.len())
}

fn wrong(bytes: &[u8]) -> BenchError {
    let line = bytes.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(&line[..line.len().min(ERROR_LINE_MAX)]).into_owned();
    BenchError::OtherSystem { system: "a memcached server", why: format!("it answered {line:?}, which is wrong here") }
}

fn closed() -> BenchError {
    BenchError::io("talk to a memcached server")(io::ErrorKind::ConnectionReset.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn hit(number: u64, value_bytes: usize) -> Vec<u8> {
        let mut value = vec![0; value_bytes];
        fill_value(number, &mut value);
        let mut answer = b"VALUE ".to_vec();
        answer.extend_from_slice(&text_key(number));
        write!(answer, " 0 {value_bytes}\r\n").unwrap();
        answer.extend_from_slice(&value);
        answer.extend_from_slice(HIT_END);
        answer
    }

    fn connection(value_bytes: usize) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Connection::open(listener.local_addr().unwrap(), 4, value_bytes, Check::Everything).unwrap()
    }

    #[test]
    fn a_hit_is_verified_to_the_last_byte() {
        for value_bytes in [1, 9, 10, 32, 1000] {
            let connection = connection(value_bytes);
            let answer = hit(7, value_bytes);
            assert_eq!(answer.len(), hit_bytes(value_bytes));
            assert_eq!(connection.parse(&answer, 7).unwrap(), Some((answer.len(), true)));
            assert!(connection.parse(&answer, 8).is_err());
            for len in 0..answer.len() {
                assert_eq!(connection.parse(&answer[..len], 7).unwrap(), None, "{len} bytes are not whole");
            }
            let mut damaged = answer.clone();
            damaged[HIT_BEGIN.len() + KEY_BYTES + 5 + decimal_digits(value_bytes)] ^= 1;
            assert!(connection.parse(&damaged, 7).is_err());
        }
    }

    #[test]
    fn misses_and_errors_are_told_apart() {
        let mut connection = connection(32);
        assert_eq!(connection.parse(b"END\r\nEND\r\n", 7).unwrap(), Some((5, false)));
        assert_eq!(connection.parse(b"EN", 7).unwrap(), None);
        assert!(connection.parse(b"ERROR\r\n", 7).unwrap_err().to_string().contains("ERROR"));
        connection.set_operation(TextOperation::Set);
        assert_eq!(connection.parse(b"STORED\r\n", 7).unwrap(), Some((8, true)));
        assert!(connection.parse(b"SERVER_ERROR out of memory storing object\r\n", 7).is_err());
    }
}
