//! The estimated cost of reading a key, before it is read.

/// Where a value probably is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Residence {
    /// In memory, or unknown.
    #[default]
    Memory,
    /// In a slower tier.
    Tier,
}

/// How the requester estimates the cost of an operation. Costs have no unit: a read of unknown size from memory costs
/// [`CostEstimate::per_operation`], and all other costs are relative to that.
///
/// The default counts operations, as the thesis does (section 3.2.1): each costs 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CostEstimate {
    /// Base cost of every operation, at least 1.
    pub per_operation: u32,
    /// Bytes of a value per additional unit of cost. 0 ignores sizes.
    pub bytes_per_unit: u32,
    /// Additional cost of a value in a slower tier.
    pub per_tier_read: u32,
}

impl Default for CostEstimate {
    fn default() -> Self {
        CostEstimate { per_operation: 1, bytes_per_unit: 0, per_tier_read: 0 }
    }
}

impl CostEstimate {
    /// Estimates one operation from what the requester knows of the value: its size in bytes, if known, and where it
    /// is. At least 1.
    pub fn of(&self, bytes: Option<u32>, residence: Residence) -> u32 {
        let size = bytes.and_then(|bytes| bytes.checked_div(self.bytes_per_unit)).unwrap_or(0);
        let tier = if residence == Residence::Tier { self.per_tier_read } else { 0 };
        self.per_operation.max(1).saturating_add(size).saturating_add(tier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_counts() {
        let count = CostEstimate::default();
        assert_eq!(count.of(None, Residence::Memory), 1);
        assert_eq!(count.of(Some(u32::MAX), Residence::Tier), 1);
    }

    #[test]
    fn sizes_and_tiers_add_and_never_overflow() {
        let estimate = CostEstimate { per_operation: 2, bytes_per_unit: 100, per_tier_read: 40 };
        assert_eq!(estimate.of(Some(250), Residence::Memory), 4);
        assert_eq!(estimate.of(None, Residence::Tier), 42);
        let most = CostEstimate { per_operation: u32::MAX, bytes_per_unit: 1, per_tier_read: u32::MAX };
        assert_eq!(most.of(Some(u32::MAX), Residence::Tier), u32::MAX);
        assert_eq!(CostEstimate { per_operation: 0, ..most }.of(None, Residence::Memory), 1);
    }
}
