//! Hosts, which share the memory for connections.

use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::rc::Rc;

use dunlin_net::{Addr, host_of};

use super::budget::{Account, Budget};

/// The identity of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum HostName {
    /// By [`host_of`].
    Ip(IpAddr),
    /// All clients of Unix sockets and of shared memory together: they choose their names.
    Local,
    /// A host of a simulated network, or a node of a loopback one.
    Node(u32),
}

impl From<IpAddr> for HostName {
    fn from(ip: IpAddr) -> HostName {
        HostName::Ip(host_of(ip))
    }
}

impl From<&Addr> for HostName {
    fn from(addr: &Addr) -> HostName {
        match addr {
            Addr::Udp(addr) => HostName::from(addr.ip()),
            Addr::Shm(_) => HostName::Local,
            Addr::Node(host) | Addr::Sim { host, .. } => HostName::Node(*host),
        }
    }
}

/// The accounts of one host in each pool.
#[derive(Debug)]
pub(super) struct Host {
    pub reads: Rc<Account>,
    pub commands: Rc<Account>,
    pub turns: Rc<Account>,
    pub answers: Rc<Account>,
}

/// The hosts that have connections to this core.
#[derive(Debug, Default)]
pub(super) struct Hosts(RefCell<HashMap<HostName, Rc<Host>>>);

impl Hosts {
    /// Returns the accounts of a host, for one more connection.
    pub fn join(&self, name: HostName, budget: &Budget) -> Rc<Host> {
        self.0.borrow_mut().entry(name).or_insert_with(|| Rc::new(budget.open_accounts())).clone()
    }

    /// Forgets a host, unless it has connections other than the one that returns these accounts.
    pub fn leave(&self, name: HostName, host: Rc<Host>) {
        drop(host);
        if let Entry::Occupied(entry) = self.0.borrow_mut().entry(name)
            && Rc::strong_count(entry.get()) == 1
        {
            entry.remove();
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.borrow().len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::budget::CORE_BYTES_MIN;
    use super::*;

    fn name(ip: &str) -> HostName {
        HostName::from(ip.parse::<IpAddr>().unwrap())
    }

    #[test]
    fn addresses_that_a_host_may_choose_are_one_host() {
        assert_eq!(name("2001:db8:1:2::3"), name("2001:db8:1:2:ffff::4"));
        assert_ne!(name("2001:db8:1:2::3"), name("2001:db8:1:3::3"));
        assert_eq!(name("::ffff:192.0.2.7"), name("192.0.2.7"));
        assert_ne!(name("192.0.2.7"), name("192.0.2.8"));
    }

    /// Whatever the protocol, and the port.
    #[test]
    fn a_host_has_one_name() {
        let udp: Addr = "udp://192.0.2.7:7700".parse().unwrap();
        let other_port: Addr = "udp://192.0.2.7:7701".parse().unwrap();
        assert_eq!([HostName::from(&udp), HostName::from(&other_port)], [name("192.0.2.7"); 2]);
        assert_eq!(HostName::from(&"shm:a".parse().unwrap()), HostName::from(&"shm:b".parse().unwrap()));
    }

    #[test]
    fn a_host_is_forgotten_with_its_last_connection() {
        let (hosts, budget) = (Hosts::default(), Budget::new(CORE_BYTES_MIN));
        let (first, second) = (hosts.join(HostName::Local, &budget), hosts.join(HostName::Local, &budget));
        let other = hosts.join(name("192.0.2.7"), &budget);
        assert!(Rc::ptr_eq(&first, &second) && !Rc::ptr_eq(&first, &other));
        hosts.leave(HostName::Local, first);
        assert_eq!(hosts.len(), 2);
        hosts.leave(HostName::Local, second);
        hosts.leave(name("192.0.2.7"), other);
        assert_eq!(hosts.len(), 0);
    }
}
