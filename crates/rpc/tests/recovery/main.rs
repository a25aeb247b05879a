//! What becomes of lost, late, repeated and overtaken packets of calls of several packets, and of endpoints that were stopped.
//!
//! | File | What it is about |
//! |---|---|
//! | [`losses`] | one packet of each kind is lost, and it alone is sent again |
//! | [`disorder`] | packets that overtake others, come twice, or far too late |
//! | [`small`] | calls of one packet that are lost together |
//! | [`absence`] | endpoints that were away for a while, and what they send again for nothing |
//! | [`stage`] | the two endpoints |
//! | [`scripted`] | their transport |

mod absence;
mod disorder;
mod losses;
mod scripted;
mod small;
mod stage;
