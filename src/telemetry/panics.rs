//! Panics: what the log says of them, and work of others that may panic for what it is given.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};

thread_local! {
    /// Whether what this thread does is told by whoever has called [`catch_panic`].
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Does a library's work, which leaves nothing behind where it panics for a value that it did not expect. The error is what the panic
/// says; the caller tells it, and the log only at `debug`.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let was_caught = IS_CAUGHT.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    IS_CAUGHT.set(was_caught);
    done.map_err(|panic| panic_message(&*panic).to_owned())
}

/// What a panic says.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// In place of the standard hook, which writes to standard error itself and waits for whoever reads that.
pub(super) fn log_panic(panic: &PanicHookInfo<'_>) {
    let location = panic.location().map(ToString::to_string);
    let message = panic.payload_as_str().unwrap_or("no message");
    if IS_CAUGHT.get() {
        tracing::debug!(location, "a panic is caught: {message}");
        return;
    }
    let thread = std::thread::current();
    tracing::error!(
        location,
        thread = thread.name(),
        backtrace = %std::backtrace::Backtrace::capture(),
        "panicked: {message}"
    );
    // Of most panics only a task ends; which these are is not known here.
    super::flush_for(super::PANIC_TIMEOUT);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_that_is_caught_is_what_it_says_and_the_next_one_is_caught_again() {
        assert_eq!(catch_panic(|| 1), Ok(1));
        let nested = catch_panic(|| catch_panic(|| panic!("the inner one")));
        assert_eq!(nested, Ok(Err::<(), _>("the inner one".to_owned())));
        let number = 2;
        let caught = catch_panic(|| panic!("number {number}"));
        assert_eq!(caught, Err::<(), _>("number 2".to_owned()));
        assert!(!IS_CAUGHT.get());
    }
}
