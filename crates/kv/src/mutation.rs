//! Bugs on purpose, to see that the fault hunt finds them; as those of [`dunlin_rpc::mutation`]. They exist only with the feature `mutations`.

/// A bug that can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mutation {
    /// A client tries a write again after its session ended, though the first may have been executed.
    WriteTriedAgain,
    /// A value is stored though the item was changed since its token was given: an update is lost.
    TokenNotCompared,
}

#[cfg(feature = "mutations")]
mod planted {
    use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

    use super::Mutation;

    impl Mutation {
        /// All of them.
        pub const ALL: [Mutation; 2] = [Mutation::WriteTriedAgain, Mutation::TokenNotCompared];
    }

    /// One more than the number of the bug; zero for none.
    static PLANTED: AtomicU8 = AtomicU8::new(0);

    /// Plants a bug in all clients and servers of this process, instead of the one before; `None` for none.
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
