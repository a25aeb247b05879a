//! The fault hunt of replicated state machines: replicas with their logs on disks, and clients, in a simulated datacenter; random commands on few keys, random
//! changes of members, random faults.
//!
//! Replicas crash and restart with what their disks have: what was flushed, and of what was written since, some. Hosts stand still, links fail, the network
//! is cut in two. While all that goes on, no two replicas lead in one term, logs that agree on an entry agree on all before, and what is committed stays.
//! In the end the network heals, and every client must get an answer for every key; then the history of each must be linearizable, in which a command that was
//! executed twice, or was lost, has no place.
//!
//! | File | What it holds |
//! |---|---|
//! | `scenario` | what a seed means |
//! | `replica`, `caller`, `operator` | the programs of replicas, of clients, and of whoever changes the members |
//! | `rot` | disks whose bits rot |
//! | `spoiler` | faults at the worst time of an election |
//! | `observer` | what must be true of all logs at any time |
//! | `run` | one run, up to its verdict |

mod caller;
mod observer;
mod operator;
mod replica;
mod rot;
mod run;
mod scenario;
mod spoiler;

pub use run::run;
pub use scenario::Scenario;
