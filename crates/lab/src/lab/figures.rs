//! The figures of an experiment's cases, and how they are measured and reported.

use std::ops::RangeInclusive;

use super::{Case, Cases, Lab, Trial};
use crate::LabError;
use crate::measure::{BesideFloor, Measured, Spread};
use crate::report::{Metric, RowBuilder, Target};

/// A figure that an experiment reports of every case: a column of its table. `A` is the place of a case, `S` what one
/// run of it gives.
#[derive(Debug)]
pub struct Figure<A, S> {
    metric: Metric,
    of: fn(&A, &S) -> f64,
    /// What the row's name adds to that of the case.
    part: &'static str,
    has_floor: fn(&A) -> bool,
    is_reported: fn(&A) -> bool,
    target: fn(&A) -> Option<Target>,
    like_paper: fn(&A) -> Option<RangeInclusive<f64>>,
    limit: fn(&A) -> Option<&'static str>,
    rival: fn(&A) -> Option<String>,
}

impl<A, S> Figure<A, S> {
    /// A figure of each run.
    pub const fn new(metric: Metric, of: fn(&A, &S) -> f64) -> Self {
        Figure {
            metric,
            of,
            part: "",
            has_floor: |_| false,
            is_reported: |_| true,
            target: |_| None,
            like_paper: |_| None,
            limit: |_| None,
            rival: |_| None,
        }
    }

    /// A figure that the floor has too.
    pub const fn with_floor(metric: Metric, of: fn(&A, &S) -> f64) -> Self {
        Figure { has_floor: |_| true, ..Figure::new(metric, of) }
    }

    /// Appends a text to the name of the case.
    #[must_use]
    pub const fn part(self, part: &'static str) -> Self {
        Figure { part, ..self }
    }

    /// Shows the floor with some cases only.
    #[must_use]
    pub const fn floor_if(self, has_floor: fn(&A) -> bool) -> Self {
        Figure { has_floor, ..self }
    }

    /// Reports it of some cases only.
    #[must_use]
    pub const fn only_if(self, is_reported: fn(&A) -> bool) -> Self {
        Figure { is_reported, ..self }
    }

    /// Sets the target of each case.
    #[must_use]
    pub const fn target(self, target: fn(&A) -> Option<Target>) -> Self {
        Figure { target, ..self }
    }

    /// Sets the bounds within which each case reproduces the paper's figure, as factors of it.
    #[must_use]
    pub const fn like_paper(self, like_paper: fn(&A) -> Option<RangeInclusive<f64>>) -> Self {
        Figure { like_paper, ..self }
    }

    /// Says of each case what limits it: the reason that is shown if its target is missed.
    #[must_use]
    pub const fn limit(self, limit: fn(&A) -> Option<&'static str>) -> Self {
        Figure { limit, ..self }
    }

    /// Names the case of another system that does the same work, whose figure stands beside each case's.
    #[must_use]
    pub const fn rival(self, rival: fn(&A) -> Option<String>) -> Self {
        Figure { rival, ..self }
    }

    /// The name of the row of a case, if it is reported.
    pub(super) fn row_name(&self, case: &Case<A>) -> Option<String> {
        (self.is_reported)(&case.at).then(|| format!("{}{}", case.name, self.part))
    }

    /// The names of the rows that the target of a case refers to.
    pub(super) fn needs(&self, case: &Case<A>) -> Vec<String> {
        (self.target)(&case.at).map_or_else(Vec::new, |target| target.cases())
    }

    /// The row of a case.
    fn row(&self, case: &Case<A>, runs: &Runs<S>) -> Result<RowBuilder, LabError> {
        let figures = |runs: &[S]| runs.iter().map(|run| (self.of)(&case.at, run)).collect::<Vec<f64>>();
        let (name, ours) = (format!("{}{}", case.name, self.part), figures(&runs.ours));
        let mut row = if runs.are_seeds {
            RowBuilder::of_seeds(name, self.metric, &ours)?
        } else {
            RowBuilder::new(name, self.metric, spread(&ours)?)
        };
        if (self.has_floor)(&case.at) && !runs.floors.is_empty() {
            row = row.floor(spread(&figures(&runs.floors))?);
        }
        if let Some(target) = (self.target)(&case.at) {
            row = row.target(target);
        }
        if let Some(factors) = (self.like_paper)(&case.at) {
            row = row.like_paper(factors);
        }
        if let Some(limit) = (self.limit)(&case.at) {
            row = row.limit(limit);
        }
        if let Some(rival) = (self.rival)(&case.at) {
            row = row.rival(rival);
        }
        Ok(row.repeated(runs.repeated).axes(&case.axes))
    }
}

