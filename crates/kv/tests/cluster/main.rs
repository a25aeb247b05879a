//! Clusters: clients and replicas in one thread, on simulated time.

mod epochs;
mod failover;
mod operations;
mod refills;
mod world;
