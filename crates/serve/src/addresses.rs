//! The addresses at which each core listens.

use std::net::SocketAddr;

use dunlin_net::shm::{ShmConfig, ShmTransport};
use dunlin_net::udp::{UdpConfig, UdpTransport};
use dunlin_net::{Addr, AnyTransport, NetError, ShmName};

use crate::config::ServeConfig;
use crate::error::ServeError;

/// The addresses that a core tries to bind for an address of core 0, in order.
fn of_core(listen: &Addr, core: u16) -> Result<Vec<Addr>, NetError> {
    if core == 0 {
        return Ok(vec![listen.clone()]);
    }
    Ok(match listen {
        Addr::Shm(name) => vec![Addr::Shm(ShmName::new(&format!("{}.{core}", name.as_str()))?)],
        Addr::Udp(addr) => {
            let ephemeral = Addr::Udp(SocketAddr::new(addr.ip(), 0));
            // Port 0 stays 0; beyond the last port only the system can choose one.
            match addr.port().checked_add(core).filter(|_| addr.port() != 0) {
                Some(port) => vec![Addr::Udp(SocketAddr::new(addr.ip(), port)), ephemeral],
                None => vec![ephemeral],
            }
        }
        other => vec![other.clone()],
    })
}

/// Whether processes of other hosts can reach an address. Traffic is neither encrypted nor authenticated.
pub fn is_exposed(addr: &Addr) -> bool {
    matches!(addr, Addr::Udp(addr) if !addr.ip().is_loopback())
}

/// Opens the transport of a core.
pub(crate) fn open(config: &ServeConfig, core: u16) -> Result<AnyTransport, ServeError> {
    match &config.peer {
        Some(peer) if config.listen.is_empty() => {
            AnyTransport::for_peer(peer).map_err(|why| ServeError::Listen { addr: peer.clone(), why })
        }
        _ => bind(&config.listen, core),
    }
}

/// Binds a transport beside those of lower numbers: number 0 at the addresses themselves, others at names and ports
/// that follow.
///
/// # Errors
/// [`ServeError::Listen`]; [`ServeError::NoAddress`] without an address; [`ServeError::AddressKinds`] unless there is
/// one, or one of each kind.
pub fn bind(listen: &[Addr], number: u16) -> Result<AnyTransport, ServeError> {
    match listen {
        [] => Err(ServeError::NoAddress),
        [one] => first(one, number, AnyTransport::bind),
        [shm @ Addr::Shm(_), udp @ Addr::Udp(_)] | [udp @ Addr::Udp(_), shm @ Addr::Shm(_)] => {
            let near = first(shm, number, open_shm)?;
            let far = first(udp, number, open_udp)?;
            AnyTransport::joined(near, far).map_err(|why| ServeError::Listen { addr: shm.clone(), why })
        }
        [first, second, ..] => Err(ServeError::AddressKinds { first: first.clone(), second: second.clone() }),
    }
}

/// The first of a core's addresses that can be bound. The error is that of the intended address.
fn first<T>(listen: &Addr, core: u16, bind: impl Fn(&Addr) -> Result<T, NetError>) -> Result<T, ServeError> {
    let failed = |why| ServeError::Listen { addr: listen.clone(), why };
    let mut error = None;
    for addr in of_core(listen, core).map_err(failed)? {
        match bind(&addr) {
            Ok(transport) => return Ok(transport),
            Err(why) => error = error.or(Some(ServeError::Listen { addr, why })),
        }
    }
    Err(error.unwrap_or(ServeError::NoAddress))
}

fn open_shm(addr: &Addr) -> Result<ShmTransport, NetError> {
    match addr {
        Addr::Shm(name) => ShmTransport::new(&ShmConfig::named(name.clone())),
        other => Err(NetError::WrongKind { addr: other.clone(), transport: "shared memory" }),
    }
}

fn open_udp(addr: &Addr) -> Result<UdpTransport, NetError> {
    match addr {
        Addr::Udp(addr) => UdpTransport::bind(UdpConfig::new(*addr)),
        other => Err(NetError::WrongKind { addr: other.clone(), transport: "UDP" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_listen_beside_each_other() {
        let cases = [
            ("shm:kv", 0, vec!["shm:kv"]),
            ("shm:kv", 3, vec!["shm:kv.3"]),
            ("udp://127.0.0.1:7700", 2, vec!["udp://127.0.0.1:7702", "udp://127.0.0.1:0"]),
            ("udp://127.0.0.1:0", 2, vec!["udp://127.0.0.1:0"]),
            ("udp://[::1]:65535", 1, vec!["udp://[::1]:0"]),
        ];
        for (listen, core, expected) in cases {
            let found = of_core(&listen.parse().unwrap(), core).unwrap();
            assert_eq!(found.iter().map(Addr::to_string).collect::<Vec<_>>(), expected);
        }
        let long = format!("shm:{}", "x".repeat(64)).parse().unwrap();
        assert!(of_core(&long, 1).is_err());
    }

    #[test]
    fn all_but_loopback_is_exposed() {
        for (addr, exposed) in
            [("udp://0.0.0.0:1", true), ("udp://127.0.0.5:1", false), ("udp://[::]:1", true), ("shm:kv", false)]
        {
            assert_eq!(is_exposed(&addr.parse().unwrap()), exposed, "{addr}");
        }
    }
}
