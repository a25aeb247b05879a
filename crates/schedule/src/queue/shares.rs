//! Fair shares: a client that marks everything as urgent gains at most its share of the service.

use std::collections::HashMap;

/// Maximum number of clients with an account. Operations of further clients wait behind the rest.
pub const CLIENTS_MAX: usize = 65_536;
/// Fractional bits of the virtual clock.
const FRACTION_BITS: u32 = 16;
/// Minimum number of operations between two sweeps.
const SWEEP_MIN: usize = 64;

/// Limits each client to a fair share of the service by rank. While `n` clients wait, a client's operations are ranked
/// as long as they stay within `1 / n` of the service, plus `burst`. Operations above the share wait behind all others,
/// and get the service that the others leave, and one part in [`super::DEMOTED_ONE_IN`] of it.
///
/// So ranks decide only within the shares of clients. A client that gives all its operations the best rank has its
/// share served first, and once a lead of `burst`. The lead is remembered, also while the queue is empty, until service
/// pays for it: the client's share of ranked service, and one in 16 of the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damping {
    /// Cost by which a client may exceed its share: enough for the operations of its largest multiget on this server,
    /// yet an acceptable delay for others. It is in the unit of [`super::Tag::cost`]: if costs are not counts, choose
    /// another burst.
    pub burst: u32,
}

impl Default for Damping {
    fn default() -> Self {
        Damping { burst: 128 }
    }
}

/// Start-time fair queueing (Goyal et al., SIGCOMM 1996) without the queue. A virtual clock advances at the rate at
/// which each waiting client would be served if they shared evenly; each client has the time at which it has paid for
/// its operations. Debts outlive the queue: otherwise a client would get a new burst whenever the queue runs empty.
#[derive(Debug)]
pub(super) struct Shares {
    burst: u128,
    clock: u128,
    clients: HashMap<u64, Account>,
    /// Clients with a waiting operation.
    active: u32,
    /// Operations that left since the last sweep. Only they can have made an account unnecessary.
    left: usize,
}

#[derive(Debug, Default)]
struct Account {
    /// When the client's ranked operations are paid for.
    paid_at: u128,
    waiting: u32,
}

fn scaled(cost: u32) -> u128 {
    u128::from(cost.max(1)) << FRACTION_BITS
}

impl Shares {
    pub fn new(damping: Damping) -> Self {
        let burst = scaled(damping.burst);
        Shares { burst, clock: 0, clients: HashMap::new(), active: 0, left: 0 }
    }

    /// Adds a waiting operation. Returns whether it is within the share of its client.
    pub fn enter(&mut self, client: u64, cost: u32) -> bool {
        self.sweep();
        if self.clients.len() >= CLIENTS_MAX && !self.clients.contains_key(&client) {
            return false;
        }
        let account = self.clients.entry(client).or_default();
        self.active += u32::from(account.waiting == 0);
        account.waiting += 1;
        let paid_at = account.paid_at.max(self.clock) + scaled(cost);
        // The first operation always fits, whatever it costs.
        let is_within = paid_at <= self.clock + self.burst.max(scaled(cost));
        if is_within {
            account.paid_at = paid_at;
        }
        is_within
    }

    /// Advances the clock by service of this cost. Demoted operations were not charged. If they paid in full, a client
    /// would pay with its own surplus; if they paid nothing, the last of many clients would stay in debt forever. None
    /// pays more than a lead: one that cost very much would pay the debts of all.
    pub fn serve(&mut self, cost: u32, was_demoted: bool) {
        self.clock += match was_demoted {
            true => {
                scaled(cost).min(self.burst.max(scaled(1))) / u128::from(self.active.max(super::DEMOTED_ONE_IN as u32))
            }
            false => scaled(cost) / u128::from(self.active.max(1)),
        };
    }

    /// Removes a waiting operation. Operations without an account are ignored.
    pub fn leave(&mut self, client: u64) {
        self.left += 1;
        let Some(account) = self.clients.get_mut(&client).filter(|account| account.waiting > 0) else { return };
        account.waiting -= 1;
        if account.waiting == 0 {
            self.active -= 1;
        }
    }

    /// Removes clients that have no waiting operations and have paid. Runs after as many operations as there are
    /// accounts, so that each operation pays for one visit.
    fn sweep(&mut self) {
        if self.left >= self.clients.len().max(SWEEP_MIN) {
            self.clients.retain(|_, account| account.waiting > 0 || account.paid_at > self.clock);
            self.left = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_within_the_share_and_no_more() {
        let mut shares = Shares::new(Damping { burst: 3 });
        assert_eq!([1; 5].map(|_| shares.enter(7, 1)), [true, true, true, false, false]);
        assert!(shares.enter(8, 1), "another client has a share of its own");
        // Two clients wait: service of 4 pays 2 of each.
        shares.serve(4, false);
        assert_eq!([1; 3].map(|_| shares.enter(7, 1)), [true, true, false]);
    }

    #[test]
    fn the_first_operation_fits_whatever_it_costs() {
        let mut shares = Shares::new(Damping { burst: 0 });
        assert!(shares.enter(1, u32::MAX));
        assert!(!shares.enter(1, 1));
    }

    #[test]
    fn accounts_are_bounded_and_forgotten() {
        let mut shares = Shares::new(Damping { burst: 10 });
        for client in 0..CLIENTS_MAX as u64 {
            assert!(shares.enter(client, 1));
        }
        assert!(!shares.enter(u64::MAX, 1), "a table that is full");
        shares.leave(u64::MAX);
        (0..CLIENTS_MAX as u64).for_each(|client| shares.leave(client));
        assert_eq!(shares.active, 0);
        shares.serve(u32::MAX, false);
        assert!(shares.enter(u64::MAX, 1));
        assert_eq!(shares.clients.len(), 1);
    }

    #[test]
    fn the_last_client_is_not_in_debt_for_ever() {
        let mut shares = Shares::new(Damping { burst: 2 });
        assert_eq!([1; 3].map(|_| shares.enter(7, 1)), [true, true, false]);
        (0..2 * super::super::DEMOTED_ONE_IN).for_each(|_| shares.serve(1, true));
        assert_eq!([1; 3].map(|_| shares.enter(7, 1)), [true, true, false]);
    }

    #[test]
    fn a_demoted_operation_pays_no_more_than_a_lead_whatever_it_costs() {
        let mut shares = Shares::new(Damping { burst: 16 });
        assert_eq!([1; 17].map(|_| shares.enter(7, 1)).iter().filter(|is_within| **is_within).count(), 16);
        shares.serve(u32::MAX, true);
        assert_eq!([1; 2].map(|_| shares.enter(7, 1)), [true, false]);
    }

    #[test]
    fn clocks_do_not_overflow() {
        let mut shares = Shares::new(Damping { burst: u32::MAX });
        for _ in 0..100_000 {
            shares.enter(1, u32::MAX);
            shares.serve(u32::MAX, false);
        }
        assert!(shares.clock > u128::from(u64::MAX));
    }
}
