//! Paths that silently drop long packets, in one direction or both, from the start or from the middle of a transfer.
//!
//! | File | What it is about |
//! |---|---|
//! | [`swallowing`] | calls of all sizes get through, and soon in the longest packets that do |
//! | [`shrinking`] | a path whose MTU shrinks while messages are in flight |
//! | [`mixing`] | packets of old and new cuts of one message, late and twice |
//! | [`unanswered`] | calls that cannot get through end with an error of their own, and others do not |
//! | [`stage`] | the two endpoints |

mod mixing;
#[path = "../pair/mod.rs"]
mod pair;
mod shrinking;
mod stage;
mod swallowing;
mod unanswered;
