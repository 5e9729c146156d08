//! A quarantined job: its description, and its result when it is cancelled. Makes no decisions.

use std::collections::BTreeSet;

use tanist_gateway::persistence::was_never_placed;
use tanist_gateway::shorten;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::{Entry, Replies, SubmissionKey, state_key};

/// A quarantined job.
#[derive(Debug, Clone)]
pub(crate) struct Quarantined {
    key: SubmissionKey,
    name: String,
    submitted_at_ms: u64,
    /// `None`: unknown.
    sink_directories: Option<pb::SinkDirectories>,
    /// It has a result, which can't be read.
    has_ended: bool,
    /// All its tasks have finished, and it was not cancelled.
    has_finished: bool,
    /// None of its tasks was ever placed.
    was_never_placed: bool,
    /// It is durable that the job was stopped with a savepoint: it is FINISHED, no matter which process ends its tasks.
    was_stopped: bool,
    /// A record of it is being written, or it is being read.
    is_busy: bool,
    quarantine: pb::Quarantine,
    history: History,
}

/// History of the job from its record.
#[derive(Debug, Clone, Default)]
struct History {
    statuses: Vec<pb::StatusTimestamp>,
    events: Vec<pb::JobEvent>,
    failures: Vec<pb::FailureRecord>,
    restarts: u32,
}

impl History {
    fn of(state: &mut pb::JobState) -> History {
        History {
            statuses: std::mem::take(&mut state.statuses),
            events: std::mem::take(&mut state.events),
            failures: std::mem::take(&mut state.failures),
            restarts: state.restarts.as_ref().map_or(0, |it| it.restarts),
        }
    }
}

/// Length to which an event's text is cut, in bytes.
const KEPT_TEXT: usize = 256;

/// An event of a job's history.
pub(super) fn event(kind: pb::JobEventKind, epoch: u64, at_ms: u64) -> pb::JobEvent {
    pb::JobEvent {
        at_ms,
        kind: kind.into(),
        epoch,
        ..pb::JobEvent::default()
    }
}

impl Quarantined {
    /// Takes a quarantined job's data out of its state. `sink_directories` are those of its graph, if that was read.
    pub(super) fn of(
        state: &mut pb::JobState,
        quarantine: pb::Quarantine,
        sink_directories: Option<pb::SinkDirectories>,
    ) -> Quarantined {
        let has_finished = has_finished(state);
        let was_never_placed = was_never_placed(state);
        let was_stopped = !state.stopped_with.is_empty();
        let history = History::of(state);
        let of_state = state.sinks.take();
        Quarantined {
            key: state_key(state),
            name: state.name.clone(),
            submitted_at_ms: state.submitted_at_ms,
            sink_directories: sink_directories.or(of_state),
            has_ended: false,
            has_finished,
            was_never_placed,
            was_stopped,
            is_busy: false,
            quarantine,
            history,
        }
    }

    pub(super) fn key(&self) -> &SubmissionKey {
        &self.key
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is unknown where it has written.
    pub(super) fn lacks_directories(&self) -> bool {
        self.sink_directories.is_none()
    }

    /// Whether it has a result, which can't be read.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Records that it has a result, which can't be read.
    pub(super) fn note_ended(&mut self) {
        self.has_ended = true;
    }

    /// Whether all its tasks have finished and it was not cancelled: its output may be visible, fully or in part.
    pub(super) fn has_finished(&self) -> bool {
        self.has_finished
    }

    /// Whether a record of it is being written, or it is being read.
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy
    }

    /// Sets whether a record of it is being written, or it is being read.
    pub(super) fn set_busy(&mut self, is_busy: bool) {
        self.is_busy = is_busy;
    }

    pub(super) fn kind(&self) -> pb::QuarantineKind {
        self.quarantine.kind()
    }

    /// Why it is quarantined.
    pub(super) fn reason(&self) -> &str {
        &self.quarantine.reason
    }

    /// Since when it is quarantined.
    pub(super) fn since_ms(&self) -> u64 {
        self.quarantine.since_ms
    }

    /// Keeps what the term knew of the job before and can't read any more.
    pub(super) fn recall<R: Replies>(&mut self, before: &Entry<R>) {
        let (key, name, known) = match before {
            Entry::Quarantined(job) => (&job.key, &*job.name, Some(&**job)),
            Entry::Rebuilding(job) => (job.key(), job.name(), job.known()),
            Entry::Persisting(_) | Entry::Running { .. } | Entry::Ended(_) => return,
        };
        if self.sink_directories.is_none() {
            self.sink_directories = known.and_then(|known| known.sink_directories.clone());
        }
        // Else its state was read, and is current.
        if self.key.is_unknown() && !key.is_unknown() {
            self.key = key.clone();
            self.name = name.to_owned();
            if let Some(known) = known {
                self.submitted_at_ms = known.submitted_at_ms;
                self.has_finished = known.has_finished;
                self.was_never_placed = known.was_never_placed;
                self.was_stopped = known.was_stopped;
                self.history = known.history.clone();
            }
        }
    }

