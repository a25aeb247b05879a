//! Reservations in a replicated state machine.
//!
//! **Clocks of different machines are never compared.** A holder counts its term by its own clock, from before it sent
//! the request. A contender reads the stamp of the office, waits for the length of a lease by its own clock, and takes
//! office only if the stamp is unchanged. So the holder's last renewal was executed before the contender read the
//! stamp, and was sent before the wait began. The term is three quarters of the lease, so it is over when the wait is,
//! as long as no clock runs a third faster than the other. The contender reads the stamp eight times in a lease, and
//! begins to wait anew when it has changed, so it takes office at most an eighth of a lease later than it may.

use std::rc::Rc;
use std::time::Duration;

use dunlin_net::Transport;
use dunlin_net::clock::nanos;
use dunlin_rpc::Timers;
use dunlin_smr::{Client, ClientError};

use super::machine::{Command, Office, Reply, Status};
use super::{Reserve, ReserveError, Reserved};
use crate::mutation::{Mutation, is_planted};

/// A contender reads the stamp so often within a lease.
const LOOKS_OF_LEASE: u32 = 8;

/// Shortest lease.
pub const LEASE_MIN: Duration = Duration::from_millis(10);

/// Settings. They must be the same on all sequencers of a group of replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplicatedConfig {
    /// How long a contender waits before it replaces a silent holder, or up to an eighth longer. A term is three quarters
    /// of it. Default 2 s.
    pub lease: Duration,
    /// The lowest number handed out. Default 0.
    pub start: u64,
    /// Identifies this sequencer, and tells it from itself before a restart: not 0. `None` draws it from the operating
    /// system's random numbers; set it only in tests and simulations.
    pub holder: Option<u64>,
}

impl Default for ReplicatedConfig {
    fn default() -> Self {
        ReplicatedConfig { lease: Duration::from_secs(2), start: 0, holder: None }
    }
}

/// Reservations on a group of [`dunlin_smr`] whose machine is [`super::Reservations`].
///
/// Its client needs an operation timeout well below the term, so that there is time for a retry after a reservation
/// that hangs.
pub struct Replicated<T: Transport> {
    client: Rc<Client<T>>,
    timers: Timers,
    config: ReplicatedConfig,
    holder: u64,
    /// The epoch in which it holds office.
    epoch: Option<u64>,
}

fn failed(why: impl std::fmt::Display) -> ReserveError {
    ReserveError::Failed(why.to_string())
}

fn no_reservations() -> ReserveError {
    ReserveError::Wrong("the replicas keep no reservations: give those of `dunlin seq serve --replicated`".to_owned())
}

fn client_failed(why: ClientError) -> ReserveError {
    failed(why)
}

impl<T: Transport> Replicated<T> {
    /// Makes reservations through a client, which others may share.
    ///
    /// # Errors
    /// [`ReserveError::Failed`] if the lease is shorter than [`LEASE_MIN`], the holder is 0, or the operating system
    /// gave no random numbers.
    pub fn new(client: impl Into<Rc<Client<T>>>, config: ReplicatedConfig) -> Result<Replicated<T>, ReserveError> {
        let client = client.into();
        if config.lease < LEASE_MIN {
            return Err(failed(format!("a lease of {:?} is too short: choose {LEASE_MIN:?} or more", config.lease)));
        }
        let holder = match config.holder {
            Some(0) => return Err(failed("a holder cannot be 0")),
            Some(holder) => holder,
            None => getrandom::u64().map_err(failed)?.max(1),
        };
        let timers = client.timers();
        Ok(Replicated { client, timers, config, holder, epoch: None })
    }

    /// The length of a term.
    pub fn term(&self) -> Duration {
        term_of(self.config.lease)
    }

    /// The current state of the office.
    ///
    /// # Errors
    /// [`ReserveError::Failed`], [`ReserveError::Wrong`].
    pub async fn office(&self) -> Result<Office, ReserveError> {
        let reply = self.client.query(&[]).await.map_err(client_failed)?;
        Reply::parse(&reply).map(|reply| reply.office).ok_or_else(no_reservations)
    }

