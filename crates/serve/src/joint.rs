//! Work that several calls wait for, and that does not end with the call that began it.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::rc::Rc;

use futures::future::{FutureExt as _, LocalBoxFuture, Shared, TryFutureExt as _, WeakShared};

/// A panic of the work, until a call takes it.
type Panic = Rc<Cell<Option<Box<dyn Any + Send>>>>;
type Work<'a, R> = LocalBoxFuture<'a, Result<R, Panic>>;

/// Work of which at most one is in progress. The calls that wait for it poll it.
pub struct Joint<'a, R> {
    in_progress: RefCell<Option<WeakShared<Work<'a, R>>>>,
    /// The work in progress, if it is not dropped with the last call that waits for it.
    kept: RefCell<Option<Shared<Work<'a, R>>>>,
    is_kept: bool,
}

impl<'a, R: Clone + 'a> Default for Joint<'a, R> {
    fn default() -> Self {
        Joint::new()
    }
}

impl<'a, R: Clone + 'a> Joint<'a, R> {
    /// Work that is dropped with the last call that waits for it.
    pub fn new() -> Joint<'a, R> {
        Joint { in_progress: RefCell::default(), kept: RefCell::default(), is_kept: false }
    }

    /// Work that stands still when no call waits for it, and goes on with the next one. It must not own this.
    pub fn kept() -> Joint<'a, R> {
        Joint { is_kept: true, ..Joint::new() }
    }

    /// The result of the work in progress. If there is none, it begins.
    ///
    /// # Panics
    /// If the work panics in this call. The other calls begin it again.
    pub async fn get<F: Future<Output = R> + 'a>(&self, begin: impl Fn() -> F) -> R {
        loop {
            let in_progress = self.in_progress.borrow().as_ref().and_then(WeakShared::upgrade);
            let work = in_progress.filter(|work| work.peek().is_none()).unwrap_or_else(|| {
                let work = AssertUnwindSafe(begin()).catch_unwind();
                let work: Shared<Work<'a, R>> =
                    work.map_err(|why| Rc::new(Cell::new(Some(why)))).boxed_local().shared();
                self.in_progress.replace(work.downgrade());
                if self.is_kept {
                    self.kept.replace(Some(work.clone()));
                }
                work
            });
            let result = work.await;
            // A result may own much.
            let ended = self.kept.borrow_mut().take_if(|work| work.peek().is_some());
            drop(ended);
            match result {
                Ok(result) => return result,
                Err(panic) => _ = panic.take().map(|why| resume_unwind(why)),
            }
        }
    }
}
