//! Clusters: clients and replicas in one thread, on simulated time.

mod conditions;
mod epochs;
mod failover;
mod limits;
mod members;
mod operations;
mod proxy;
mod ranks;
mod refills;
mod world;
