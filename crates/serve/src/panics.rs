//! Panics of tasks: caught where the task runs and reported, so that nothing waits for a task that is gone.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use dunlin_rpc::panic_message;
use futures::FutureExt as _;

fn reason(payload: &(dyn Any + Send)) -> String {
    format!("it panicked: {}", panic_message(payload))
}

/// Runs `work`. If it panics, calls `failed` with its message instead of passing the panic on.
///
/// State that the work shares with others stays as the panic left it: `failed` must not let them continue as if nothing
/// had happened.
pub async fn guarded<F: Future>(work: F, failed: impl FnOnce(String)) -> Option<F::Output> {
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(output) => Some(output),
        Err(payload) => {
            failed(reason(&*payload));
            None
        }
    }
}

/// The same for work that does not wait.
pub fn guarded_now<R>(work: impl FnOnce() -> R, failed: impl FnOnce(String)) -> Option<R> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).map_err(|payload| failed(reason(&*payload))).ok()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_panic_is_told_and_not_passed_on() {
        let told = RefCell::new(Vec::new());
        let note = |why: String| told.borrow_mut().push(why);
        assert_eq!(guarded_now(|| 1, note), Some(1));
        assert_eq!(guarded_now(|| -> u32 { panic!("one") }, note), None);
        assert_eq!(guarded(async { panic!("number {}", 2) }, note).now_or_never(), Some(None::<()>));
        assert_eq!(guarded_now(|| std::panic::panic_any(3), note), None::<()>);
        assert_eq!(*told.borrow(), ["it panicked: one", "it panicked: number 2", "it panicked: no message"]);
    }
}
