//! Code of the application's that is taken out of its table while it runs.
//!
//! It may use the endpoint, and so must not run while the table is borrowed; and it may panic, and must be back in its place even then.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// A table of what can be taken.
pub(crate) type Table<T> = RefCell<Vec<Place<T>>>;

/// One place of the table.
pub(crate) enum Place<T> {
    /// Nothing was registered.
    Empty,
    /// It is here.
    Here(T),
    /// It runs.
    Running,
}

/// What was taken; goes back when this is dropped.
pub(crate) struct Taken<'a, T> {
    table: &'a Table<T>,
    index: usize,
    value: Option<T>,
}

impl<'a, T> Taken<'a, T> {
    /// Takes what is at `index`, if anything is.
    #[inline]
    pub fn from(table: &'a Table<T>, index: usize) -> Option<Self> {
        let mut places = table.borrow_mut();
        match std::mem::replace(places.get_mut(index)?, Place::Running) {
            Place::Here(value) => Some(Taken { table, index, value: Some(value) }),
            other => {
                places[index] = other;
                None
            }
        }
    }
}

impl<T> Taken<'_, T> {
    /// Its place.
    #[inline]
    pub fn index(&self) -> usize {
        self.index
    }
}

impl<T> Deref for Taken<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.value.as_ref().expect("the value is there until the drop")
    }
}

impl<T> DerefMut for Taken<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("the value is there until the drop")
    }
}

impl<T> Drop for Taken<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if let (Some(value), Some(place)) = (self.value.take(), self.table.borrow_mut().get_mut(self.index)) {
            *place = Place::Here(value);
        }
    }
}
