//! Measures how long a task's steps block its worker thread. A slow step runs so that the worker's other tasks
//! continue.
//!
//! Operators work synchronously, some of them for seconds: a slow expression, or an application's operator that
//! waits for a service. As many of those as there are workers would stop every task of the process. Handing the
//! worker over takes some microseconds, which is much for a fast step. So it is done only if the last step was
//! slow, and for the first step. A slow step after a fast one still blocks its worker. The task's chain owns one
//! `Pace` for elements and one for ticks.

use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::Instant;

/// A step that takes at least this long is slow.
const SLOW: Duration = Duration::from_millis(5);

/// Duration of a task's steps.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    /// Duration of the last step.
    last: Option<Duration>,
}

impl Pace {
    /// Runs a step. Hands the worker thread over first if the last step was slow, or if there was none.
    pub(super) fn step<T>(&mut self, step: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let is_slow = self.last.is_none_or(|took| took >= SLOW);
        let done = match is_slow && has_workers() {
            true => tokio::task::block_in_place(step),
            false => step(),
        };
        self.last = Some(start.elapsed());
        done
    }
}

/// Whether another worker can take over the other tasks.
fn has_workers() -> bool {
    let runtime = Handle::try_current();
    runtime.is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Runs steps that wait for another task, on one worker.
    fn go_on(before: Option<Duration>) -> Result<(), mpsc::RecvTimeoutError> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build();
        let runtime = runtime.expect("threads can be started");
        let (other, heard) = mpsc::sync_channel(1);
        let (done, ended) = mpsc::sync_channel(1);
        runtime.spawn(async move {
            let mut pace = Pace { last: before };
            let beside = tokio::spawn(async move { other.send(()) });
            let waited = pace.step(|| heard.recv_timeout(Duration::from_secs(2)));
            done.send(waited).expect("the test waits");
            beside.abort();
        });
        ended.recv().expect("it ends")
    }

    #[test]
    fn other_tasks_go_on_beside_a_step_of_which_nobody_knows_and_one_after_a_slow_one() {
        assert_eq!(go_on(None), Ok(()));
        assert_eq!(go_on(Some(SLOW)), Ok(()));
    }

    #[test]
    fn on_a_runtime_of_one_thread_a_step_is_just_taken() {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.build().expect("a runtime");
        runtime.block_on(async {
            let mut pace = Pace::default();
            assert_eq!(pace.step(|| 1), 1);
        });
    }
}