    /// Executes a command, and returns when the term that it begins will end.
    async fn execute(&mut self, command: Command) -> Result<(Reply, u64), ReserveError> {
        let asked = self.timers.boot_now();
        let reply = self.client.execute(&command.encode()).await.map_err(client_failed)?;
        let reply = Reply::parse(&reply).ok_or_else(no_reservations)?;
        if reply.status == Status::Malformed {
            return Err(ReserveError::Wrong(
                "the replicas do not know this command: run the same version everywhere".to_owned(),
            ));
        }
        let begun = if is_planted(Mutation::TermFromAnswer) { self.timers.boot_now() } else { asked };
        let term = nanos(self.term()).min(u64::MAX / 2);
        Ok((reply, begun.saturating_add(term)))
    }

    /// Waits until the term of another holder must be over: until the office is free, or a lease has passed, by the clock
    /// for promises to others, since the stamp was read for the first time. Returns the stamp.
    async fn wait(&self, office: Office) -> u64 {
        let (mut office, mut since) = (office, self.timers.boot_now());
        // Its own last term is over: its counter has been stopped, or belongs to an attempt whose answer was lost.
        while office.holder != 0 && office.holder != self.holder {
            let waited = Duration::from_nanos(self.timers.boot_now().saturating_sub(since));
            let Some(left) = self.config.lease.checked_sub(waited).filter(|left| !left.is_zero()) else { break };
            self.timers.sleep(left.min(self.config.lease / LOOKS_OF_LEASE)).await;
            // Without an answer it goes on waiting: a stamp that has changed meanwhile is refused.
            if let Ok(now) = self.office().await
                && now.stamp != office.stamp
            {
                (office, since) = (now, self.timers.boot_now());
            }
        }
        office.stamp
    }
}

impl<T: Transport> Reserve for Replicated<T> {
    async fn take(&mut self, count: u64) -> Result<Reserved, ReserveError> {
        self.epoch = None;
        let mut office = self.office().await?;
        loop {
            let stamp = if is_planted(Mutation::NoWaitForTerm) { office.stamp } else { self.wait(office).await };
            let take = Command::Take { holder: self.holder, stamp, count, start: self.config.start };
            let (reply, until) = self.execute(take).await?;
            office = reply.office;
            if reply.status == Status::Done {
                self.epoch = Some(office.epoch);
                return Ok(Reserved { range: reply.from..office.reserved, until, epoch: office.epoch });
            }
        }
    }

    async fn extend(&mut self, count: u64) -> Result<Reserved, ReserveError> {
        let epoch = self.epoch.ok_or(ReserveError::Fenced)?;
        let (reply, until) = self.execute(Command::Extend { holder: self.holder, epoch, count }).await?;
        match reply.status {
            Status::Done => Ok(Reserved { range: reply.from..reply.office.reserved, until, epoch }),
            _ => {
                self.epoch = None;
                Err(ReserveError::Fenced)
            }
        }
    }

    async fn release(&mut self) -> Result<(), ReserveError> {
        let epoch = self.epoch.take().ok_or(ReserveError::Fenced)?;
        let (reply, _) = self.execute(Command::Release { holder: self.holder, epoch }).await?;
        if reply.status == Status::Done { Ok(()) } else { Err(ReserveError::Fenced) }
    }
}

/// Returns the length of a term. It ends before the lease does, also if the clocks of holder and replicas differ.
fn term_of(lease: Duration) -> Duration {
    lease / 4 * 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_is_shorter_than_its_lease_however_long_that_is() {
        for lease in [LEASE_MIN, Duration::from_secs(1), Duration::MAX] {
            assert!(term_of(lease) < lease && term_of(lease) > lease / 2, "{lease:?}");
        }
    }
}
