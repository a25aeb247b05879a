//! System limits that a service may reach: they are checked at the start, and the operator is told what to change.

use std::fs;

use dunlin_net::Addr;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::{EventLoop, ServeConfig};
use crate::error::ServeError;

/// Sessions in use for which a UDP endpoint should have at least one place each. With fewer places, the operator is
/// told how to get more.
const SESSIONS_WANTED: usize = 2_000;
/// The receive buffer that a UDP endpoint requests.
const RECEIVE_BUFFER_BYTES: u64 = 64 << 20;

/// Descriptors of a server for everything but its peers.
const BESIDE_PEERS: u64 = 512;
/// Peers in shared memory that one core has at a time, by the default settings of a transport. Each takes a descriptor,
/// and another one where the core sleeps in tokio.
const SHM_PEERS_MAX: u64 = 1024;

/// Descriptors that the cores of a server may need.
pub(crate) fn of_cores(config: &ServeConfig) -> u64 {
    let listens_near = config.listen.iter().chain(&config.peer).any(|addr| matches!(addr, Addr::Shm(_)));
    let of_peer = match config.event_loop {
        EventLoop::Endpoint => 1,
        EventLoop::Tokio => 2,
    };
    let of_core = if listens_near { of_peer * SHM_PEERS_MAX } else { 0 };
    BESIDE_PEERS + u64::from(config.cores) * of_core
}

/// Makes sure that this process may open `needed` descriptors: raises its soft limit as far as allowed.
///
/// # Errors
/// [`ServeError::System`] if the hard limit is lower; it says what to change. A service may continue with the
/// descriptors there are.
pub fn allow_descriptors(needed: u64) -> Result<(), ServeError> {
    let limit = getrlimit(Resource::Nofile);
    match plan(limit, needed) {
        Plan::Enough => Ok(()),
        Plan::Raise(limit) => setrlimit(Resource::Nofile, limit)
            .map_err(|error| ServeError::System { what: "a higher limit of open files", why: error.to_string() }),
        Plan::TooLow { hard } => {
            // As many as allowed.
            let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(hard), maximum: Some(hard) });
            let why = format!(
                "{needed} may be needed and {hard} are allowed; raise the hard limit with `ulimit -Hn {needed}` as root or \
                 LimitNOFILE={needed} in the unit, or allow fewer connections"
            );
            Err(ServeError::System { what: "enough open files", why })
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Plan {
    Enough,
    Raise(Rlimit),
    TooLow { hard: u64 },
}

fn plan(limit: Rlimit, needed: u64) -> Plan {
    match limit {
        Rlimit { current: None, .. } => Plan::Enough,
        Rlimit { current: Some(current), .. } if current >= needed => Plan::Enough,
        Rlimit { maximum: Some(hard), .. } if hard < needed => Plan::TooLow { hard },
        Rlimit { maximum, .. } => Plan::Raise(Rlimit { current: Some(needed), maximum }),
    }
}

/// What to change so that a UDP endpoint, which has `places` in its receive queue, can have more sessions in use at the
/// same time; `None` if there are enough places.
pub fn of_receive_queue(addresses: &[Addr], places: usize) -> Option<String> {
    let udp = addresses.iter().find(|addr| matches!(addr, Addr::Udp(_)))?;
    let max = fs::read_to_string("/proc/sys/net/core/rmem_max").ok()?.trim().parse::<u64>().ok()?;
    (places < SESSIONS_WANTED && max < RECEIVE_BUFFER_BYTES).then(|| {
        format!(
            "{udp} keeps places for {places} sessions that are used at a time, because net.core.rmem_max is {max} bytes; \
             packets of more may be lost and sent again. For more places, run \
             `sysctl -w net.core.rmem_max={RECEIVE_BUFFER_BYTES}` and start again"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_as_far_as_the_hard_one() {
        let limit = |current, maximum| Rlimit { current, maximum };
        let cases = [
            (limit(None, None), 1 << 40, Plan::Enough),
            (limit(Some(1024), Some(4096)), 1024, Plan::Enough),
            (limit(Some(1024), Some(4096)), 4096, Plan::Raise(limit(Some(4096), Some(4096)))),
            (limit(Some(1024), Some(4096)), 4097, Plan::TooLow { hard: 4096 }),
            (limit(Some(1024), None), 4097, Plan::Raise(limit(Some(4097), None))),
        ];
        for (limit, needed, expected) in cases {
            assert_eq!(plan(limit, needed), expected, "{needed}");
        }
        allow_descriptors(1).unwrap();
        let told = allow_descriptors(u64::MAX - 1).map_err(|error| error.to_string());
        assert!(told.is_ok() || told.is_err_and(|told| told.contains("LimitNOFILE")));
    }

    #[test]
    fn peers_in_shared_memory_take_descriptors() {
        let config = |listen: &str, cores, event_loop| {
            let listen = vec![listen.parse().unwrap()];
            ServeConfig { listen, cores, event_loop, ..ServeConfig::named("test") }
        };
        assert_eq!(of_cores(&config("udp://127.0.0.1:7700", 8, EventLoop::Endpoint)), BESIDE_PEERS);
        assert_eq!(of_cores(&config("shm:kv", 3, EventLoop::Endpoint)), BESIDE_PEERS + 3 * SHM_PEERS_MAX);
        assert_eq!(of_cores(&config("shm:kv", 3, EventLoop::Tokio)), BESIDE_PEERS + 6 * SHM_PEERS_MAX);
        let peer = Some("shm:kv".parse().unwrap());
        let proxy = ServeConfig { listen: Vec::new(), peer, ..config("shm:kv", 1, EventLoop::Endpoint) };
        assert_eq!(of_cores(&proxy), BESIDE_PEERS + SHM_PEERS_MAX);
    }

    #[test]
    fn a_short_receive_queue_is_told_once_there_is_udp() {
        let (shm, udp) = ("shm:kv".parse().unwrap(), "udp://127.0.0.1:7700".parse().unwrap());
        assert_eq!(of_receive_queue(&[Addr::clone(&shm)], 1), None);
        assert_eq!(of_receive_queue(&[shm, Addr::clone(&udp)], 1_000_000), None);
        let told = of_receive_queue(&[udp], 184);
        assert!(told.is_none_or(|told| told.contains("places for 184 sessions") && told.contains("sysctl -w")));
    }
}
