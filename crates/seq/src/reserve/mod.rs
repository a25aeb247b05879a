//! Ranges of numbers that are reserved ahead of their use, so that no number is handed out twice after a crash.
//!
//! A [`Reserve`] stores the end of the reserved numbers, and the holder of the *office* of the sequencer. The holder
//! has a *term*: it may hand out numbers until a time by its own clock, and each reservation and renewal extends it.
//! Another sequencer takes office only after that time, and begins above all reserved numbers. So terms do not overlap,
//! and numbers rise from one to the next ([`crate::counter`]).
//!
//! A [`Keeper`] does this for a counter: it takes office, reserves the next range when half of one is left, renews the
//! term, and stops when it is fenced. While no numbers are reserved, requests are pushed back.
//!
//! Each term of office has a number, the *epoch*, which rises from one holder to the next. Requests name it.
//!
//! There are two implementations: [`Replicated`] has a state machine of its own on [`dunlin_smr`]; [`Coordinated`] uses
//! a cluster manager, [`dunlin_coord`], that other services may use as well.

mod coordinated;
mod keeper;
mod machine;
mod replicated;

use std::future::Future;
use std::ops::Range;

use futures::future::LocalBoxFuture;

pub use coordinated::{Coordinated, CoordinatedConfig, Office as CoordinatedOffice};
pub use keeper::{Keeper, KeeperConfig, KeeperStats};
pub use machine::{Office, RANGE_MAX, Reservations};
pub use replicated::{LEASE_MIN, Replicated, ReplicatedConfig};

/// Numbers that the holder of the office may hand out, with the end of its term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserved {
    /// The numbers: above all that were reserved before, by any holder. Fewer than requested at the end of the number
    /// space.
    pub range: Range<u64>,
    /// When the term ends, in nanoseconds by the clock for promises to others
    /// ([`dunlin_net::Transport::boot_clock`]).
    pub until: u64,
    /// The term of office: above that of any earlier holder, and not 0.
    pub epoch: u64,
}

/// Why nothing was reserved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// Another sequencer has taken office. All numbers still reserved here are lost.
    #[error("another sequencer has taken office")]
    Fenced,
    /// Whether numbers were reserved is unknown. If they were, they are lost.
    #[error("nothing could be reserved: {0}")]
    Failed(String),
    /// Nothing was reserved, and will not be until an operator changes what this says.
    #[error("nothing can be reserved: {0}")]
    Wrong(String),
}

/// A store of reservations.
pub trait Reserve {
    /// Takes office, once the previous term is over, and reserves numbers.
    ///
    /// # Errors
    /// [`ReserveError::Failed`]; [`ReserveError::Wrong`], and then this sequencer keeps no other one from office.
    fn take(&mut self, count: u64) -> impl Future<Output = Result<Reserved, ReserveError>>;

    /// Reserves the next numbers; with a count of 0, only renews the term.
    ///
    /// # Errors
    /// [`ReserveError`].
    fn extend(&mut self, count: u64) -> impl Future<Output = Result<Reserved, ReserveError>>;

    /// Gives up the office, or the attempt to take it, after the last number was handed out, so that the next holder
    /// need not wait for the end of the term.
    ///
    /// # Errors
    /// [`ReserveError`]; then the term ends by itself.
    fn release(&mut self) -> impl Future<Output = Result<(), ReserveError>>;

    /// Work that must go on all the time, whether or not it holds office: [`Keeper::start`] spawns it once. By default
    /// there is none.
    fn attend(&self) -> LocalBoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
}
