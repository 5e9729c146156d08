//! Panics: how they are logged, and how a caller handles panics of a library.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};

thread_local! {
    /// Whether a caller of [`catch_panic`] reports the panics of this thread.
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Runs code of a library that may panic on unexpected values and leaves no broken state behind. The error is
/// the panic message; the caller reports it, and the panic itself is logged only at `debug`.
pub fn catch_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    let was_caught = IS_CAUGHT.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    IS_CAUGHT.set(was_caught);
    done.map_err(|panic| panic_message(&*panic).to_owned())
}

/// The message of a panic.
pub fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// Replaces the standard hook, which writes to standard error itself and blocks if that is not read.
pub(super) fn log_panic(panic: &PanicHookInfo<'_>) {
    let location = panic.location().map(ToString::to_string);
    let message = panic.payload_as_str().unwrap_or("no message");
    if IS_CAUGHT.get() {
        tracing::debug!(location, "a panic was caught: {message}");
        return;
    }
    let thread = std::thread::current();
    tracing::error!(
        location,
        thread = thread.name(),
        backtrace = %std::backtrace::Backtrace::capture(),
        "panicked: {message}"
    );
    // Most panics end only a task, but that is not known here.
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
