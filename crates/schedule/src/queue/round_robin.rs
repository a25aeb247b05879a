//! Deficit round robin (Shreedhar and Varghese, SIGCOMM 1995) over levels, as the thesis serves its multi-level queue.

/// The current turn, and the remaining service of each level. Deficits are in units of cost.
#[derive(Debug)]
pub(super) struct RoundRobin {
    weights: Vec<u64>,
    deficits: Vec<u64>,
    at: usize,
}

impl RoundRobin {
    pub fn new(weights: &[u32]) -> Self {
        let weights: Vec<u64> = weights.iter().map(|weight| u64::from(*weight)).collect();
        let mut deficits = vec![0; weights.len()];
        deficits[0] = weights[0];
        RoundRobin { weights, deficits, at: 0 }
    }

    /// The level to take the next operation from. `cost` returns the cost of the first operation of a level, if there
    /// is one; at least one level must have one. Takes at most two rounds, whatever the costs.
    pub fn next(&mut self, cost: impl Fn(usize) -> Option<u32>) -> usize {
        let cost = |level| cost(level).map(|cost| u64::from(cost.max(1)));
        loop {
            for _ in 0..=self.weights.len() {
                let deficit = &mut self.deficits[self.at];
                match cost(self.at) {
                    Some(cost) if cost <= *deficit => {
                        *deficit -= cost;
                        return self.at;
                    }
                    Some(_) => {}
                    None => *deficit = 0,
                }
                self.at = (self.at + 1) % self.weights.len();
                self.deficits[self.at] = self.deficits[self.at].saturating_add(self.weights[self.at]);
            }
            self.skip_rounds(cost);
        }
    }

    /// Adds the quanta of all rounds but the last one in which no level can be served yet.
    fn skip_rounds(&mut self, cost: impl Fn(usize) -> Option<u64>) {
        let rounds = (0..self.weights.len())
            .filter_map(|level| Some(cost(level)?.saturating_sub(self.deficits[level]).div_ceil(self.weights[level])))
            .min()
            .unwrap_or(0);
        for level in (0..self.weights.len()).filter(|level| cost(*level).is_some()) {
            let more = self.weights[level].saturating_mul(rounds.saturating_sub(1));
            self.deficits[level] = self.deficits[level].saturating_add(more);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// How often each level is served in `count` turns if all are backlogged with operations of these costs.
    fn served<const K: usize>(weights: [u32; K], costs: [u32; K], count: usize) -> [u32; K] {
        let mut turns = RoundRobin::new(&weights);
        let mut served = [0; K];
        (0..count).for_each(|_| served[turns.next(|level| Some(costs[level]))] += 1);
        served
    }

    #[test]
    fn shares_are_those_of_the_weights() {
        assert_eq!(served([4, 3, 2, 1], [1; 4], 1000), [400, 300, 200, 100]);
        assert_eq!(served([5], [7], 10), [10]);
        // Shares are of cost, not of operations.
        assert_eq!(served([2, 1], [10, 1], 60), [10, 50]);
    }

    #[test]
    fn a_level_of_its_own_takes_everything() {
        let mut turns = RoundRobin::new(&[4, 3, 2, 1]);
        assert!((0..100).all(|_| turns.next(|level| (level == 3).then_some(1)) == 3));
        assert!((0..100).all(|_| turns.next(|level| (level == 0).then_some(u32::MAX)) == 0));
    }

    #[test]
    fn what_was_idle_has_saved_nothing() {
        let mut turns = RoundRobin::new(&[1, 1]);
        (0..1000).for_each(|_| _ = turns.next(|level| (level == 0).then_some(1)));
        let served = (0..10).filter(|_| turns.next(|_| Some(1)) == 1).count();
        assert!((4..=6).contains(&served), "{served} of 10");
    }

    #[test]
    fn the_largest_costs_take_two_rounds() {
        assert_eq!(served([u32::MAX, 1], [u32::MAX, u32::MAX], 1000), [1000, 0]);
        // One of the largest for as many small ones as cost the same.
        assert_eq!(served([1, 1], [u32::MAX, 1], 100_000)[1], 100_000);
        let mut turns = RoundRobin::new(&[3, 2, 1]);
        for turn in 0..10_000u32 {
            let looks = Cell::new(0);
            let cost = |level| {
                looks.set(looks.get() + 1);
                [Some(u32::MAX - turn), Some(1 << (turn % 32)), None][level]
            };
            turns.next(cost);
            // Two rounds, and two passes over all levels between them.
            assert!(looks.get() <= 4 * 3 + 2, "{} looks at costs", looks.get());
        }
    }
}
