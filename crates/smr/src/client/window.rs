//! The window of a session: the commands that wait for a reply, and those that wait for room to begin.
//!
//! The cluster keeps a limited number of a session's replies, starting with the oldest command that still waits. So a
//! command begins when its number is within that distance of the oldest; the others queue in order of arrival.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::task::Poll;

use super::queue::Queue;
use crate::sessions::COMMANDS_PER_SESSION_MAX;

#[derive(Debug, Default)]
struct State {
    /// Id of the session; 0 for none.
    session: u64,
    /// Number of the last command that began.
    last: u64,
    /// Commands that wait for a reply.
    waiting: BTreeSet<u64>,
    /// Commands that wait for room.
    queue: Queue,
}

/// The session of a client.
#[derive(Debug, Default)]
pub(super) struct Window(RefCell<State>);

/// A command that has begun. Once this is dropped, its reply is not asked for again.
pub(super) struct Waiting<'a> {
    window: &'a Window,
    session: u64,
    pub sequence: u64,
}

/// A place in the queue.
struct Place<'a> {
    window: &'a Window,
    number: u64,
}

impl State {
    fn waits_from(&self) -> u64 {
        self.waiting.first().copied().unwrap_or(self.last + 1)
    }

    /// How many commands may begin.
    fn room(&self) -> usize {
        COMMANDS_PER_SESSION_MAX.saturating_sub((self.last + 1 - self.waits_from()) as usize)
    }

    /// Switches to another session, or to none; queued commands look again.
    fn enter(&mut self, session: u64) {
        (self.session, self.last) = (session, 0);
        self.waiting.clear();
        self.queue.wake(usize::MAX);
    }
}

impl Window {
    /// Returns the session; 0 for none.
    pub fn session(&self) -> u64 {
        self.0.borrow().session
    }

    /// Returns the oldest command whose reply may still be asked for.
    pub fn waits_from(&self) -> u64 {
        self.0.borrow().waits_from()
    }

    /// Switches to another session.
    pub fn enter(&self, session: u64) {
        self.0.borrow_mut().enter(session);
    }

    /// Leaves the session, unless another was entered meanwhile.
    pub fn leave(&self, session: u64) {
        if self.session() == session {
            self.enter(0);
        }
    }

    /// Begins a command when there is room; `None` if the session has changed by then.
    pub async fn begin(&self, session: u64) -> Option<Waiting<'_>> {
        if let Poll::Ready(begun) = self.begin_after(None, session) {
            return begun;
        }
        let place = self.queue();
        poll_fn(|context| {
            let begun = self.begin_after(Some(place.number), session);
            if begun.is_pending() {
                self.0.borrow_mut().queue.wait(place.number, context.waker());
            }
            begun
        })
        .await
    }

    /// Begins a command if there is room for it besides the queued commands: all of them, or those before its place.
    fn begin_after(&self, place: Option<u64>, session: u64) -> Poll<Option<Waiting<'_>>> {
        let mut state = self.0.borrow_mut();
        if state.session != session {
            return Poll::Ready(None);
        }
        let room = state.room();
        if state.queue.ahead(place, room) >= room {
            return Poll::Pending;
        }
        state.last += 1;
        let sequence = state.last;
        state.waiting.insert(sequence);
        Poll::Ready(Some(Waiting { window: self, session, sequence }))
    }

    fn queue(&self) -> Place<'_> {
        Place { window: self, number: self.0.borrow_mut().queue.join() }
    }

    /// Wakes the queued commands for which there is room.
    fn wake(&self) {
        let mut state = self.0.borrow_mut();
        let room = state.room();
        state.queue.wake(room);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.window.0.borrow_mut();
        let is_oldest = state.session == self.session && state.waits_from() == self.sequence;
        if state.session == self.session {
            state.waiting.remove(&self.sequence);
        }
        drop(state);
        if is_oldest {
            self.window.wake();
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.window.0.borrow_mut().queue.leave(self.number);
        // It may have been woken for room that it now leaves to another.
        self.window.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Waker};

    use super::*;

    fn poll<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    fn full(window: &Window) -> Vec<Waiting<'_>> {
        window.enter(7);
        (0..COMMANDS_PER_SESSION_MAX).map(|_| poll(pin!(window.begin(7))).unwrap().unwrap()).collect()
    }

    #[test]
    fn room_counts_from_the_oldest() {
        let window = Window::default();
        let mut begun = full(&window);
        let mut one = pin!(window.begin(7));
        assert!(poll(one.as_mut()).is_none());
        begun.truncate(1);
        assert!(poll(one.as_mut()).is_none(), "the first still waits");
        assert_eq!(window.waits_from(), 1);
        begun.clear();
        assert_eq!(window.waits_from(), COMMANDS_PER_SESSION_MAX as u64 + 1);
        let one = poll(one.as_mut()).unwrap().unwrap();
        assert_eq!(one.sequence, COMMANDS_PER_SESSION_MAX as u64 + 1);
    }

    #[test]
    fn they_begin_in_the_order_in_which_they_came() {
        let window = Window::default();
        let mut begun = full(&window);
        let (mut one, mut two) = (Box::pin(window.begin(7)), Box::pin(window.begin(7)));
        let mut three = Box::pin(window.begin(7));
        assert!(poll(one.as_mut()).is_none() && poll(two.as_mut()).is_none() && poll(three.as_mut()).is_none());
        begun.drain(..1);
        assert!(poll(two.as_mut()).is_none(), "one is before it");
        assert!(poll(pin!(window.begin(7))).is_none(), "no newcomer overtakes");
        // One gives up: the next one gets its room.
        drop(one);
        assert!(poll(three.as_mut()).is_none());
        let two = poll(two.as_mut()).unwrap();
        assert!(two.is_some() && poll(three.as_mut()).is_none());
    }

    #[test]
    fn another_session_ends_the_waiting() {
        let window = Window::default();
        let begun = full(&window);
        let mut one = pin!(window.begin(7));
        assert!(poll(one.as_mut()).is_none());
        window.leave(6);
        assert!(poll(one.as_mut()).is_none(), "it was another that is left");
        window.leave(7);
        assert!(poll(one.as_mut()).unwrap().is_none());
        window.enter(8);
        let next = poll(pin!(window.begin(8))).unwrap().unwrap();
        drop(begun);
        assert_eq!((next.sequence, window.waits_from()), (1, 1), "those of the session before do not count");
    }
}
