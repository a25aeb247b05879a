//! Short cycles among transactions that depend on each other in circles.

use std::collections::{HashMap, VecDeque};

use super::graph::Dependency::{self, ReadWrite, RealTime, WriteRead, WriteWrite};
use super::graph::{Edge, Graph};
use super::report::Name;

/// Limit of edges that the search for one kind of cycle visits; then it returns the shortest cycle found so far. A
/// search that is certain to find a cycle continues until it has one.
const LOOKS_MAX: usize = 5_000_000;
/// The fewest edges of a cycle.
const SHORTEST: usize = 2;

/// Kinds of cycles, the strongest anomaly first: a cycle has at least one edge of the first kind, and its other edges
/// are of the other kinds. If the first kind is among the others, too, each edge of this kind in a component is on a
/// cycle. Since real time alone forms no cycle, that holds for one of the last three.
const SEARCHES: [(Dependency, &[Dependency]); 8] = [
    (WriteWrite, &[WriteWrite]),
    (WriteRead, &[WriteWrite, WriteRead]),
    (ReadWrite, &[WriteWrite, WriteRead]),
    (ReadWrite, &[WriteWrite, WriteRead, ReadWrite]),
    (WriteWrite, &[WriteWrite, RealTime]),
    (WriteRead, &[WriteWrite, WriteRead, RealTime]),
    (ReadWrite, &[WriteWrite, WriteRead, RealTime]),
    (ReadWrite, &[WriteWrite, WriteRead, ReadWrite, RealTime]),
];

/// A cycle: each edge with the transaction that it leaves. It leads to the next one, and the last to the first.
pub type Cycle = Vec<(usize, Edge)>;

/// Returns a shortest cycle of the strongest anomaly among the transactions of a component. A run of edges about one
/// key is joined into one edge.
///
/// # Panics
/// If they are on no common cycle.
pub fn worst(graph: &Graph<'_>, component: &[usize]) -> Cycle {
    let mut found = SEARCHES.iter().filter_map(|(first, others)| shortest(graph, component, *first, others));
    shortened(found.next().expect("time alone makes no cycle, so an edge of another kind is part of it"))
}

/// Joins consecutive edges about one key: the version after the next one also comes after this one.
fn shortened(mut cycle: Cycle) -> Cycle {
    let mut place = 0;
    while place < cycle.len() && cycle.len() > SHORTEST {
        let next = (place + 1) % cycle.len();
        match joined(&cycle[place].1, &cycle[next].1) {
            Some(edge) => {
                cycle[place].1 = edge;
                cycle.remove(next);
                place = 0;
            }
            None => place += 1,
        }
    }
    cycle
}

fn joined(one: &Edge, next: &Edge) -> Option<Edge> {
    let dependency = match (one.dependency, next.dependency) {
        (WriteWrite, WriteWrite) => WriteWrite,
        (WriteWrite, WriteRead) => WriteRead,
        (ReadWrite, WriteWrite) => ReadWrite,
        _ => return None,
    };
    (one.key == next.key).then_some(Edge {
        to: next.to,
        dependency,
        key: one.key,
        before: one.before,
        after: next.after,
    })
}

/// Returns the name of a cycle.
pub fn name(cycle: &Cycle) -> Name {
    let count = |kind: Dependency| cycle.iter().filter(|(_, edge)| edge.dependency == kind).count();
    match (count(ReadWrite), count(WriteRead), count(RealTime)) {
        (0, 0, 0) => Name::G0,
        (0, _, 0) => Name::G1c,
        (1, _, 0) => Name::GSingle,
        (_, _, 0) => Name::G2,
        (0, 0, _) => Name::G0RealTime,
        (0, _, _) => Name::G1cRealTime,
        (1, _, _) => Name::GSingleRealTime,
        _ => Name::G2RealTime,
    }
}

fn shortest(graph: &Graph<'_>, component: &[usize], first: Dependency, others: &[Dependency]) -> Option<Cycle> {
    let kinds: Vec<Dependency> = others.iter().copied().chain([first]).collect();
    let components = graph.components(component, &kinds);
    // Cycles of two cost no more than the edges; each longer one may cost a search of the whole component.
    let two = components.iter().find_map(|members| Search::new(graph, members, first, others).shortest(SHORTEST));
    let longer =
        || components.iter().find_map(|members| Search::new(graph, members, first, others).shortest(usize::MAX));
    two.or_else(longer)
}

/// A search for cycles of one kind, breadth first from each transaction in turn.
struct Search<'s, 'g> {
    graph: &'g Graph<'g>,
    first: Dependency,
    others: &'s [Dependency],
    by_number: &'s [usize],
    /// The transactions, ordered by when they began.
    by_begin: Vec<usize>,
    /// The indices of the transactions, and of the tails of `unseen`, in the lists below.
    places: HashMap<usize, usize>,
    /// By key: the appends of the transactions that no list shows.
    unseen: HashMap<usize, Vec<(usize, u64)>>,
    /// The number of the last search that reached a node.
    reached: Vec<u32>,
    /// How the last search reached a transaction.
    parents: Vec<Option<(usize, Edge)>>,
    number: u32,
    looks: usize,
}

/// One search.
struct Front {
    start: usize,
    /// Transactions to continue from, with their distance in edges.
    queue: VecDeque<(usize, usize)>,
    /// Transactions from this index on, in order of beginning, were reached by real time.
    after: usize,
    /// Maximum number of edges of a cycle.
    longest: usize,
}

