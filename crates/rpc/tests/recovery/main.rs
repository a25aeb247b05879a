//! What happens to lost, late, repeated and overtaken packets of multi-packet calls, and to endpoints that were
//! stopped.
//!
//! | File | What it is about |
//! |---|---|
//! | [`losses`] | one packet of each kind is lost, and only it is retransmitted |
//! | [`disorder`] | packets that overtake others, come twice, or far too late |
//! | [`small`] | single-packet calls that are lost together |
//! | [`absence`] | endpoints that were descheduled, and their unnecessary retransmissions |
//! | [`stage`] | the two endpoints |
//! | [`scripted`] | their transport |

mod absence;
mod disorder;
mod losses;
mod scripted;
mod small;
mod stage;
