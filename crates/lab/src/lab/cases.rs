//! The cases of an experiment: the product of its axes.

/// A place on every axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case<A> {
    /// Its name in reports: the labels of its values.
    pub name: String,
    /// Its values. More than two axes nest: `((A, B), C)`.
    pub at: A,
    /// The axes, each with the label of the case's value.
    pub axes: Vec<(&'static str, String)>,
}

/// The cases of an experiment, in the order in which they are measured.
///
/// ```
/// use dunlin_lab::Cases;
///
/// let cases = Cases::along("transport", ["shm", "udp"], |transport| *transport)
///     .by("in flight", [1, 60], |in_flight| format!("{in_flight} in flight"));
/// let names: Vec<_> = cases.iter().map(|case| case.name.as_str()).collect();
/// assert_eq!(names, ["shm, 1 in flight", "shm, 60 in flight", "udp, 1 in flight", "udp, 60 in flight"]);
/// assert_eq!(cases.iter().next().unwrap().at, ("shm", 1));
/// ```
#[derive(Debug, Clone)]
pub struct Cases<A> {
    all: Vec<Case<A>>,
    separator: &'static str,
}

impl<A> Cases<A> {
    /// One case for each value of an axis.
    pub fn along<L: Into<String>>(
        axis: &'static str,
        values: impl IntoIterator<Item = A>,
        label: impl Fn(&A) -> L,
    ) -> Self {
        let case = |at| {
            let name: String = label(&at).into();
            Case { name: name.clone(), at, axes: vec![(axis, name)] }
        };
        Cases { all: values.into_iter().map(case).collect(), separator: ", " }
    }

    /// Puts this between the labels of a name, from the next axis on. It is a comma and a blank otherwise.
    #[must_use]
    pub fn joined(self, separator: &'static str) -> Self {
        Cases { separator, ..self }
    }

    /// The product with another axis: all of its values for the first case, then for the second, and so on.
    #[must_use]
    pub fn by<B: Clone, L: Into<String>>(
        self,
        axis: &'static str,
        values: impl IntoIterator<Item = B>,
        label: impl Fn(&B) -> L,
    ) -> Cases<(A, B)>
    where
        A: Clone,
    {
        let separator = self.separator;
        let values: Vec<B> = values.into_iter().collect();
        let product = self.all.iter().flat_map(|case| {
            values.iter().map(|value| {
                let label: String = label(value).into();
                let mut axes = case.axes.clone();
                axes.push((axis, label.trim().to_owned()));
                let name = format!("{}{separator}{label}", case.name);
                Case { name, at: (case.at.clone(), value.clone()), axes }
            })
        });
        Cases { all: product.collect(), separator }
    }

    /// Appends what all cases have in common to their names.
    #[must_use]
    pub fn with(mut self, text: &str) -> Self {
        self.all.iter_mut().for_each(|case| case.name.push_str(text));
        self
    }

    /// Leaves out the other cases.
    #[must_use]
    pub fn only(mut self, keep: impl Fn(&A) -> bool) -> Self {
        self.all.retain(|case| keep(&case.at));
        self
    }

    /// Adds cases with the same kinds of values.
    #[must_use]
    pub fn and(mut self, more: Cases<A>) -> Self {
        self.all.extend(more.all);
        self
    }

    /// The cases.
    pub fn iter(&self) -> std::slice::Iter<'_, Case<A>> {
        self.all.iter()
    }

    /// Their number.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names<A>(cases: &Cases<A>) -> Vec<&str> {
        cases.iter().map(|case| &case.name[..]).collect()
    }

    #[test]
    fn a_product_has_every_place() {
        let cases = Cases::along("recovery", ["go-back-N", "selective"], |name| *name)
            .joined(" ")
            .by("loss", [1e-3, 1e-4], |loss| format!("loss {loss:.0e}"))
            .with(" here");
        assert_eq!(
            names(&cases),
            [
                "go-back-N loss 1e-3 here",
                "go-back-N loss 1e-4 here",
                "selective loss 1e-3 here",
                "selective loss 1e-4 here"
            ]
        );
        let last = cases.iter().last().unwrap();
        assert_eq!(last.at, ("selective", 1e-4));
        assert_eq!(last.axes, [("recovery", "selective".to_owned()), ("loss", "loss 1e-4".to_owned())]);
    }

    #[test]
    fn cases_are_left_out_and_added() {
        let some = Cases::along("n", 1..=4, i32::to_string).only(|n| n % 2 == 0);
        let all = some.and(Cases::along("n", [9], |_| "nine"));
        assert_eq!(names(&all), ["2", "4", "nine"]);
        assert_eq!((all.len(), all.is_empty()), (3, false));
    }
}
