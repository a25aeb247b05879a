//! The fault hunt of the key-value service: clients and a server of one or more cores in a simulated datacenter, random
//! operations on few keys, random faults; then every history of a key must be linearizable.
//!
//! All operations are recorded with the virtual times at which they began and ended. One that ended without an answer
//! may have been executed, at any time from its beginning on, or never ([`dunlin_kv::client::Outcome`]). One that the
//! client reports as not executed must have had no effect. When the host of the server crashes, all data is lost at
//! some time before it restarts, which counts as one more operation on each key. In the end the network heals, every
//! operation must end, and every client reads every key once more.
//!
//! The judge, and the parts shared with clients of replicated state machines, are in [`super::clients`].
//!
//! | File | What it holds |
//! |---|---|
//! | `scenario` | the meaning of a seed |
//! | `server`, `caller` | the programs of cores and of clients |
//! | `run` | one run, up to its verdict |

mod caller;
mod run;
mod scenario;
mod server;

pub use run::run;
pub use scenario::Scenario;
