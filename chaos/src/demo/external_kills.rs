//! Takeovers after a leader was killed from outside: printed when the next one leads and has adopted the streaming
//! job. The demo's own kills are printed by the scenario.
//!
//! The end of a leader and the leadership of its successor may be seen in either order: the demo looks for ended
//! processes, the JobManagers for lost heartbeats.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tanist_proto::id::JobId;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::print_line;
use super::watch::ClusterWatch;
use crate::jobs::JobView;

/// Capacity of the channel of kills; each is handled at once.
const CAPACITY: usize = 64;
/// A leader may have been deposed at most this long before its end was seen.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout for adoption; whether it happens at all is checked by the scenario.
const ADOPTION_BOUND: Duration = Duration::from_secs(30);

/// A JobManager that was ended from outside.
#[derive(Debug)]
pub(super) struct ExternalKill {
    pub(super) name: String,
    /// When that was seen.
    pub(super) seen_at: Instant,
}

/// A leader that succeeded one that was ended from outside.
#[derive(Debug, PartialEq, Eq)]
struct Takeover {
    successor: String,
    epoch: u64,
    seen_at: Instant,
    led_at: Instant,
}

#[derive(Debug)]
struct Term {
    process: String,
    epoch: u64,
    since: Instant,
}

/// Decides which takeovers were caused from outside. Pure.
#[derive(Debug, Default)]
struct Terms {
    current: Option<Term>,
    before: Option<String>,
    /// When the end of the current leader was seen, if it was ended from outside.
    lost_at: Option<Instant>,
}

impl Terms {
    /// A leader was seen. Returns the takeover if the end of the former leader was seen before.
    fn led(&mut self, process: &str, epoch: u64, now: Instant) -> Option<Takeover> {
        if self.current.as_ref().is_some_and(|it| it.epoch >= epoch) {
            return None;
        }
        let term = Term {
            process: process.to_owned(),
            epoch,
            since: now,
        };
        self.before = self.current.replace(term).map(|it| it.process);
        let seen_at = self.lost_at.take()?;
        self.takeover_since(seen_at)
    }

    /// A JobManager was ended from outside. Returns the takeover if it was the leader and its successor was seen
    /// before.
    fn ended(&mut self, process: &str, seen_at: Instant) -> Option<Takeover> {
        let current = self.current.as_ref()?;
        if current.process == process {
            self.lost_at = Some(seen_at);
            return None;
        }
        // The other JobManagers may have noticed before the demo did.
        let was_followed =
            self.before.as_deref() == Some(process) && current.since + NOTICE_TIMEOUT >= seen_at;
        if was_followed {
            return self.takeover_since(seen_at);
        }
        None
    }

    fn takeover_since(&self, seen_at: Instant) -> Option<Takeover> {
        let current = self.current.as_ref()?;
        Some(Takeover {
            successor: current.process.clone(),
            epoch: current.epoch,
            seen_at,
            led_at: current.since,
        })
    }
}

impl Takeover {
    /// `adopted_at`: when the streaming job was adopted, if there was one.
    fn line(&self, adopted_at: Option<Instant>) -> String {
        let since = |at: Instant| at.saturating_duration_since(self.seen_at).as_millis();
        let adopted = adopted_at.map_or_else(String::new, |at| {
            format!(", and had adopted the streaming job after {} ms", since(at))
        });
        format!(
            "{} TOOK OVER {} ms after that was seen (epoch {}){adopted}",
            self.successor,
            since(self.led_at),
            self.epoch
        )
    }
}

/// Prints takeovers until it is dropped.
#[derive(Debug)]
pub(super) struct ExternalTakeovers {
    job: Arc<OnceLock<JobId>>,
    _printing: JoinSet<()>,
}

impl ExternalTakeovers {
    /// Follows the leader, and the JobManagers that are ended from outside.
    pub(super) fn follow(watch: ClusterWatch) -> (ExternalTakeovers, mpsc::Sender<ExternalKill>) {
        let (sender, kills) = mpsc::channel(CAPACITY);
        let job = Arc::<OnceLock<JobId>>::default();
        let mut printing = JoinSet::new();
        printing.spawn(follow(watch, kills, job.clone()));
        let takeovers = ExternalTakeovers {
            job,
            _printing: printing,
        };
        (takeovers, sender)
    }

    /// Sets the job that has to be adopted from here on.
    pub(super) fn streaming(&self, job: JobId) {
        self.job.get_or_init(|| job);
    }
}

async fn follow(
    mut watch: ClusterWatch,
    mut kills: mpsc::Receiver<ExternalKill>,
    job: Arc<OnceLock<JobId>>,
) {
    let (mut terms, mut epoch, mut printing) = (Terms::default(), 0, JoinSet::new());
    loop {
        let takeover = tokio::select! {
            // Leaders are handled before kills, so that the former leader is known.
            biased;
            leader = watch.leader_above(epoch) => {
                let Ok(leader) = leader else { return };
                epoch = leader.epoch;
                terms.led(&leader.process, leader.epoch, Instant::now())
            }
            kill = kills.recv() => {
                let Some(kill) = kill else { return };
                terms.ended(&kill.name, kill.seen_at)
            }
            Some(_) = printing.join_next() => None,
        };
        if let Some(takeover) = takeover {
            printing.spawn(print(takeover, watch.clone(), job.get().copied()));
        }
    }
}

/// Prints the takeover once, when everything about it is known.
async fn print(takeover: Takeover, mut watch: ClusterWatch, job: Option<JobId>) {
    let adopted_at = match job {
        None => None,
        Some(job) => {
            let adopted = watch.until(job, JobView::all_tasks_run);
            let adopted = tokio::time::timeout(ADOPTION_BOUND, adopted).await;
            adopted.is_ok_and(|it| it.is_ok()).then(Instant::now)
        }
    };
    print_line(&takeover.line(adopted_at));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_a_leader_is_a_takeover_and_it_is_told_when_the_next_one_leads() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut terms = Terms::default();
        assert_eq!(terms.led("jm-1", 1, at(0)), None);
        // A standby.
        assert_eq!(terms.ended("jm-2", at(5_000)), None);
        assert_eq!(terms.ended("jm-1", at(6_000)), None);
        let takeover = terms.led("jm-3", 2, at(6_031)).expect("a takeover");
        let line = "jm-3 TOOK OVER 31 ms after that was seen (epoch 2)";
        assert_eq!(takeover.line(None), line);
        let adopted = takeover.line(Some(at(6_080)));
        assert!(
            adopted.ends_with("had adopted the streaming job after 80 ms"),
            "{adopted}"
        );
        // One that was not caused from outside.
        assert_eq!(terms.led("jm-1", 3, at(9_000)), None);
    }

    #[test]
    fn a_leader_that_was_followed_before_its_end_was_seen_was_the_leader() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut terms = Terms::default();
        terms.led("jm-1", 1, at(0));
        terms.led("jm-2", 2, at(4_990));
        let takeover = terms.ended("jm-1", at(5_000)).expect("a takeover");
        assert!(takeover.line(None).contains(" 0 ms "), "{takeover:?}");
        // Long after that it is a standby like any other.
        assert_eq!(terms.ended("jm-1", at(60_000)), None);
    }
}
