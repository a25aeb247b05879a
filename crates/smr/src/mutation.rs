//! Bugs on purpose, to see that the fault hunt finds them; as those of [`dunlin_rpc::mutation`]. They exist only with the feature `mutations`.

/// A bug that can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mutation {
    /// A command that is sent again is executed again.
    CommandRunsAgain,
    /// A snapshot forgets the sessions of clients.
    SessionsNotInSnapshot,
    /// A replica says that it has what would not survive its crash.
    SaidBeforeDurable,
}

#[cfg(feature = "mutations")]
mod planted {
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

    use super::Mutation;

    impl Mutation {
        /// All of them.
        pub const ALL: [Mutation; 3] =
            [Mutation::CommandRunsAgain, Mutation::SessionsNotInSnapshot, Mutation::SaidBeforeDurable];
    }

    /// One more than the number of the bug; zero for none.
    static PLANTED: AtomicU8 = AtomicU8::new(0);

    /// Plants a bug in all replicas of this process, instead of the one before; `None` for none.
    pub fn plant(mutation: Option<Mutation>) {
        PLANTED.store(mutation.map_or(0, |mutation| mutation as u8 + 1), Relaxed);
    }

    #[inline]
    pub(crate) fn is_planted(mutation: Mutation) -> bool {
        PLANTED.load(Relaxed) == mutation as u8 + 1
    }
}

#[cfg(feature = "mutations")]
pub use planted::plant;

#[cfg(feature = "mutations")]
pub(crate) use planted::is_planted;

/// Whether this bug is to be had.
#[cfg(not(feature = "mutations"))]
#[inline(always)]
pub(crate) const fn is_planted(_: Mutation) -> bool {
    false
}