    /// Returns the event of its quarantine.
    pub(super) fn quarantine_event(&self) -> pb::JobEvent {
        let known = &self.quarantine;
        let epoch = known.evidence.last().map_or(0, |it| it.epoch);
        let mut text = known.reason.clone();
        shorten(&mut text, KEPT_TEXT);
        pb::JobEvent {
            text,
            ..event(pb::JobEventKind::Quarantine, epoch, known.since_ms)
        }
    }

    /// Returns its result, written in the term `epoch` at `now_ms`: CANCELED, or FINISHED if it was stopped with a
    /// savepoint. If its sink directories are unknown, its files may be left behind.
    pub(super) fn canceled_result(&self, job: JobId, epoch: u64, now_ms: u64) -> pb::JobResult {
        let cause = self.quarantine.reason.clone();
        self.canceled(self.details(job), cause, epoch, now_ms)
    }

    /// The same for a job that was not quarantined but waited to be recovered.
    pub(super) fn canceled_in_wait(&self, job: JobId, epoch: u64, now_ms: u64) -> pb::JobResult {
        self.canceled(self.recorded_details(job), String::new(), epoch, now_ms)
    }

    fn canceled(
        &self,
        mut details: pb::JobDetails,
        cause: String,
        epoch: u64,
        now_ms: u64,
    ) -> pb::JobResult {
        let (status, cause) = match self.was_stopped {
            true => (pb::JobStatus::Finished.into(), String::new()),
            false => (pb::JobStatus::Canceled.into(), cause),
        };
        details.status = status;
        details.ended_at_ms = now_ms;
        details.quarantine.clear();
        details.blocked_reasons.clear();
        let at_ms = now_ms;
        details
            .timestamps
            .push(pb::StatusTimestamp { status, at_ms });
        if !self.was_stopped {
            let cancel = event(pb::JobEventKind::Cancel, epoch, now_ms);
            details.events.push(cancel);
        }
        details.events.push(pb::JobEvent {
            status,
            ..event(pb::JobEventKind::Status, epoch, now_ms)
        });
        let sinks = self.sink_directories.clone().unwrap_or_default();
        pb::JobResult {
            job_id: details.job_id.clone(),
            name: self.name.clone(),
            status,
            cause,
            submitted_at_ms: self.submitted_at_ms,
            ended_at_ms: now_ms,
            dirty: true,
            remove: Some(pb::Cleanup {
                sink_directories: sinks.paths,
                run: sinks.run,
                ..pb::Cleanup::default()
            }),
            submission_token: self.key.token.clone(),
            graph_digest: self.key.digest.clone(),
            details: Some(details),
            description: None,
            // Set by the writer of the result.
            kept_since_ms: 0,
            counted_ms: 0,
            // Unknown if the record can't be read.
            never_placed: self.was_never_placed && !self.key.is_unknown(),
            drained: false,
        }
    }

    /// Returns the details that its record has.
    fn recorded_details(&self, job: JobId) -> pb::JobDetails {
        pb::JobDetails {
            job_id: job.to_string(),
            name: self.name.clone(),
            started_at_ms: self.submitted_at_ms,
            timestamps: self.history.statuses.clone(),
            failures: self.history.failures.clone(),
            restarts: self.history.restarts,
            events: self.history.events.clone(),
            ..pb::JobDetails::default()
        }
    }

    pub(super) fn details(&self, job: JobId) -> pb::JobDetails {
        let status = pb::JobStatus::Suspended.into();
        let at_ms = self.quarantine.since_ms;
        let mut details = self.recorded_details(job);
        details.timestamps.retain(|it| it.status != status);
        details
            .timestamps
            .push(pb::StatusTimestamp { status, at_ms });
        details.events.push(self.quarantine_event());
        pb::JobDetails {
            status,
            quarantine: self.quarantine.reason.clone(),
            quarantined: Some(self.quarantine.clone()),
            blocked_reasons: vec![pb::BlockedReason {
                kind: pb::BlockedReasonKind::Quarantined.into(),
                text: format!("quarantined: {}", self.quarantine.reason),
                since_ms: self.quarantine.since_ms,
                ..pb::BlockedReason::default()
            }],
            ..details
        }
    }
}

/// Whether a record says that all tasks of the current generations have finished, and that the job ends with that.
fn has_finished(state: &pb::JobState) -> bool {
    let ends = state.terminal.iter();
    let finished: BTreeSet<(&str, u32, u64)> = ends
        .filter(|end| end.state() == pb::ExecutionState::Finished)
        .map(|end| (end.vertex_id.as_str(), end.subtask, end.generation))
        .collect();
    let region_has = |region: &pb::RegionState| {
        let mut placements = region.placements.iter();
        !region.placements.is_empty()
            && placements.all(|it| {
                finished.contains(&(it.vertex_id.as_str(), it.subtask, region.generation))
            })
    };
    state.wanted() != pb::WantedStatus::Canceled
        && state.fatal_cause.is_empty()
        && !state.regions.is_empty()
        && state.regions.iter().all(region_has)
}
