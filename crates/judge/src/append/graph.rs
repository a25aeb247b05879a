//! The dependencies between transactions: which comes first, and why.

use std::collections::HashMap;

use petgraph::algo::kosaraju_scc;
use petgraph::graph::{DiGraph, NodeIndex};

use super::history::Transaction;
use super::versions::{Observations, Versions};

/// Why one transaction comes before another (Adya 1999).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dependency {
    /// It wrote the version of a key that the other overwrote.
    WriteWrite,
    /// It wrote a version of a key that the other read.
    WriteRead,
    /// It read a version of a key that the other overwrote.
    ReadWrite,
    /// It ended before the other began.
    RealTime,
}

/// A dependency, stored with the transaction that comes first.
#[derive(Debug, Clone, Copy)]
pub struct Edge {
    /// The transaction that comes later; or, from the number of transactions on, the tail of a key.
    pub to: usize,
    pub dependency: Dependency,
    /// The number of the key; 0 for real time.
    pub key: usize,
    /// The element that the earlier transaction wrote, or read last; `None` if it read an empty list.
    pub before: Option<u64>,
    /// The element that the later one wrote.
    pub after: Option<u64>,
}

/// The graph of dependencies. Those of real time follow from the history.
///
/// Transactions with appends to a key that no list shows come after all that read the longest list. An extra node, the
/// tail of the key, stands between the two sets, since there may be as many edges as pairs.
#[derive(Debug)]
pub struct Graph<'a> {
    pub history: &'a [Transaction],
    /// By the earlier transaction, in the order of [`Dependency`].
    pub edges: Vec<Vec<Edge>>,
    /// By transaction: the appends that no list shows, as numbers of keys and elements.
    pub unseen: Vec<Vec<(usize, u64)>>,
}

impl<'a> Graph<'a> {
    /// Infers the dependencies of the transactions that count.
    pub fn of(observations: &Observations<'a>) -> Graph<'a> {
        let history = observations.history;
        let mut graph =
            Graph { history, edges: vec![Vec::new(); history.len()], unseen: vec![Vec::new(); history.len()] };
        for (key, versions) in observations.keys.iter().enumerate() {
            graph.add_key(key, versions, observations);
        }
        graph.edges.iter_mut().for_each(|edges| edges.sort_by_key(|edge| edge.dependency as u8));
        graph
    }

    /// Adds the dependencies that follow from the versions of a key.
    fn add_key(&mut self, key: usize, versions: &Versions<'_>, observations: &Observations<'_>) {
        let writer = |position: usize| {
            let append = observations.append_at(versions, position)?;
            observations.counts[append.by].then_some((position, append.by))
        };
        let writers: Vec<(usize, usize)> = (0..versions.order.len()).filter_map(writer).collect();
        let order = versions.order;
        let is_unseen = |element: u64| observations.appends[&(versions.key, element)].position.is_none();
        let unseen: Vec<(usize, u64)> =
            versions.appended.iter().copied().filter(|(_, element)| is_unseen(*element)).collect();
        unseen.iter().for_each(|(by, element)| self.unseen[*by].push((key, *element)));
        for pair in writers.windows(2) {
            let [(at, one), (next_at, next)] = pair else { unreachable!("windows of two") };
            self.add(*one, *next, Dependency::WriteWrite, key, Some(order[*at]), Some(order[*next_at]));
        }
        if let Some((at, last)) = writers.last() {
            for (by, element) in &unseen {
                self.add(*last, *by, Dependency::WriteWrite, key, Some(order[*at]), Some(*element));
            }
        }
        for (len, reader) in &versions.reads {
            let next = writers.partition_point(|(position, _)| position < len);
            if let Some((at, by)) = next.checked_sub(1).map(|last| writers[last]) {
                self.add(by, *reader, Dependency::WriteRead, key, Some(order[at]), None);
            }
            let seen = len.checked_sub(1).map(|last| order[last]);
            match writers.get(next) {
                Some((at, by)) => self.add(*reader, *by, Dependency::ReadWrite, key, seen, Some(order[*at])),
                None if unseen.is_empty() => {}
                None => self.add(*reader, self.history.len() + key, Dependency::ReadWrite, key, seen, None),
            }
        }
    }

    /// Adds an edge, unless both ends are the same.
    fn add(
        &mut self,
        from: usize,
        to: usize,
        dependency: Dependency,
        key: usize,
        before: Option<u64>,
        after: Option<u64>,
    ) {
        if from != to {
            self.edges[from].push(Edge { to, dependency, key, before, after });
        }
    }

    /// Returns the sets of two or more of the given transactions that are on common cycles, by edges of these kinds
    /// between them. Takes time linear in their edges, except for sorting: real time is a chain of all ends, since each
    /// transaction comes after the last end before its beginning.
    pub fn components(&self, members: &[usize], kinds: &[Dependency]) -> Vec<Vec<usize>> {
        let mut digraph: DiGraph<(), ()> = DiGraph::with_capacity(members.len(), members.len());
        let mut nodes: HashMap<usize, NodeIndex> =
            members.iter().map(|member| (*member, digraph.add_node(()))).collect();
        for (place, member) in members.iter().enumerate() {
            for edge in self.edges[*member].iter().filter(|edge| kinds.contains(&edge.dependency)) {
                if edge.to >= self.history.len() {
                    nodes.entry(edge.to).or_insert_with(|| digraph.add_node(()));
                }
                if let Some(to) = nodes.get(&edge.to) {
                    digraph.add_edge(NodeIndex::new(place), *to, ());
                }
            }
        }
        for (place, member) in members.iter().enumerate() {
            for (key, _) in &self.unseen[*member] {
                if let Some(tail) = nodes.get(&(self.history.len() + key)) {
                    digraph.add_edge(*tail, NodeIndex::new(place), ());
                }
            }
        }
        if kinds.contains(&Dependency::RealTime) {
            self.add_ends(members, &mut digraph);
        }
        // A set of a tail and one transaction means only that the transaction read what others read, and appended.
        let transactions = |nodes: Vec<NodeIndex>| -> Vec<usize> {
            let mut set: Vec<usize> = nodes.iter().filter_map(|node| members.get(node.index()).copied()).collect();
            set.sort_unstable();
            set
        };
        let mut sets: Vec<Vec<usize>> =
            kosaraju_scc(&digraph).into_iter().map(transactions).filter(|set| set.len() > 1).collect();
        sets.sort_unstable();
        sets
    }

    /// Adds a node for the end of each transaction, all in a chain by time. The first nodes are the transactions.
    fn add_ends(&self, members: &[usize], digraph: &mut DiGraph<(), ()>) {
        let end = |(place, member): (usize, &usize)| self.history[*member].committed_at().map(|at| (at, place));
        let mut ends: Vec<(u64, usize)> = members.iter().enumerate().filter_map(end).collect();
        ends.sort_unstable();
        let first = digraph.node_count();
        for (number, (_, place)) in ends.iter().enumerate() {
            let node = digraph.add_node(());
            digraph.add_edge(NodeIndex::new(*place), node, ());
            if number > 0 {
                digraph.add_edge(NodeIndex::new(node.index() - 1), node, ());
            }
        }
        for (place, member) in members.iter().enumerate() {
            let ended = ends.partition_point(|(at, _)| *at < self.history[*member].begun);
            if ended > 0 {
                digraph.add_edge(NodeIndex::new(first + ended - 1), NodeIndex::new(place), ());
            }
        }
    }
}
