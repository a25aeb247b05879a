//! Turns a broken promise, which panics, into a message.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// Why this thread last panicked; `None` outside of [`caught`].
    static WHY: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs something that may panic, without output on standard error; returns the panic message and its location.
pub fn caught<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let is_ours = WHY.with_borrow_mut(|why| {
                // The first panic is the cause; later ones are consequences.
                if let Some(why) = why.as_mut().filter(|why| why.is_empty()) {
                    *why = format!("{info}");
                }
                why.is_some()
            });
            if !is_ours {
                others(info);
            }
        }));
    });
    WHY.set(Some(String::new()));
    let result = catch_unwind(AssertUnwindSafe(run));
    let why = WHY.take().unwrap_or_default();
    result.map_err(|_| why)
}
