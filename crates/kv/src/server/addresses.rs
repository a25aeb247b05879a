//! Where each core listens.

use std::net::SocketAddr;

use dunlin_net::{Addr, ShmName};

use crate::routing::Core;

/// What a core tries to bind for an address of core 0, in this order.
pub(super) fn of_core(listen: &Addr, core: Core) -> Result<Vec<Addr>, dunlin_net::NetError> {
    if core == 0 {
        return Ok(vec![listen.clone()]);
    }
    Ok(match listen {
        Addr::Shm(name) => vec![Addr::Shm(ShmName::new(&format!("{}.{core}", name.as_str()))?)],
        Addr::Udp(addr) => {
            let ephemeral = Addr::Udp(SocketAddr::new(addr.ip(), 0));
            // Port 0 stays 0; beyond the last port there is only what the system has.
            match addr.port().checked_add(core).filter(|_| addr.port() != 0) {
                Some(port) => vec![Addr::Udp(SocketAddr::new(addr.ip(), port)), ephemeral],
                None => vec![ephemeral],
            }
        }
        other => vec![other.clone()],
    })
}

/// Whether others than processes of this host may reach an address.
pub(super) fn is_exposed(addr: &Addr) -> bool {
    matches!(addr, Addr::Udp(addr) if !addr.ip().is_loopback())
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
