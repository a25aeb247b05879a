//! Addresses of endpoints, as a user writes them: `shm:NAME`, `udp://HOST:PORT`, `node:NUMBER`, `sim:HOST:THREAD`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use crate::error::NetError;

/// Longest name of a shared-memory endpoint, in bytes.
pub const SHM_NAME_BYTES_MAX: usize = 64;

/// The address of an endpoint.
///
/// ```
/// use dunlin_net::Addr;
///
/// let addr: Addr = "udp://127.0.0.1:31850".parse()?;
/// assert!(matches!(addr, Addr::Udp(_)));
/// assert_eq!("shm:echo".parse::<Addr>()?.to_string(), "shm:echo");
/// assert_eq!("echo".parse::<Addr>().unwrap_err().to_string(), "bad address \"echo\": write shm:NAME or udp://HOST:PORT");
/// # Ok::<(), dunlin_net::NetError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Addr {
    /// An endpoint of this host, reached through shared memory.
    Shm(ShmName),
    /// A UDP socket, IPv4 or IPv6.
    Udp(SocketAddr),
    /// An endpoint inside this process: a [`crate::loopback`] node.
    Node(u32),
    /// A thread of a host of a simulated datacenter.
    Sim {
        /// Number of the host, from zero.
        host: u32,
        /// Number of the thread on its host.
        thread: u16,
    },
}

/// The bits of an IPv6 address that a host cannot choose.
const NETWORK_BITS: u128 = !0 << 64;

/// Returns what the addresses of one host have in common, for limits per host. For IPv6 that is its 64-bit network, in
/// which a host may take any address. An IPv4 host that reaches an IPv6 socket is the same host as over IPv4.
pub fn host_of(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & NETWORK_BITS)),
        ip => ip,
    }
}

/// The name of a shared-memory endpoint: 1 to [`SHM_NAME_BYTES_MAX`] letters, digits, `.`, `_` or `-`, the first of
/// them a letter or digit, so that it is also a safe file name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShmName(Box<str>);

impl ShmName {
    /// Checks `name` and wraps it.
    ///
    /// # Errors
    /// [`NetError::BadAddress`] if the name is empty, too long, or holds another character.
    pub fn new(name: &str) -> Result<Self, NetError> {
        let bad = |why: String| NetError::BadAddress { text: format!("shm:{name}"), why };
        if name.is_empty() {
            return Err(bad("the name is empty; write for example shm:echo".into()));
        }
        if name.len() > SHM_NAME_BYTES_MAX {
            return Err(bad(format!("the name has {} bytes, at most {SHM_NAME_BYTES_MAX} are allowed", name.len())));
        }
        if !name.as_bytes()[0].is_ascii_alphanumeric() {
            return Err(bad("the name must begin with a letter or a digit".into()));
        }
        if let Some(c) = name.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))) {
            return Err(bad(format!("the name holds {c:?}; only letters, digits, '.', '_' and '-' are allowed")));
        }
        Ok(ShmName(name.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Addr::Shm(name) => write!(f, "shm:{}", name.as_str()),
            Addr::Udp(addr) => write!(f, "udp://{addr}"),
            Addr::Node(number) => write!(f, "node:{number}"),
            Addr::Sim { host, thread } => write!(f, "sim:{host}:{thread}"),
        }
    }
}

impl FromStr for Addr {
    type Err = NetError;

    /// Parses an address. A UDP host name is resolved, and its first address is taken.
    fn from_str(text: &str) -> Result<Self, NetError> {
        let bad = |why: String| NetError::BadAddress { text: text.to_owned(), why };
        if let Some(name) = text.strip_prefix("shm:") {
            return ShmName::new(name).map(Addr::Shm);
        }
        if let Some(number) = text.strip_prefix("node:") {
            let number = number.parse().map_err(|e| bad(format!("not a node number: {e}")))?;
            return Ok(Addr::Node(number));
        }
        if let Some(host_thread) = text.strip_prefix("sim:") {
            let parsed =
                host_thread.split_once(':').and_then(|(host, thread)| Some((host.parse().ok()?, thread.parse().ok()?)));
            let (host, thread) = parsed.ok_or_else(|| bad("write for example sim:3:0, host 3's thread 0".into()))?;
            return Ok(Addr::Sim { host, thread });
        }
        if let Some(host_port) = text.strip_prefix("udp://") {
            // Without brackets it is ambiguous where an IPv6 address ends and its port begins.
            if !host_port.starts_with('[') && host_port.matches(':').count() > 1 {
                return Err(bad("write an IPv6 address in brackets, for example udp://[::1]:31850".into()));
            }
            let mut found = host_port
                .to_socket_addrs()
                .map_err(|e| bad(format!("{e}; write for example udp://127.0.0.1:31850 or udp://[::1]:31850")))?;
            return found.next().map(Addr::Udp).ok_or_else(|| bad("the host name has no address".into()));
        }
        Err(bad("write shm:NAME or udp://HOST:PORT".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        for text in ["shm:echo", "shm:a.b-c_9", "udp://127.0.0.1:31850", "udp://[::1]:9", "node:7", "sim:3:12"] {
            assert_eq!(text.parse::<Addr>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn bad_text_says_what_to_write() {
        let long = format!("shm:{}", "x".repeat(65));
        for text in [
            "",
            "echo",
            "shm:",
            "shm:../etc",
            "shm:.hidden",
            "shm:a b",
            &long,
            "udp://",
            "udp://::1:80",
            "udp://1.2.3.4",
            "node:x",
            "sim:1",
            "sim:x:1",
            "sim:1:65536",
        ] {
            let message = text.parse::<Addr>().unwrap_err().to_string();
            assert!(message.contains(text) && message.len() > text.len(), "{message}");
        }
    }
}
