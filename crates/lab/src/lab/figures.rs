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
        self.expect_more(cases.len() * self.settings.simulations.seeds as usize);
        for case in cases.iter() {
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
        self.expect_more(cases.len() * self.settings.runs);
        for case in cases.iter() {
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
        self.expect_more(cases.len() * self.settings.runs);
        for case in cases.iter() {
            let runs = self.case_beside_floor(&case.name, &cost, |lab| measure(lab, &case.at))?;
            self.report(case, figures, &Runs::from(runs))?;
        }
        Ok(())
    }

    /// Measures all cases in turn, in as many rounds as the settings say, and reports their figures: for systems that are
    /// compared with each other. `round` gives a sample of each case, in their order; with its floor, if it has one.
    ///
    /// # Errors
    /// The first error of a round; [`LabError::NoSamples`] if a round does not have a sample of each case.
    pub fn measure_in_turn<A, S>(
        &mut self,
        cases: &Cases<A>,
        figures: &[Figure<A, S>],
        round: impl Fn(&Lab<E>) -> Result<Vec<(S, Option<S>)>, E>,
    ) -> Result<Rounds<S>, E> {
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
