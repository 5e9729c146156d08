//! The commit of the output that the newest durable manifest lists: one commit at a time, repeated until it is done.
//!
//! A manifest is built once everything that the one before it lists is committed. So older ones need no commit. This
//! object owns which commit runs, when it is retried, and up to which number everything is committed. It can be behind
//! the truth after a takeover, never ahead of it: a commit is idempotent.

/// Delay before the first retry, in ms.
const RETRY_MS: u64 = 100;
/// Longest delay before a retry, in ms.
const RETRY_MAX_MS: u64 = 10_000;

/// Whether a commit runs. `retry_delay_ms`: delay before the next retry, if the commit that runs or is due fails.
#[derive(Debug, Clone, Copy)]
enum State {
    Idle,
    Running { number: u64, retry_delay_ms: u64 },
    RetryAt { at_ms: u64, retry_delay_ms: u64 },
}

/// The commits of one JobMaster; see the module.
#[derive(Debug)]
pub(super) struct Commits {
    state: State,
    done: u64,
}

impl Commits {
    /// No commit runs. Up to `done` everything is committed according to the record.
    pub(super) fn new(done: u64) -> Commits {
        Commits {
            state: State::Idle,
            done,
        }
    }

    /// Up to this number everything is committed, as far as this JobMaster knows.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// Begins the commit of a checkpoint, if none runs and no retry is pending. Returns whether it does.
    pub(super) fn begin(&mut self, number: u64, now_ms: u64) -> bool {
        let retry_delay_ms = match self.state {
            State::Idle => RETRY_MS,
            State::RetryAt {
                at_ms,
                retry_delay_ms,
            } if at_ms <= now_ms => retry_delay_ms,
            State::Running { .. } | State::RetryAt { .. } => return false,
        };
        self.state = State::Running {
            number,
            retry_delay_ms,
        };
        true
    }

    /// Nothing is left to commit up to a number.
    pub(super) fn skip(&mut self, number: u64) {
        self.done = self.done.max(number);
    }

    /// The commit that runs is done.
    pub(super) fn finish(&mut self, number: u64) {
        if matches!(self.state, State::Running { number: running, .. } if running == number) {
            self.state = State::Idle;
            self.done = self.done.max(number);
        }
    }

    /// The commit that runs is not done.
    pub(super) fn fail(&mut self, number: u64, now_ms: u64) {
        if let State::Running {
            number: running,
            retry_delay_ms,
        } = self.state
            && running == number
        {
            self.state = State::RetryAt {
                at_ms: now_ms.saturating_add(retry_delay_ms),
                retry_delay_ms: (retry_delay_ms * 2).min(RETRY_MAX_MS),
            };
        }
    }

    /// When a retry is due.
    pub(super) fn due_ms(&self) -> Option<u64> {
        match self.state {
            State::RetryAt { at_ms, .. } => Some(at_ms),
            State::Idle | State::Running { .. } => None,
        }
    }
}
