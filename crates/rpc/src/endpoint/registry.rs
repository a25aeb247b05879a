//! The application's code, by number: handlers and continuations.
//!
//! Registered code may use the endpoint, register more, and panic. So the table is not borrowed while it runs, and each
//! entry has a borrow of its own, which ends however the run ends. Entries are never moved: a handler is several words.

use std::cell::RefCell;
use std::rc::Rc;

/// An entry: borrowed while it runs.
pub(crate) type Entry<T> = Rc<RefCell<T>>;

/// The table.
pub(crate) struct Registry<T>(RefCell<Vec<Option<Entry<T>>>>);

impl<T> Registry<T> {
    /// A registry with `places` empty places, numbered from 0.
    pub fn with_places(places: usize) -> Registry<T> {
        Registry(RefCell::new((0..places).map(|_| None).collect()))
    }

    /// Fills an empty place; false if it was filled already, or there is no such place.
    pub fn fill(&self, place: usize, value: T) -> bool {
        match self.0.borrow_mut().get_mut(place) {
            Some(empty @ None) => {
                *empty = Some(Rc::new(RefCell::new(value)));
                true
            }
            _ => false,
        }
    }

    /// Adds a place, and returns its number.
    pub fn push(&self, value: T) -> usize {
        let mut places = self.0.borrow_mut();
        places.push(Some(Rc::new(RefCell::new(value))));
        places.len() - 1
    }

    /// The entry in a place.
    #[inline]
    pub fn get(&self, place: usize) -> Option<Entry<T>> {
        self.0.borrow().get(place)?.clone()
    }

    /// Empties the table.
    pub fn clear(&self) {
        // Dropped once nothing is borrowed: dropping entries may call back into this code.
        let places = std::mem::take(&mut *self.0.borrow_mut());
        drop(places);
    }
}
