//! Operations above the share of their client.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use super::Waiting;

/// Operations in order of arrival, counted by client. All methods take logarithmic time.
#[derive(Debug)]
pub(super) struct Demoted<T> {
    /// By number of arrival.
    waiting: BTreeMap<u64, Waiting<T>>,
    next: u64,
    /// For each client with operations, their numbers in order.
    of_client: HashMap<u64, VecDeque<u64>>,
    /// The same clients by their number of operations.
    by_count: BTreeSet<(usize, u64)>,
}

impl<T> Demoted<T> {
    pub fn new() -> Self {
        Demoted { waiting: BTreeMap::new(), next: 0, of_client: HashMap::new(), by_count: BTreeSet::new() }
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Number of operations of a client.
    pub fn count(&self, client: u64) -> usize {
        self.of_client.get(&client).map_or(0, VecDeque::len)
    }

    pub fn push(&mut self, waiting: Waiting<T>) {
        let client = waiting.tag.client;
        self.waiting.insert(self.next, waiting);
        let numbers = self.of_client.entry(client).or_default();
        self.by_count.remove(&(numbers.len(), client));
        numbers.push_back(self.next);
        self.by_count.insert((numbers.len(), client));
        self.next += 1;
    }

    /// Takes the first operation.
    pub fn pop(&mut self) -> Option<Waiting<T>> {
        let (_, waiting) = self.waiting.pop_first()?;
        self.forget(waiting.tag.client, VecDeque::pop_front);
        Some(waiting)
    }

    /// Takes the last operation of the client that has most, if it has at least `least`.
    pub fn displace(&mut self, least: usize) -> Option<Waiting<T>> {
        let (_, client) = self.by_count.last().copied().filter(|(count, _)| *count >= least)?;
        let number = self.forget(client, VecDeque::pop_back)?;
        self.waiting.remove(&number)
    }

    /// Removes a number from those of a client, at either end.
    fn forget(&mut self, client: u64, take: fn(&mut VecDeque<u64>) -> Option<u64>) -> Option<u64> {
        let numbers = self.of_client.get_mut(&client)?;
        self.by_count.remove(&(numbers.len(), client));
        let number = take(numbers);
        if numbers.is_empty() {
            self.of_client.remove(&client);
        } else {
            self.by_count.insert((numbers.len(), client));
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tag;

    fn demoted(clients: &[u64]) -> Demoted<usize> {
        let mut demoted = Demoted::new();
        for (item, client) in clients.iter().enumerate() {
            demoted.push(Waiting { tag: Tag { rank: 0, cost: 1, client: *client }, item });
        }
        demoted
    }

    #[test]
    fn they_are_served_in_order_of_arrival() {
        let mut demoted = demoted(&[3, 1, 3, 2]);
        assert_eq!([3, 1, 7].map(|client| demoted.count(client)), [2, 1, 0]);
        let items: Vec<usize> = std::iter::from_fn(|| demoted.pop()).map(|waiting| waiting.item).collect();
        assert_eq!(items, [0, 1, 2, 3]);
        assert!(demoted.is_empty() && demoted.of_client.is_empty() && demoted.by_count.is_empty());
    }

    #[test]
    fn the_client_with_most_loses_its_last() {
        let mut demoted = demoted(&[1, 2, 2, 2, 1]);
        let mut displace = |least| demoted.displace(least).map(|waiting| waiting.item);
        assert_eq!([displace(4), displace(3), displace(3)], [None, Some(3), None]);
        // Two each: either may lose one; in the end both have none.
        let rest: Vec<usize> = std::iter::from_fn(|| displace(1)).collect();
        assert_eq!((rest.len(), demoted.len(), demoted.of_client.len()), (4, 0, 0));
    }
}
