//! Policies: the ranks that requesters assign to operations.

use crate::Levels;
use crate::opset::{self, Opset};

/// How a requester ranks the opsets of a multiget. A lower rank is served sooner.
///
/// Ranks by total, bottleneck and slack are for queues of [`crate::Order::Exact`], those by total also for
/// [`crate::Order::Learnt`]. The other policies give levels, the fastest of which is 0, for [`crate::Order::Weighted`]
/// with the same weights. All arithmetic is in integers and saturates.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Policy {
    /// No ranking: rank 0.
    Fifo,
    /// The cost of the whole multiget: shortest job first. Dunlin ships this policy.
    #[default]
    ShortestTotal,
    /// SBF, shortest bottleneck first: the cost of the bottleneck (thesis, section 3.2.2).
    ShortestBottleneck,
    /// SDS, slack-driven scheduling: the more slack an opset has, the higher its rank (thesis, section 3.2.2).
    SlackDriven(SlackReading),
    /// All opsets go to the level whose interval contains the cost of the bottleneck (thesis, section 3.2.3.1).
    MlqShortestBottleneck(Levels),
    /// The bottleneck goes to the fastest level, each other opset to a level that is slower in proportion to its cost
    /// (same section).
    MlqSlackDriven(Levels),
    /// Rein, Algorithm 1: the bottleneck goes by its cost, the others by their ratio to it, and never to a faster
    /// level.
    Rein(Levels),
}

/// Readings of the formula of slack-driven scheduling, `(cost(x) + slack(x)) / size(O)`. The thesis gives it for opsets
/// other than bottlenecks, and leaves open whether `x` is an opset or an operation. With both readings all bottlenecks
/// have the same rank, the lowest: no request is favoured over another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SlackReading {
    /// `x` is the opset: `cost(B) / cost(O)`. 1 for bottlenecks; the reciprocal of the ratio in Algorithm 1.
    #[default]
    Opset,
    /// `x` is one operation: `(1 + cost(B) - cost(O)) / size(O)` if costs are counts. 0 for bottlenecks: the formula
    /// can give less than 1, so any higher rank would let other opsets overtake them.
    Operation,
}

/// Fractional bits of ranks that are quotients, rounded down. Equal fractions have equal ranks, whatever their terms;
/// so do fractions that differ by less than the resolution.
const FRACTION_BITS: u32 = 16;

impl Policy {
    /// Its name in reports.
    pub fn name(&self) -> &'static str {
        match self {
            Policy::Fifo => "FIFO",
            Policy::ShortestTotal => "shortest total",
            Policy::ShortestBottleneck => "SBF",
            Policy::SlackDriven(SlackReading::Opset) => "SDS",
            Policy::SlackDriven(SlackReading::Operation) => "SDS, per operation",
            Policy::MlqShortestBottleneck(_) => "MLQ-SBF",
            Policy::MlqSlackDriven(_) => "MLQ-SDS",
            Policy::Rein(_) => "Rein",
        }
    }

    /// Whether its ranks are levels.
    pub fn gives_levels(&self) -> bool {
        matches!(self, Policy::MlqShortestBottleneck(_) | Policy::MlqSlackDriven(_) | Policy::Rein(_))
    }

    /// Ranks the opsets of one multiget. Takes time proportional to opsets times levels.
    pub fn rank(&self, opsets: &mut [Opset]) {
        self.rank_part(opsets, 0);
    }

    /// The same, for a part of a multiget: operations that cost this much are asked for before or after it. A total
    /// includes them. Bottlenecks and slack are those of the part: nothing else is in progress.
    pub fn rank_part(&self, opsets: &mut [Opset], elsewhere: u64) {
        let bottleneck = opset::bottleneck(opsets);
        match self {
            Policy::Fifo => rank_each(opsets, |_| 0),
            Policy::ShortestTotal => {
                let total = opset::total(opsets).saturating_add(elsewhere);
                rank_each(opsets, |_| total);
            }
            Policy::ShortestBottleneck => rank_each(opsets, |_| bottleneck),
            Policy::SlackDriven(reading) => rank_each(opsets, |opset| reading.rank(opset, bottleneck)),
            Policy::MlqShortestBottleneck(levels) => {
                let level = levels.of_cost(bottleneck) as u64;
                rank_each(opsets, |_| level);
            }
            Policy::MlqSlackDriven(levels) => rank_by_ratio(opsets, levels, bottleneck, 0),
            Policy::Rein(levels) => {
                rank_by_ratio(opsets, levels, bottleneck, levels.of_cost(bottleneck));
            }
        }
    }
}

fn rank_each(opsets: &mut [Opset], rank: impl Fn(&Opset) -> u64) {
    for opset in opsets {
        opset.rank = rank(opset);
    }
}

fn rank_by_ratio(opsets: &mut [Opset], levels: &Levels, bottleneck: u64, fastest: usize) {
    rank_each(opsets, |opset| levels.of_ratio(opset.cost, bottleneck, fastest) as u64);
}

impl SlackReading {
    fn rank(self, opset: &Opset, bottleneck: u64) -> u64 {
        let (cost, ops) = (u128::from(opset.cost.max(1)), u128::from(opset.ops.max(1)));
        match self {
            SlackReading::Operation if opset.slack(bottleneck) == 0 => 0,
            SlackReading::Opset => quotient(u128::from(bottleneck), cost),
            // Cost of one operation: cost(O) / size(O). Both terms of the formula, times size(O).
            SlackReading::Operation => quotient(cost + u128::from(opset.slack(bottleneck)) * ops, ops * ops),
        }
    }
}

