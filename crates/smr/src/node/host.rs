//! All replicas of a process, as its program sees them: this type and [`Node`] know the types of machine and log, and
//! nothing behind them does.

use std::marker::PhantomData;
use std::rc::Rc;

use dunlin_net::Transport;
use dunlin_rpc::Endpoint;

use super::shared::Shared;
use super::{Beginning, Net, Node};
use crate::config::{NodeConfig, NodeError};
use crate::erased::{AnyLog, Machine};
use crate::log::LogStore;
use crate::machine::StateMachine;

/// All replicas of a process, one of each group, on one endpoint. Clones are handles of the same host; it lives as long
/// as its endpoint.
pub struct Host<M, L: LogStore> {
    shared: Rc<Shared>,
    types: PhantomData<fn() -> (M, L)>,
}

impl<M, L: LogStore> Clone for Host<M, L> {
    fn clone(&self) -> Self {
        Host { shared: self.shared.clone(), types: PhantomData }
    }
}

impl<M: StateMachine + 'static, L: LogStore + 'static> Host<M, L> {
    /// Starts a replica of each group, numbered from 0, with the log and machine given for it. The logs of all groups
    /// are handles of one log on disk ([`crate::DurableLog::of_groups`]), or each is in memory. Otherwise as
    /// [`Node::start`], which starts a host with one group.
    ///
    /// # Errors
    /// As [`Node::start`]; [`NodeError::Groups`] if there is no group, or more than can be numbered.
    pub fn start<T: Transport + 'static>(
        endpoint: &Rc<Endpoint<T>>,
        config: NodeConfig,
        groups: Vec<(L, M)>,
        beginning: Beginning,
    ) -> Result<Host<M, L>, NodeError> {
        config.check()?;
        let erase = |(log, machine)| (AnyLog::new(log), Box::new(machine) as Box<dyn Machine>);
        let groups = groups.into_iter().map(erase).collect();
        let shared = Rc::new(Shared::new(Net::of(endpoint, &config), config, groups, beginning)?);
        shared.register(endpoint)?;
        shared.run();
        Ok(Host { shared, types: PhantomData })
    }

    /// Returns the replica of a group; `None` if there is no such group.
    pub fn node(&self, group: u16) -> Option<Node<M, L>> {
        (usize::from(group) < self.shared.cores.len()).then(|| Node::of(self.shared.replica(group)))
    }

    /// Returns the replicas of all groups, in order.
    pub fn nodes(&self) -> impl Iterator<Item = Node<M, L>> {
        (0..self.shared.len()).map(|group| Node::of(self.shared.replica(group)))
    }

    /// Returns the number of groups that it leads.
    pub fn led(&self) -> usize {
        self.shared.led()
    }

    /// Returns the number of groups that rest ([`NodeConfig::idle_ticks`]).
    pub fn resting(&self) -> usize {
        self.shared.resting()
    }

    /// Returns how often a replica of this process has changed: its leader, its own role, its cluster, or that it has
    /// stopped. To wait for the next change, see [`Host::changed`].
    pub fn changes(&self) -> u64 {
        self.shared.common.changes.count()
    }

    /// Waits until there were more changes than `known` ([`Host::changes`]), and returns their number. It keeps no
    /// replica alive.
    pub fn changed(&self, known: u64) -> impl Future<Output = u64> + use<M, L> {
        self.shared.common.changes.after(known)
    }

    /// Asks other processes to lead the groups that this process leads, as [`Node::hand_over`]; returns the number of
    /// groups.
    pub fn hand_over(&self) -> usize {
        self.nodes().filter_map(|node| node.hand_over()).count()
    }

    /// Stops all replicas cleanly, as [`Node::close`].
    ///
    /// # Errors
    /// As [`Node::close`].
    pub fn close(&self) -> Result<(), NodeError> {
        self.shared.close()
    }

    /// Returns why all replicas have stopped, if they have.
    pub fn failure(&self) -> Option<NodeError> {
        self.shared.core(0).failure.clone()
    }
}
