//! The position of a figure on the horizontal axis of a chart.

/// Charts whose largest figure is more than this many times the smallest are drawn on a logarithmic axis.
const LINEAR_RANGE_MAX: f64 = 40.0;
/// Marks of a linear axis.
const TICKS_MAX: f64 = 5.0;
/// Width of the axis, in percent; the rest is room for the text after the longest bar.
const AXIS_PERCENT: f64 = 74.0;

/// An axis that starts at the left edge.
#[derive(Debug, Clone, Copy)]
pub(super) enum Scale {
    Linear { max: f64 },
    Log { low: f64, high: f64 },
}

impl Scale {
    /// An axis for bars of these figures.
    pub fn for_bars(figures: impl Iterator<Item = f64> + Clone) -> Self {
        let (min, max) = range(figures);
        if max <= min * LINEAR_RANGE_MAX { Scale::Linear { max } } else { Scale::log(min, max) }
    }

    /// A logarithmic axis for these figures, from the power of ten below the lowest.
    pub fn for_dots(figures: impl Iterator<Item = f64> + Clone) -> Self {
        let (min, max) = range(figures);
        Scale::log(min, max)
    }

    fn log(min: f64, max: f64) -> Self {
        // Even the shortest bar must have some length.
        Scale::Log { low: 10f64.powf((min * 0.9).log10().floor()), high: max }
    }

    /// Whether it is logarithmic.
    pub fn is_log(self) -> bool {
        matches!(self, Scale::Log { .. })
    }

    /// Position in percent of the width.
    pub fn percent(self, figure: f64) -> f64 {
        let share = match self {
            Scale::Linear { max } => figure / max,
            Scale::Log { low, high } => (figure / low).ln() / (high / low).ln(),
        };
        // Zero has no logarithm; it is drawn at the edge.
        share.clamp(0.0, 1.0) * AXIS_PERCENT
    }

    /// Where the axis is marked: the powers of ten of a logarithmic axis, round numbers of a linear one.
    pub fn ticks(self) -> Vec<f64> {
        match self {
            Scale::Linear { max } => {
                // Of the steps 1, 2, 5, 10 the first that gives at most five.
                let power = 10f64.powf((max / TICKS_MAX).log10().floor());
                let step =
                    [1.0, 2.0, 5.0, 10.0].map(|step| step * power).into_iter().find(|step| max / step <= TICKS_MAX);
                let step = step.unwrap_or(max);
                (1..).map(|number| f64::from(number) * step).take_while(|x| *x <= max * (1.0 + f64::EPSILON)).collect()
            }
            Scale::Log { low, high } => {
                std::iter::successors(Some(low), |x| Some(x * 10.0)).take_while(|x| *x <= high).collect()
            }
        }
    }
}

/// Lowest and highest positive figure; 1 and 1 without any.
fn range(figures: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let positive = figures.filter(|x| x.is_finite() && *x > 0.0);
    let min = positive.clone().fold(f64::INFINITY, f64::min);
    let max = positive.fold(0.0, f64::max);
    if max > 0.0 { (min, max) } else { (1.0, 1.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_figures() {
        let linear = Scale::for_bars([1.0, 10.0].into_iter());
        assert!(!linear.is_log());
        assert_eq!(linear.percent(5.0), AXIS_PERCENT / 2.0);
        assert_eq!(linear.ticks(), [2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(Scale::Linear { max: 0.37 }.ticks().len(), 3);
        let log = Scale::for_bars([10.0, 1000.0].into_iter());
        assert!(log.is_log());
        assert_eq!(log.percent(1000.0), AXIS_PERCENT);
        assert_eq!(log.ticks(), [1.0, 10.0, 100.0, 1000.0]);
        assert!(log.percent(10.0) > 0.0);
    }

    #[test]
    fn survives_odd_figures() {
        for figures in [vec![], vec![0.0], vec![f64::NAN], vec![-1.0, 0.0]] {
            let scale = Scale::for_bars(figures.into_iter());
            assert_eq!(scale.percent(0.0), 0.0);
            assert!(scale.ticks().len() <= 5);
        }
        assert_eq!(Scale::for_dots([5.0, 50.0].into_iter()).percent(0.0), 0.0);
    }
}
