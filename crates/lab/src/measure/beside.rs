//! Figures and their floors, run by run.

use super::Spread;
use crate::LabError;

/// If a run's floor is worse than the best of its case by more than this factor, other work disturbed the machine; the
/// run may be repeated.
const FLOOR_WORSE_MAX: f64 = 1.5;

/// A figure, and the floor that was measured just before it.
#[derive(Debug, Clone, Copy)]
pub struct Measured<T> {
    /// The figure of Dunlin.
    pub ours: T,
    /// The floor: the bare transport.
    pub floor: T,
}

/// The runs of one case: floor, figure, floor, figure, and so on.
#[derive(Debug, Clone)]
pub struct BesideFloor<T> {
    runs: Vec<Measured<T>>,
    /// Repeated runs.
    repeated: u32,
}

impl<T> BesideFloor<T> {
    /// Wraps runs that were taken already.
    pub fn of(runs: Vec<Measured<T>>) -> Self {
        BesideFloor { runs, repeated: 0 }
    }

    /// Takes `runs` runs, then repeats those whose floor was much worse than the best one, at most `repeats` times. Of
    /// the two, it keeps the one with the better floor, whatever its figure. `cost` is the cost of a floor: less is
    /// better.
    ///
    /// # Errors
    /// The first error of a run.
    pub fn take<E>(
        (runs, repeats): (usize, usize),
        cost: impl Fn(&T) -> f64,
        mut run: impl FnMut() -> Result<Measured<T>, E>,
    ) -> Result<Self, E> {
        let mut taken = Vec::with_capacity(runs);
        for _ in 0..runs {
            taken.push(run()?);
        }
        let mut repeated = 0;
        while (repeated as usize) < repeats {
            let costs = || taken.iter().map(|run| cost(&run.floor)).enumerate();
            let best = costs().map(|(_, cost)| cost).fold(f64::INFINITY, f64::min);
            let Some((worst, at)) = costs().max_by(|a, b| a.1.total_cmp(&b.1)) else { break };
            if at <= best * FLOOR_WORSE_MAX {
                break;
            }
            repeated += 1;
            let again = run()?;
            if cost(&again.floor) < at {
                taken[worst] = again;
            }
        }
        Ok(BesideFloor { runs: taken, repeated })
    }

    /// The spread of a figure, and of its floor.
    ///
    /// # Errors
    /// [`LabError::NoSamples`] if there were no runs.
    pub fn spread(&self, figure: impl Fn(&T) -> f64) -> Result<Measured<Spread>, LabError> {
        let of = |part: fn(&Measured<T>) -> &T| {
            let figures: Vec<f64> = self.runs.iter().map(|run| figure(part(run))).collect();
            Spread::of(&figures).ok_or(LabError::NoSamples { what: "a case" })
        };
        Ok(Measured { ours: of(|run| &run.ours)?, floor: of(|run| &run.floor)? })
    }

    /// The runs.
    pub fn into_runs(self) -> Vec<Measured<T>> {
        self.runs
    }

    /// Number of repeated runs.
    pub fn repeated(&self) -> u32 {
        self.repeated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes runs with the given floors; their figures are consecutive numbers.
    fn take(runs: usize, repeats: usize, floors: &[f64]) -> BesideFloor<f64> {
        let mut floors = floors.iter().enumerate();
        let run = || floors.next().map(|(i, floor)| Measured { ours: i as f64, floor: *floor });
        let mut run = run;
        BesideFloor::take((runs, repeats), |floor| *floor, || Ok::<_, LabError>(run().unwrap())).unwrap()
    }

    fn figures(taken: &BesideFloor<f64>) -> Vec<f64> {
        taken.runs.iter().map(|run| run.ours).collect()
    }

    #[test]
    fn quiet_runs_are_kept() {
        let taken = take(3, 3, &[100.0, 149.0, 110.0]);
        assert_eq!((figures(&taken), taken.repeated()), (vec![0.0, 1.0, 2.0], 0));
        let spread = taken.spread(|figure| *figure).unwrap();
        assert_eq!((spread.floor.min, spread.floor.median, spread.floor.max), (100.0, 110.0, 149.0));
    }

    #[test]
    fn disturbed_runs_are_taken_again_a_few_times() {
        let taken = take(3, 3, &[100.0, 500.0, 200.0, 110.0, 120.0]);
        assert_eq!((figures(&taken), taken.repeated()), (vec![0.0, 3.0, 4.0], 2));
        let taken = take(2, 2, &[100.0, 500.0, 900.0, 300.0]);
        assert_eq!((figures(&taken), taken.repeated()), (vec![0.0, 3.0], 2), "a worse one does not take its place");
    }

    #[test]
    fn a_first_run_that_was_too_good_bounds_the_effort() {
        let taken = take(2, 1, &[10.0, 100.0, 100.0]);
        assert_eq!((figures(&taken), taken.repeated()), (vec![0.0, 1.0], 1));
    }
}