impl<'s, 'g> Search<'s, 'g> {
    fn new(
        graph: &'g Graph<'g>,
        by_number: &'s [usize],
        first: Dependency,
        others: &'s [Dependency],
    ) -> Search<'s, 'g> {
        let mut unseen: HashMap<usize, Vec<(usize, u64)>> = HashMap::new();
        for member in by_number {
            for (key, element) in &graph.unseen[*member] {
                unseen.entry(*key).or_default().push((*member, *element));
            }
        }
        let tails = unseen.keys().map(|key| graph.history.len() + key);
        let places: HashMap<usize, usize> = by_number.iter().copied().chain(tails).zip(0..).collect();
        let mut by_begin = by_number.to_vec();
        by_begin.sort_by_key(|member| graph.history[*member].begun);
        let (reached, parents) = (vec![0; places.len()], vec![None; by_number.len()]);
        Search { graph, first, others, by_number, by_begin, places, unseen, reached, parents, number: 0, looks: 0 }
    }

    /// Returns a shortest cycle of at most `longest` edges, or the shortest one found within the limit of edges
    /// visited.
    fn shortest(mut self, mut longest: usize) -> Option<Cycle> {
        // A start without a cycle then costs no more than a look at its own edges.
        let is_sure = longest == usize::MAX && self.others.contains(&self.first);
        let mut best: Option<Cycle> = None;
        for start in self.by_number {
            if longest < SHORTEST || self.looks > LOOKS_MAX && (best.is_some() || !is_sure) {
                break;
            }
            if let Some(cycle) = self.cycle(*start, longest) {
                longest = cycle.len() - 1;
                best = Some(cycle);
            }
        }
        best
    }

    /// Returns a shortest cycle through a transaction, leaving it by an edge of the first kind, of at most `longest`
    /// edges.
    fn cycle(&mut self, start: usize, longest: usize) -> Option<Cycle> {
        self.number += 1;
        let mut front = Front { start, queue: VecDeque::from([(start, 0)]), after: self.by_begin.len(), longest };
        while let Some((from, distance)) = front.queue.pop_front() {
            if distance >= longest {
                return None;
            }
            if let Some(last) = self.expand(from, distance, &mut front) {
                return Some(self.back_to(start, from, last));
            }
        }
        None
    }

    /// Reaches the targets of one edge; returns the edge that leads back to the start.
    fn expand(&mut self, from: usize, distance: usize, front: &mut Front) -> Option<Edge> {
        let graph = self.graph;
        let (first, others) = (self.first, self.others);
        let is_start = from == front.start;
        let may_follow = |kind: Dependency| if is_start { kind == first } else { others.contains(&kind) };
        for edge in graph.edges[from].iter().filter(|edge| may_follow(edge.dependency)) {
            if edge.to < graph.history.len() {
                if self.reach(from, *edge, distance, front) {
                    return Some(*edge);
                }
                continue;
            }
            let Some(tail) = self.places.get(&edge.to).copied() else { continue };
            // From the start, not all are reached: the start may be one of them, and on a cycle through another reader.
            if !is_start && std::mem::replace(&mut self.reached[tail], self.number) == self.number {
                continue;
            }
            for at in 0..self.unseen[&edge.key].len() {
                let (by, element) = self.unseen[&edge.key][at];
                let edge = Edge { to: by, after: Some(element), ..*edge };
                if by != from && self.reach(from, edge, distance, front) {
                    return Some(edge);
                }
            }
        }
        if may_follow(Dependency::RealTime) { self.expand_in_time(from, distance, front) } else { None }
    }

    /// Reaches all transactions that began after one had ended.
    fn expand_in_time(&mut self, from: usize, distance: usize, front: &mut Front) -> Option<Edge> {
        let end = self.graph.history[from].committed_at()?;
        let closing = Edge { to: front.start, dependency: RealTime, key: 0, before: None, after: None };
        if self.graph.history[front.start].begun > end {
            return Some(closing);
        }
        if distance + 1 == front.longest {
            return None;
        }
        let later = self.by_begin.partition_point(|member| self.graph.history[*member].begun <= end);
        for place in later..front.after {
            self.reach(from, Edge { to: self.by_begin[place], ..closing }, distance, front);
        }
        front.after = front.after.min(later);
        None
    }

    /// Follows an edge; returns whether it leads back to the start.
    fn reach(&mut self, from: usize, edge: Edge, distance: usize, front: &mut Front) -> bool {
        self.looks += 1;
        if edge.to == front.start {
            return true;
        }
        if let Some(place) = self.places.get(&edge.to)
            && self.reached[*place] != self.number
        {
            self.reached[*place] = self.number;
            self.parents[*place] = Some((from, edge));
            front.queue.push_back((edge.to, distance + 1));
        }
        false
    }

    /// The path from the start to a transaction, and the last edge.
    fn back_to(&self, start: usize, end: usize, last: Edge) -> Cycle {
        let mut cycle = vec![(end, last)];
        let mut at = end;
        while at != start {
            let (from, edge) = self.parents[self.places[&at]].expect("it was reached from somewhere");
            cycle.push((from, edge));
            at = from;
        }
        cycle.reverse();
        cycle
    }
}
