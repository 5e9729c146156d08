//! Named places in the code where a test can kill or hold the process. Compiles to nothing without the
//! feature `failpoints`. No release has that feature: with optimised code and without debug assertions it
//! does not compile, except for benchmarks that enable `failpoints-in-release`.
//!
//! A process reads `TANIST_FAILPOINTS` once, at the first place that it reaches, and panics there if the list names
//! an unknown action. It is a list like `submit.persisted=kill;job.result-written=hold`:
//!
//! - `kill` ends the process at once by SIGKILL, as the kernel's out-of-memory killer would;
//! - `hold` waits forever at that place, so that a test can act on a process that is known to be there;
//! - `hold-once` holds only the first time;
//! - `hold-while:PATH` waits there while the file PATH exists; if it does not exist, the place is passed
//!   silently;
//! - `note` only reports that the place was reached.
//!
//! A place that many objects pass, such as each job, is armed for one of them: `job.recover:ID=kill`.
//!
//! `records.newer=note` makes a process also read records of the next format, as a newer version would.
//!
//! When an armed place is reached, the process first writes `failpoint NAME reached` to standard error; tests
//! wait for that line. A `hold-while` place that continues writes `failpoint NAME passed`.

// Not below a module, so that this is the first error of a release build.
#[cfg(all(
    feature = "failpoints",
    not(feature = "failpoints-in-release"),
    not(debug_assertions)
))]
compile_error!(
    "the feature `failpoints` lets an environment variable kill or hold the process, and no release may have it: build \
     without it. A benchmark that needs it names the feature `failpoints-in-release`"
);

/// When armed, the process reads one record format more than its version supports.
pub const NEWER: &str = "records.newer";

/// Whether a place is armed, with any action.
#[cfg(feature = "failpoints")]
pub fn is_armed(name: &str) -> bool {
    imp::is_armed(name)
}

/// Returns false: failpoints are not compiled in.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn is_armed(_name: &str) -> bool {
    false
}

/// Runs the action that `TANIST_FAILPOINTS` sets for the place `name`.
#[cfg(feature = "failpoints")]
pub async fn failpoint(name: &'static str) {
    imp::hit(name).await;
}

/// Same as [`failpoint`], for one object by its id: armed as `NAME:OF`.
#[cfg(feature = "failpoints")]
pub async fn failpoint_of(name: &'static str, of: &str) {
    imp::hit(&format!("{name}:{of}")).await;
}

/// Same as [`failpoint`], for a place on a thread of its own; blocks that thread.
#[cfg(feature = "failpoints")]
pub fn failpoint_on_a_thread(name: &'static str) {
    imp::hit_on_a_thread(name);
}

/// Does nothing: failpoints are not compiled in.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn failpoint_on_a_thread(_name: &'static str) {}

/// Does nothing: failpoints are not compiled in.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub async fn failpoint_of(_name: &'static str, _of: &str) {}

/// Does nothing: failpoints are not compiled in.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub async fn failpoint(_name: &'static str) {}

#[cfg(feature = "failpoints")]
mod imp {
    use std::collections::HashMap;
    use std::path::PathBuf;
    use std::sync::OnceLock;
    use std::time::Duration;

    use parking_lot::{Mutex, MutexGuard};

    /// Polling interval for the existence of the file.
    const POLL_INTERVAL: Duration = Duration::from_millis(5);

    #[derive(Clone, PartialEq, Eq)]
    enum Action {
        Kill,
        Hold,
        HoldOnce,
        HoldWhile(PathBuf),
        Note,
        /// Was `HoldOnce`, and has held once.
        Spent,
    }

    fn armed() -> MutexGuard<'static, HashMap<String, Action>> {
        static ARMED: OnceLock<Mutex<HashMap<String, Action>>> = OnceLock::new();
        let armed = ARMED.get_or_init(|| {
            let text = std::env::var("TANIST_FAILPOINTS").unwrap_or_default();
            Mutex::new(
                text.split(';')
                    .filter(|entry| !entry.is_empty())
                    .map(parse)
                    .collect(),
            )
        });
        armed.lock()
    }

    fn parse(entry: &str) -> (String, Action) {
        let (name, action) = entry.split_once('=').unwrap_or((entry, ""));
        let action = match (action, action.strip_prefix("hold-while:")) {
            (_, Some(path)) => Action::HoldWhile(path.into()),
            ("kill", _) => Action::Kill,
            ("hold", _) => Action::Hold,
            ("hold-once", _) => Action::HoldOnce,
            ("note", _) => Action::Note,
            (other, _) => panic!(
                "TANIST_FAILPOINTS: {name}: unknown action {other:?}, use kill, hold, hold-once, hold-while:PATH or note"
            ),
        };
        (name.to_owned(), action)
    }

    pub(super) fn is_armed(name: &str) -> bool {
        armed().contains_key(name)
    }

    /// The action to run at this place, if any. Reports on standard error that the place was reached.
    fn reach(name: &str) -> Option<Action> {
        let action = {
            let mut armed = armed();
            let slot = armed.get_mut(name)?;
            let action = slot.clone();
            if action == Action::HoldOnce {
                *slot = Action::Spent;
            }
            action
        };
        let is_idle = match &action {
            Action::Spent => true,
            Action::HoldWhile(path) => !path.exists(),
            Action::Kill | Action::Hold | Action::HoldOnce | Action::Note => false,
        };
        if is_idle {
            return None;
        }
        eprintln!("failpoint {name} reached");
        Some(action)
    }

    fn kill() {
        let me = rustix::process::getpid();
        // A process can't block SIGKILL, so the code after this never runs.
        let _ = rustix::process::kill_process(me, rustix::process::Signal::KILL);
    }

    pub(super) async fn hit(name: &str) {
        match reach(name) {
            Some(Action::Kill) => {
                kill();
                std::future::pending::<()>().await;
            }
            Some(Action::Hold | Action::HoldOnce) => std::future::pending::<()>().await,
            Some(Action::HoldWhile(path)) => {
                while path.exists() {
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
                eprintln!("failpoint {name} passed");
            }
            Some(Action::Note | Action::Spent) | None => {}
        }
    }

    pub(super) fn hit_on_a_thread(name: &str) {
        match reach(name) {
            Some(Action::Kill) => kill(),
            Some(Action::Hold | Action::HoldOnce) => loop {
                std::thread::park();
            },
            Some(Action::HoldWhile(path)) => {
                while path.exists() {
                    std::thread::park_timeout(POLL_INTERVAL);
                }
                eprintln!("failpoint {name} passed");
            }
            Some(Action::Note | Action::Spent) | None => {}
        }
    }
}
