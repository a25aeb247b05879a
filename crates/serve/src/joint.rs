//! Work that several calls wait for, and that does not end with the call that began it.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::rc::Rc;

use futures::future::{FutureExt as _, LocalBoxFuture, Shared, TryFutureExt as _, WeakShared};

/// A panic of the work, until a call takes it.
type Panic = Rc<Cell<Option<Box<dyn Any + Send>>>>;
type Work<R> = LocalBoxFuture<'static, Result<R, Panic>>;

/// Work of which at most one is in progress. The calls that wait for it poll it, and it is dropped with the last of
/// them, unless a task goes on with it.
pub struct Joint<R> {
    in_progress: RefCell<Option<WeakShared<Work<R>>>>,
}

impl<R: Clone + 'static> Default for Joint<R> {
    fn default() -> Self {
        Joint::new()
    }
}

impl<R: Clone + 'static> Joint<R> {
    /// No work yet.
    pub fn new() -> Joint<R> {
        Joint { in_progress: RefCell::default() }
    }

    /// The result of the work in progress. If there is none, it begins, and `begun` gets a future that goes on with it
    /// when no call waits for it any more.
    ///
    /// # Panics
    /// If the work panics in this call. The other calls begin it again. If no call waits for it, that future panics.
    pub async fn get<F: Future<Output = R> + 'static>(
        &self,
        begin: impl Fn() -> F,
        begun: impl Fn(LocalBoxFuture<'static, ()>),
    ) -> R {
        loop {
            let in_progress = self.in_progress.borrow().as_ref().and_then(WeakShared::upgrade);
            let work = in_progress.filter(|work| work.peek().is_none()).unwrap_or_else(|| {
                let work = AssertUnwindSafe(begin()).catch_unwind();
                let work: Shared<Work<R>> = work.map_err(|why| Rc::new(Cell::new(Some(why)))).boxed_local().shared();
                self.in_progress.replace(work.downgrade());
                begun(work.clone().map(end_alone).boxed_local());
                work
            });
            match work.await {
                Ok(result) => return result,
                Err(panic) => _ = panic.take().map(|why| resume_unwind(why)),
            }
        }
    }
}

/// Passes on a panic of the work that no call can take.
fn end_alone<R>(result: Result<R, Panic>) {
    if let Some(why) = result.err().and_then(Rc::into_inner).and_then(Cell::into_inner) {
        resume_unwind(why);
    }
}