/// The runs of one case.
struct Runs<S> {
    ours: Vec<S>,
    /// As many, or none.
    floors: Vec<S>,
    repeated: u32,
    /// In virtual time.
    are_seeds: bool,
}

/// Cases that were measured in turn: a sample of each in every round.
#[derive(Debug)]
pub struct Rounds<S> {
    /// By case, then by round.
    cases: Vec<Vec<S>>,
}

impl<S> Rounds<S> {
    /// The spread of a figure that combines the samples of a round, which are in the order of the cases: a ratio of two
    /// that were measured close together.
    ///
    /// # Errors
    /// [`LabError::NoSamples`] if there was no round.
    pub fn spread(&self, figure: impl Fn(&[&S]) -> f64) -> Result<Spread, LabError> {
        let rounds = self.cases.first().map_or(0, Vec::len);
        let of_round = |round| figure(&self.cases.iter().map(|runs| &runs[round]).collect::<Vec<&S>>());
        spread(&(0..rounds).map(of_round).collect::<Vec<f64>>())
    }
}

impl<E: From<LabError>> Lab<E> {
    /// Measures cases in virtual time, with as many seeds as the settings say, and reports their figures.
    ///
    /// # Errors
    /// The first error of a run. The figures of earlier cases are kept.
    pub fn simulate_each<A, S>(
        &mut self,
        cases: &Cases<A>,
        figures: &[Figure<A, S>],
        measure: impl Fn(Trial<'_, E>, &A) -> Result<S, E>,
    ) -> Result<(), E> {
        let cases = self.selected(cases, figures);
        self.expect_more(cases.len() * self.settings.simulations.seeds as usize);
        for case in cases {
            let ours = self.simulate(&case.name, |trial| measure(trial, &case.at))?;
            self.report(case, figures, &Runs { ours, floors: Vec::new(), repeated: 0, are_seeds: true })?;
        }
        Ok(())
    }

    /// Measures cases, as often as the settings say, and reports their figures.
    ///
    /// # Errors
    /// As [`Lab::simulate_each`].
    pub fn measure_each<A, S>(
        &mut self,
        cases: &Cases<A>,
        figures: &[Figure<A, S>],
        measure: impl Fn(&Lab<E>, &A) -> Result<S, E>,
    ) -> Result<(), E> {
        let cases = self.selected(cases, figures);
        self.expect_more(cases.len() * self.settings.runs);
        for case in cases {
            let ours = self.case(&case.name, |lab| measure(lab, &case.at))?;
            self.report(case, figures, &Runs { ours, floors: Vec::new(), repeated: 0, are_seeds: false })?;
        }
        Ok(())
    }

    /// Measures cases and their floors, as [`Lab::case_beside_floor`] does, and reports their figures.
    ///
    /// # Errors
    /// As [`Lab::simulate_each`].
    pub fn pair_each<A, S>(
        &mut self,
        cases: &Cases<A>,
        figures: &[Figure<A, S>],
        cost: impl Fn(&S) -> f64,
        measure: impl Fn(&Lab<E>, &A) -> Result<Measured<S>, E>,
    ) -> Result<(), E> {
        let cases = self.selected(cases, figures);
        self.expect_more(cases.len() * self.settings.runs);
        for case in cases {
            let runs = self.case_beside_floor(&case.name, &cost, |lab| measure(lab, &case.at))?;
            self.report(case, figures, &Runs::from(runs))?;
        }
        Ok(())
    }

    /// Measures all cases in turn, in as many rounds as the settings say, and reports their figures: for systems that are
    /// compared with each other. `round` gives a sample of each case, in their order; with its floor, if it has one.
    ///
    /// # Errors
    /// The first error of a round; [`LabError::NoSamples`] if a round does not have a sample of each case;
    /// [`LabError::NoneWanted`] if the user wants none of the cases. If one is wanted, all are measured.
    pub fn measure_in_turn<A, S>(
        &mut self,
        cases: &Cases<A>,
        figures: &[Figure<A, S>],
        round: impl Fn(&Lab<E>) -> Result<Vec<(S, Option<S>)>, E>,
    ) -> Result<Rounds<S>, E> {
        if self.selected(cases, figures).is_empty() {
            return Err(LabError::NoneWanted.into());
        }
        self.expect_more(self.settings.runs);
        let rounds = self.case("all in turn", round)?;
        let mut runs: Vec<Runs<S>> = cases.iter().map(|_| Runs::default()).collect();
        for round in rounds {
            if round.len() != runs.len() {
                return Err(LabError::NoSamples { what: "a case of a round" }.into());
            }
            for ((ours, floor), runs) in round.into_iter().zip(&mut runs) {
                runs.ours.push(ours);
                runs.floors.extend(floor);
            }
        }
        for (case, runs) in cases.iter().zip(&runs) {
            self.report(case, figures, runs)?;
        }
        Ok(Rounds { cases: runs.into_iter().map(|runs| runs.ours).collect() })
    }

    fn report<A, S>(&mut self, case: &Case<A>, figures: &[Figure<A, S>], runs: &Runs<S>) -> Result<(), E> {
        for figure in figures.iter().filter(|figure| (figure.is_reported)(&case.at)) {
            self.push(figure.row(case, runs)?);
        }
        Ok(())
    }

    fn expect_more(&mut self, runs: usize) {
        self.bar.set_length(self.bar.length().unwrap_or(0) + runs as u64);
    }
}

impl<S> Default for Runs<S> {
    fn default() -> Self {
        Runs { ours: Vec::new(), floors: Vec::new(), repeated: 0, are_seeds: false }
    }
}

impl<S> From<BesideFloor<S>> for Runs<S> {
    fn from(runs: BesideFloor<S>) -> Self {
        let repeated = runs.repeated();
        let (ours, floors) = runs.into_runs().into_iter().map(|Measured { ours, floor }| (ours, floor)).unzip();
        Runs { ours, floors, repeated, are_seeds: false }
    }
}

fn spread(figures: &[f64]) -> Result<Spread, LabError> {
    Spread::of(figures).ok_or(LabError::NoSamples { what: "a case" })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use dunlin_serve::Interrupt;

    use super::*;
    use crate::peer::Launcher;
    use crate::report::{Papers, Row, Verdict};
    use crate::{Settings, Simulations};

    const TABLES: &str = r#"
        [[table]]
        experiments = ["test"]
        document = "eRPC"
        table = "Table 2"
        setup = "CX5"
        cells = [{ cases = ["shm, *"], metric = "latency p50", value = 100.0 }]
    "#;

    type Place = (&'static str, u32);
    type Column = Figure<Place, f64>;

    /// Rows of a test without processes: three runs, or two seeds, of each case.
    fn rows(measure: impl FnOnce(&mut Lab<LabError>) -> Result<(), LabError>) -> Vec<Row> {
        let simulations = Simulations { seed: 5, seeds: 2, cost: None };
        let settings = Settings { runs: 3, repeats: 1, simulations, ..Settings::default() };
        let papers = Papers::read([TABLES]).unwrap();
        let mut lab = Lab::open("test", settings, papers, Launcher::new(Interrupt::default())).unwrap();
        measure(&mut lab).unwrap();
        lab.finish().rows
    }

    fn cases() -> Cases<Place> {
        Cases::along("transport", ["shm", "udp"], |name| *name).by("in flight", [1, 8], |n| format!("{n} in flight"))
    }

    #[test]
    fn a_simulated_row_has_its_seeds_its_paper_and_its_place() {
        let figures = [Column::new(Metric::LatencyP50, |(_, n), nanos| nanos * f64::from(*n))
            .like_paper(|(_, n)| (*n == 1).then_some(0.5..=1.5))];
        let rows = rows(|lab| lab.simulate_each(&cases(), &figures, |trial, _| Ok(trial.seed()? as f64 * 20.0)));
        let [first, second, third, _] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!(first.case, "shm, 1 in flight");
        assert_eq!((first.min, first.value, first.max), (Some(100.0), 110.0, Some(120.0)));
        assert_eq!((first.paper, first.paper_source.as_deref()), (Some(100.0), Some("eRPC, Table 2")));
        assert_eq!((first.target, first.not_beyond, first.verdict()), (Some(150.0), Some(50.0), Some(Verdict::Met)));
        assert_eq!(
            first.axes.iter().map(|(axis, at)| (&axis[..], &at[..])).collect::<Vec<_>>(),
            [("in flight", "1 in flight"), ("transport", "shm")]
        );
        assert_eq!((second.value, second.paper, second.target), (880.0, Some(100.0), None));
        assert_eq!((third.paper, third.target), (None, None), "without a paper's figure there are no bounds");
    }

    #[test]
    fn a_floor_stands_beside_the_figures_that_have_one() {
        let figures = [
            Column::with_floor(Metric::Rate, |_, rate| *rate)
                .floor_if(|(_, n)| *n == 8)
                .target(|(name, _)| (*name == "udp").then_some(Target::FloorTimes(0.5))),
            Column::new(Metric::Calls, |_, _| 7.0).part(", lost").only_if(|place| *place == ("udp", 8)),
        ];
        let runs = Cell::new(0);
        let rows = rows(|lab| {
            lab.pair_each(
                &cases(),
                &figures,
                |floor| 1.0 / floor,
                |_, (_, n)| {
                    runs.set(runs.get() + 1);
                    // The first floor of all was disturbed.
                    let floor = if runs.get() == 1 { 10.0 } else { 100.0 };
                    Ok(Measured { ours: f64::from(*n), floor })
                },
            )
        });
        assert_eq!(runs.get(), 4 * 3 + 1, "one run was repeated");
        let seen: Vec<_> = rows.iter().map(|row| (&row.case[..], row.value, row.floor, row.target)).collect();
        assert_eq!(
            seen,
            [
                ("shm, 1 in flight", 1.0, None, None),
                ("shm, 8 in flight", 8.0, Some(100.0), None),
                ("udp, 1 in flight", 1.0, None, None),
                ("udp, 8 in flight", 8.0, Some(100.0), Some(50.0)),
                ("udp, 8 in flight, lost", 7.0, None, None)
            ]
        );
        assert_eq!(rows.iter().map(|row| row.repeated).collect::<Vec<_>>(), [1, 0, 0, 0, 0]);
    }

    #[test]
    fn cases_in_turn_are_compared_round_by_round() {
        let cases = Cases::along("system", ["ours", "theirs"], |name| *name);
        let figures = [Figure::with_floor(Metric::Rate, |_, rate: &f64| *rate)];
        let rounds = Cell::new(0.0);
        let rows = rows(|lab| {
            let measured = lab.measure_in_turn(&cases, &figures, |_| {
                rounds.set(rounds.get() + 1.0);
                // The machine gets slower, which is the same for both.
                Ok(vec![(600.0 / rounds.get(), Some(1200.0)), (200.0 / rounds.get(), None)])
            })?;
            let advantage = measured.spread(|rates| rates[0] / rates[1])?;
            assert_eq!((advantage.min, advantage.max), (3.0, 3.0));
            Ok(())
        });
        let seen: Vec<_> = rows.iter().map(|row| (&row.case[..], row.value, row.floor)).collect();
        assert_eq!(seen, [("ours", 300.0, Some(1200.0)), ("theirs", 100.0, None)]);
    }

    #[test]
    fn a_round_without_a_case_is_an_error() {
        let cases = Cases::along("system", ["ours", "theirs"], |name| *name);
        let figures = [Figure::new(Metric::Rate, |_, rate: &f64| *rate)];
        rows(|lab| {
            let measured = lab.measure_in_turn(&cases, &figures, |_| Ok(vec![(1.0, None)]));
            assert!(matches!(measured, Err(LabError::NoSamples { .. })));
            Ok(())
        });
    }

    #[test]
    fn cases_without_floor_have_none() {
        let figures = [Column::with_floor(Metric::Rate, |_, rate| *rate)];
        let rows = rows(|lab| lab.measure_each(&cases(), &figures, |_, (_, n)| Ok(f64::from(*n))));
        assert_eq!(
            rows.iter().map(|row| (row.value, row.floor)).collect::<Vec<_>>(),
            [(1.0, None), (8.0, None), (1.0, None), (8.0, None)]
        );
    }
}
