//! Broken JobMasters: those that ended without a result while the term continues.
//!
//! The job's record says how far the job is, as it does for the next term: another JobMaster is started from
//! it, as another incarnation of the job. A job whose JobMasters break repeatedly is quarantined. Neither other
//! jobs nor the term are affected.

use tanist_ha::election::NotLeading;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::job_master_failures::{self, TOLERATED};
use super::quarantine::JobToQuarantine;
use super::{DispatcherCore, Effect, Entry, LogLine, Rebuilding, Replies, Reread};
use crate::RecoveredJob;

impl<R: Replies> DispatcherCore<R> {
    /// A JobMaster ended without a result. If the term is over, that is the reason and nothing is done.
    pub(super) fn on_job_master_broke(&mut self, job: JobId, unfit: Option<String>) {
        let Some(Entry::Running { key, name }) = self.jobs.get(job) else {
            return;
        };
        if self.now.standing == Err(NotLeading::Over) {
            return;
        }
        let broken = match &unfit {
            // Another JobMaster would fail in the same way.
            Some(_) => TOLERATED + 1,
            None => self.job_master_failures.note(job, self.now.wall_ms),
        };
        let broken_job = Rebuilding::broken(key.clone(), name.clone());
        self.jobs.set(job, Entry::Rebuilding(broken_job));
        self.out.effect(Effect::RemoveJobMaster {
            job,
            broken,
            unfit,
            pause: job_master_failures::pause(broken),
        });
    }

    pub(super) fn on_job_master_removed(
        &mut self,
        job: JobId,
        broken: u32,
        unfit: Option<String>,
        found: Reread,
    ) {
        match (found, unfit) {
            (Err(failure), _) => self.out.log(LogLine::JobNotReread { job, failure }),
            (Ok(RecoveredJob::Readable { graph, state }), Some(reason)) => {
                self.quarantine_unfit(job, &graph, *state, &reason);
            }
            (Ok(RecoveredJob::Readable { graph, state }), None) if broken > TOLERATED => {
                self.quarantine_broken(job, &graph, *state, broken);
            }
            (Ok(found), _) => self.take_up(job, found),
        }
    }

    /// The records of a job can be read, but no JobMaster can be created from them. They stay untouched.
    fn quarantine_unfit(
        &mut self,
        job: JobId,
        graph: &pb::JobGraph,
        state: pb::JobState,
        reason: &str,
    ) {
        let reason = format!("no JobMaster can run it: {reason}");
        let quarantine = self.found(pb::QuarantineKind::Unreadable, reason);
        self.quarantine(job, JobToQuarantine::of(quarantine, state, Some(graph)));
    }

    /// Its JobMasters broke too often. The reason is written, for later terms.
    fn quarantine_broken(
        &mut self,
        job: JobId,
        graph: &pb::JobGraph,
        mut state: pb::JobState,
        broken: u32,
    ) {
        let reason = format!("its JobMaster broke {broken} times in this term");
        let mut quarantine = self.found(pb::QuarantineKind::Broke, reason);
        let one = quarantine.evidence.pop().unwrap_or_default();
        let times = self.job_master_failures.times(job).iter();
        quarantine.evidence = times
            .map(|at_ms| pb::QuarantineEvidence {
                at_ms: *at_ms,
                what: "its JobMaster broke".to_owned(),
                ..one.clone()
            })
            .collect();
        state.quarantine = Some(quarantine.clone());
        // A cancelled job ends now, so it has no record to keep that in.
        if state.wanted() != pb::WantedStatus::Canceled {
            let state = Box::new(state.clone());
            self.out.effect(Effect::WriteQuarantine { job, state });
        }
        self.quarantine(job, JobToQuarantine::of(quarantine, state, Some(graph)));
        // Until that is written, no request may write the record.
        self.set_busy(job, true);
    }
}
