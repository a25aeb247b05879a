//! Which client relies on which lease. A holder knows only the clock that it measures leases with. Here all clocks are
//! visible, and no two holders may rely on a lease at the same time.

use std::cell::RefCell;

use dunlin_coord::{Lease, Token};

use super::caller::OwnClock;

/// One holder that relies on a lease until its clock says otherwise.
struct Relied {
    name: String,
    client: usize,
    token: Token,
    safe_until: u64,
    clock: OwnClock,
}

/// All reliances.
#[derive(Default)]
pub struct Reliance(RefCell<Vec<Relied>>);

impl Reliance {
    /// Records that a client was granted a lease, or renewed it.
    ///
    /// # Panics
    /// If it relies on the lease now, and so does another client.
    pub fn rely(&self, client: usize, lease: &Lease, clock: &OwnClock) {
        let mut all = self.0.borrow_mut();
        let is_own = |relied: &Relied| relied.client == client && relied.name == lease.name;
        if clock.now() >= lease.safe_until {
            return;
        }
        all.retain(|relied| !is_own(relied) && relied.clock.now() < relied.safe_until);
        if let Some(other) = all.iter().find(|relied| relied.name == lease.name) {
            let left = other.safe_until - other.clock.now();
            panic!(
                "client {client} relies on lease {} with token {}, and client {} with token {} does so for {left} ns more by its clock",
                lease.name, lease.token, other.client, other.token
            );
        }
        let Lease { name, token, safe_until, .. } = lease.clone();
        all.push(Relied { name, client, token, safe_until, clock: clock.clone() });
    }

    /// Records that a client gives up a lease, or all of its leases.
    pub fn give_up(&self, client: usize, name: Option<&str>) {
        self.0.borrow_mut().retain(|relied| relied.client != client || name.is_some_and(|name| relied.name != name));
    }
}
