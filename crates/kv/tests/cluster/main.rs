//! Clusters: clients and replicas in one thread, on simulated time.

mod epochs;
mod failover;
mod members;
mod operations;
mod ranks;
mod refills;
mod world;
