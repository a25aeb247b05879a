//! Planted bugs, to check that tests find them: mutation testing of the few lines on which the promises of the protocol
//! depend.
//!
//! They exist only with the feature `mutations`, which no other feature enables; without it `is_planted` is a
//! constant and leaves no trace in the program.

/// Declares the planted bugs of a crate that has the feature `mutations`: `Mutation`, its `ALL`, `plant`, and
/// `is_planted` for the lines in question. For use in a module `mutation`.
#[doc(hidden)]
#[macro_export]
macro_rules! mutations {
    ($($(#[$doc:meta])+ $mutation:ident,)+) => {
        /// A bug that can be planted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Mutation {
            $($(#[$doc])+ $mutation,)+
        }

        #[cfg(feature = "mutations")]
        mod planted {
            use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

            use super::Mutation;

            impl Mutation {
                /// All of them.
                pub const ALL: &[Mutation] = &[$(Mutation::$mutation),+];
            }

            /// One more than the number of the bug; zero for none.
            static PLANTED: AtomicU8 = AtomicU8::new(0);

            /// Plants a bug in this whole process, in place of the previous one; `None` for none.
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

        /// Whether this bug is planted.
        #[cfg(not(feature = "mutations"))]
        #[inline(always)]
        pub(crate) const fn is_planted(_: Mutation) -> bool {
            false
        }
    };
}

crate::mutations! {
    /// A single-packet request that arrives again starts its handler again: breaks "at most once".
    RequestRunsAgain,
    /// A call that is rolled back after a timeout returns one credit too few: the session slows down, and then stops
    /// for ever.
    CreditNotReturned,
    /// A late answer to an earlier call of a slot is accepted as that of the slot's present call.
    StaleResponseAccepted,
    /// Selective recovery: a server reports the first hole in a message as filled, so its client never sends that
    /// packet again.
    HoleReportedFilled,
    /// Selective recovery: a packet that was found lost returns its credit and is never retransmitted.
    LostPacketForgotten,
    /// Lending of credits: a lender does not count what it lends, and lends the same places to others.
    LoanNotCounted,
    /// Lending of credits: a borrower that gives credits back continues to use them.
    LoanKept,
    /// Congestion control: a session that waits for its pacing is forgotten when it is due.
    PacedSessionForgotten,
    /// Handshake: a repeated CONNECT creates another session.
    AcceptedTwice,
}
