//! Named places in the code where a test can kill or hold the process. Compiled to nothing without the feature
//! `failpoints`, which no release has.
//!
//! A process reads `TANIST_FAILPOINTS` once, a list like `submit.persisted=kill;job.result-written=hold`:
//!
//! - `kill` ends the process at once by SIGKILL, as the kernel's out-of-memory killer would;
//! - `hold` waits for ever at that place, so that a test can act on a process that is provably there;
//! - `hold-once` does so the first time only;
//! - `note` goes on: the test only wants to know.
//!
//! A place that there is for many, as for each job, is armed for one of them: `job.recover:ID=kill`.
//!
//! `records.newer=note` makes a process take records of the next format for such as it reads, as a newer version would.
//!
//! A place that is reached and armed first writes `failpoint NAME reached` to standard error: tests wait for that line.

/// Armed, the process reads one format more of every record than its version does.
pub const NEWER: &str = "records.newer";

/// Whether a place is armed, in whatever way.
#[cfg(feature = "failpoints")]
pub fn is_armed(name: &str) -> bool {
    imp::is_armed(name)
}

/// Nothing is: failpoints are not compiled in.
#[cfg(not(feature = "failpoints"))]
#[inline(always)]
pub fn is_armed(_name: &str) -> bool {
    false
}

/// Acts as `TANIST_FAILPOINTS` says for the place `name`.
#[cfg(feature = "failpoints")]
pub async fn failpoint(name: &'static str) {
    imp::hit(name).await;
}

/// The same of the place `name` for one of many, by its id: armed as `NAME:OF`.
#[cfg(feature = "failpoints")]
pub async fn failpoint_of(name: &'static str, of: &str) {
    imp::hit(&format!("{name}:{of}")).await;
}

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
    use std::sync::{Mutex, OnceLock};

    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Action {
        Kill,
        Hold,
        HoldOnce,
        Note,
        Spent,
    }

    fn armed() -> &'static Mutex<HashMap<String, Action>> {
        static ARMED: OnceLock<Mutex<HashMap<String, Action>>> = OnceLock::new();
        ARMED.get_or_init(|| {
            let text = std::env::var("TANIST_FAILPOINTS").unwrap_or_default();
            Mutex::new(
                text.split(';')
                    .filter(|entry| !entry.is_empty())
                    .map(parse)
                    .collect(),
            )
        })
    }

    fn parse(entry: &str) -> (String, Action) {
        let (name, action) = entry.split_once('=').unwrap_or((entry, ""));
        let action = match action {
            "kill" => Action::Kill,
            "hold" => Action::Hold,
            "hold-once" => Action::HoldOnce,
            "note" => Action::Note,
            other => panic!(
                "TANIST_FAILPOINTS: {name}: unknown action {other:?}, use kill, hold, hold-once or note"
            ),
        };
        (name.to_owned(), action)
    }

    pub(super) fn is_armed(name: &str) -> bool {
        let armed = armed()
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        armed.contains_key(name)
    }

    pub(super) async fn hit(name: &str) {
        let action = {
            let mut armed = armed()
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            match armed.get_mut(name) {
                None | Some(Action::Spent) => return,
                Some(slot) => {
                    let action = *slot;
                    if action == Action::HoldOnce {
                        *slot = Action::Spent;
                    }
                    action
                }
            }
        };
        eprintln!("failpoint {name} reached");
        match action {
            Action::Kill => {
                let me = rustix::process::getpid();
                // The signal can't be refused by its own process; what follows is never reached.
                let _ = rustix::process::kill_process(me, rustix::process::Signal::KILL);
                std::future::pending::<()>().await;
            }
            Action::Hold | Action::HoldOnce => std::future::pending::<()>().await,
            Action::Note | Action::Spent => {}
        }
    }
}