fn quotient(numerator: u128, denominator: u128) -> u64 {
    // The numerator is below 2^64 + 2^64 * 2^32.
    let scaled = (numerator << FRACTION_BITS) / denominator;
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Opsets, Overflow};

    /// Ranks of opsets with these costs, whose operations cost 1.
    fn ranks(policy: &Policy, costs: &[u32]) -> Vec<u64> {
        let mut multiget = Opsets::new(costs.len() as u32);
        for (partition, ops) in costs.iter().enumerate() {
            (0..*ops).for_each(|_| _ = multiget.add(partition as u32, 1));
        }
        multiget.rank(policy);
        multiget.as_slice().iter().map(|opset| opset.rank).collect()
    }

    const ONE: u64 = 1 << FRACTION_BITS;

    #[test]
    fn pure_policies_follow_their_formulas() {
        assert_eq!(ranks(&Policy::Fifo, &[3, 1]), [0, 0]);
        assert_eq!(ranks(&Policy::ShortestTotal, &[3, 1]), [4, 4]);
        assert_eq!(ranks(&Policy::ShortestBottleneck, &[3, 1]), [3, 3]);
        assert_eq!(ranks(&Policy::SlackDriven(SlackReading::Opset), &[6, 3, 6, 1]), [ONE, 2 * ONE, ONE, 6 * ONE]);
        let per_operation = Policy::SlackDriven(SlackReading::Operation);
        assert_eq!(ranks(&per_operation, &[4, 2, 1]), [0, 3 * ONE / 2, 4 * ONE]);
    }

    /// A client that asks for a thousand keys in pieces of one is not before one that asks for ten at once.
    #[test]
    fn parts_of_a_multiget_have_its_total() {
        let rank = |policy: Policy, elsewhere| {
            let mut opsets = [Opset { partition: 0, ops: 1, cost: 1, rank: 0 }];
            policy.rank_part(&mut opsets, elsewhere);
            opsets[0].rank
        };
        assert_eq!(rank(Policy::ShortestTotal, 999), 1000);
        assert_eq!(rank(Policy::ShortestTotal, u64::MAX), u64::MAX);
        assert_eq!(rank(Policy::ShortestBottleneck, 999), 1);
    }

    /// Slack favours no request over another: all bottlenecks have the same rank, before all other opsets.
    #[test]
    fn bottlenecks_are_equal_whatever_their_size() {
        for reading in [SlackReading::Opset, SlackReading::Operation] {
            let policy = Policy::SlackDriven(reading);
            assert_eq!(ranks(&policy, &[10]), ranks(&policy, &[1]), "{reading:?}");
            // The formula would give the smaller opset 2/9.
            let [bottleneck, other] = ranks(&policy, &[10, 9])[..] else { panic!("two opsets") };
            assert!(bottleneck == ranks(&policy, &[1])[0] && bottleneck < other, "{reading:?}");
        }
    }

    #[test]
    fn equal_fractions_have_equal_ranks() {
        for reading in [SlackReading::Opset, SlackReading::Operation] {
            let policy = Policy::SlackDriven(reading);
            assert_eq!(ranks(&policy, &[7, 7, 7]).iter().min(), ranks(&policy, &[7, 7, 7]).iter().max());
        }
        let reading_a = Policy::SlackDriven(SlackReading::Opset);
        assert_eq!(ranks(&reading_a, &[3, 2])[1], ranks(&reading_a, &[9, 6])[1]);
    }

    #[test]
    fn rein_assigns_the_levels_of_algorithm_1() {
        let rein = Policy::Rein(Levels::default());
        // From a transcription of the algorithm, which counts levels from 1.
        for (costs, levels) in
            [(&[2, 1][..], &[1, 3][..]), (&[8, 4, 2, 1], &[2, 3, 4, 4]), (&[30, 10, 3], &[4, 4, 4]), (&[1], &[1])]
        {
            let expected: Vec<u64> = levels.iter().map(|level| level - 1).collect();
            assert_eq!(ranks(&rein, costs), expected, "{costs:?}");
        }
    }

    #[test]
    fn a_very_large_bottleneck_is_slow_unless_literal() {
        let literal = Levels::default().with_overflow(Overflow::Literal);
        assert_eq!(ranks(&Policy::Rein(Levels::default()), &[81, 1]), [3, 3]);
        assert_eq!(ranks(&Policy::Rein(literal.clone()), &[81, 1]), [0, 3]);
        assert_eq!(ranks(&Policy::MlqShortestBottleneck(literal), &[81, 1]), [0, 0]);
    }

    #[test]
    fn multi_level_queues_follow_one_half_of_rein_each() {
        assert_eq!(ranks(&Policy::MlqShortestBottleneck(Levels::default()), &[8, 4, 1]), [1, 1, 1]);
        assert_eq!(ranks(&Policy::MlqSlackDriven(Levels::default()), &[8, 4, 8, 1]), [0, 2, 0, 3]);
    }

    #[test]
    fn ranks_at_the_limits_of_integers_exist() {
        let extremes = [
            Opset { partition: 0, ops: u32::MAX, cost: u64::MAX, rank: 0 },
            Opset { partition: 1, ops: 1, cost: 1, rank: 0 },
        ];
        let levels = Levels::default();
        for policy in [
            Policy::Fifo,
            Policy::ShortestTotal,
            Policy::ShortestBottleneck,
            Policy::SlackDriven(SlackReading::Opset),
            Policy::SlackDriven(SlackReading::Operation),
            Policy::MlqShortestBottleneck(levels.clone()),
            Policy::MlqSlackDriven(levels.clone()),
            Policy::Rein(levels),
        ] {
            let mut opsets = extremes;
            policy.rank(&mut opsets);
            assert!(opsets[0].rank <= opsets[1].rank, "{}: the bottleneck never waits for the rest", policy.name());
            policy.rank(&mut []);
        }
    }
}
