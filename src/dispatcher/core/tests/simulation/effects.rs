//! How effects that wait are done: a write is applied, then answered; or it is refused, or its answer is lost.

use tanist_gateway::persistence::PersistError;
use tanist_ha::Error;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::store::Health;
use super::world::{Asked, Pending, RETENTION, Reached, Run, Tickets, World};
use crate::core::{Effect, Event, Listing, Reread};
use crate::{JobStoreError, RecoveredJob};

fn token_of(key: &[u8]) -> u8 {
    key.first().copied().expect("a digest of one byte")
}

impl World {
    /// Applies the write in the store, if this is one. Returns whether it was applied by this call.
    pub(super) fn apply(&mut self, index: usize) -> bool {
        self.check_end(index);
        let pending = &mut self.pending[index];
        if pending.is_applied {
            return false;
        }
        let store = &mut self.store;
        let mut reached = None;
        match &pending.effect {
            Effect::WriteSubmission { submission, state } => {
                let job = submission.job;
                store.submit(job, submission.graph.clone(), (**state).clone());
                let token = token_of(&submission.key.digest);
                let run = Run {
                    token,
                    ..Run::default()
                };
                self.runs.insert(job, run);
                if self.forgotten.contains(&job) {
                    reached = Some(Reached::SubmittedAgain);
                }
            }
            Effect::WriteResult { job, result, .. } => {
                store.end(*job, (**result).clone());
            }
            Effect::WriteCleanResult { job, result } => {
                let is_cleaned_up = self.runs.get(job).is_some_and(|run| run.is_cleaned_up);
                assert!(is_cleaned_up, "{job} is marked clean before its cleanup");
                let record = store.results.get_mut(job).expect("it has ended");
                record.value = (**result).clone();
            }
            Effect::DeleteResults { jobs, .. } => {
                for job in jobs {
                    let run = self.runs.remove(job).expect("it has ended");
                    let kept = self.led - run.ended_at.expect("it has ended");
                    assert!(kept >= RETENTION, "{job} is forgotten after {kept:?}");
                    assert!(run.is_cleaned_up, "{job} is forgotten before its cleanup");
                    let record = store.results.remove(job).expect("it has ended");
                    assert!(!record.value.dirty, "{job} is forgotten before it is clean");
                    self.forgotten.insert(*job);
                    reached = Some(Reached::Expired);
                }
            }
            Effect::DropDescriptions { results } => {
                for result in results {
                    let job = result.job_id.parse().expect("a job id");
                    let record = store.results.get_mut(&job).expect("it has ended");
                    record.value.description = None;
                }
                reached = Some(Reached::DescriptionsDropped);
            }
            Effect::NoteRetention { job, result } => {
                let record = store.results.get_mut(job).expect("it has ended");
                assert!(!record.value.dirty && !result.dirty);
                record.value = (**result).clone();
                reached = Some(Reached::RetentionNoted);
            }
            Effect::WriteQuarantine { job, state } => {
                assert!(
                    !self.job_masters.contains_key(job),
                    "{job} is written twice"
                );
                store.put_state(*job, (**state).clone());
            }
            Effect::RemoveQuarantine { job, to_retry, .. } => {
                assert!(
                    !self.job_masters.contains_key(job),
                    "{job} is written twice"
                );
                store.put_state(*job, (*to_retry.state).clone());
            }
            Effect::DeleteUnreadableResult { job, .. } => {
                let record = store.results.remove(job).expect("it has ended");
                let is_damaged = matches!(record.health, Health::Damaged(_));
                assert!(is_damaged, "the result of {job} is readable");
                self.runs.remove(job);
                self.forgotten.insert(*job);
                reached = Some(Reached::DeletedUnreadable);
            }
            _ => return false,
        }
        pending.is_applied = true;
        if let Some(situation) = reached {
            self.reach(situation);
        }
        true
    }

    /// A job whose tasks have all finished becomes CANCELED only if a client deletes it.
    fn check_end(&self, index: usize) {
        let Pending { effect, is_applied } = &self.pending[index];
        let Effect::WriteResult {
            job, result, reply, ..
        } = effect
        else {
            return;
        };
        let Some(state) = self.store.states.get(job) else {
            return;
        };
        if *is_applied || self.runs[job].was_damaged {
            return;
        }
        let state = &state.value;
        let is_canceled = state.wanted() == pb::WantedStatus::Canceled;
        let has_finished = !state.terminal.is_empty() && !is_canceled;
        if has_finished && result.status() == pb::JobStatus::Canceled {
            let asked = reply.as_ref().map(|reply| self.asked(reply));
            assert_eq!(asked, Some(Asked::Delete(*job)), "{job} has finished");
        }
    }

    /// Whether the effect can't end yet, or not in this way.
    fn waits(&self, effect: &Effect<Tickets>, is_refused: bool) -> bool {
        match effect {
            Effect::WriteResult { is_retried, .. } => *is_retried && is_refused && !self.is_fenced,
            Effect::AwaitRecords { job, .. } => {
                matches!(self.store.read(*job), RecoveredJob::Unavailable { .. })
            }
            Effect::AwaitResult { job } => self.store.read_result(*job) == Err(None),
            _ => false,
        }
    }

    /// The outcome of a write.
    fn write(&mut self, index: usize, is_refused: bool) -> Result<(), JobStoreError> {
        let is_applied = self.pending[index].is_applied;
        match (self.is_fenced, is_applied, is_refused) {
            (true, _, true) => Err(JobStoreError::Unknown),
            (true, false, false) => Err(JobStoreError::NotWritten),
            (_, true, _) => Ok(()),
            (false, false, true) => Err(JobStoreError::OutOfSpace(Error::OutOfSpace {
                store: "the simulation",
                reason: "it is full".to_owned(),
            })),
            (false, false, false) => {
                self.apply(index);
                Ok(())
            }
        }
    }

    fn reread(&self, job: JobId) -> Reread {
        match self.is_fenced {
            true => Err(JobStoreError::NotWritten),
            false => Ok(self.store.read(job)),
        }
    }

    /// Ends an effect, and gives its outcome to the core.
    pub(super) fn finish(&mut self, index: usize, is_refused: bool) {
        if self.waits(&self.pending[index].effect, is_refused) {
            return;
        }
        // Whatever is no write ignores this.
        let written = self.write(index, is_refused);
        let Pending { effect, .. } = self.pending.remove(index);
        let persisted = || match &written {
            Ok(()) => Ok(()),
            Err(JobStoreError::NotWritten | JobStoreError::Unknown) => Err(PersistError::TermOver),
            Err(error) => Err(PersistError::Refused(error.to_string())),
        };
        let event = match effect {
            Effect::ConfirmTerm => {
                let confirmed = !self.is_fenced && !is_refused;
                Event::TermConfirmed(confirmed.then_some(()).ok_or("lost".to_owned()))
            }
            Effect::WriteSubmission { submission, state } => Event::SubmissionWritten {
                submission,
                state,
                written,
            },
            Effect::WriteResult {
                job, result, reply, ..
            } => Event::ResultWritten {
                job,
                written: written.map(|()| result),
                reply,
            },
            Effect::CleanUp { job, remove } => {
                assert!(self.store.results.contains_key(&job), "{job} has no result");
                if is_refused {
                    let reason = "no permission".to_owned();
                    Event::CleanupGivenUp { job, reason }
                } else {
                    let run = self.runs.get_mut(&job).expect("it has ended");
                    run.is_cleaned_up = true;
                    drop(remove);
                    Event::CleanedUp { job }
                }
            }
            Effect::WriteCleanResult { job, .. } => Event::MarkedClean {
                job,
                marked: written,
            },
            Effect::DeleteResults { jobs, .. } => Event::ResultsDeleted {
                jobs,
                deleted: written,
            },
            Effect::DropDescriptions { mut results } => {
                results.iter_mut().for_each(|it| it.description = None);
                match written {
                    Ok(()) => Event::DescriptionsDropped {
                        results,
                        failure: None,
                    },
                    Err(failure) => Event::DescriptionsDropped {
                        results: Vec::new(),
                        failure: Some(failure),
                    },
                }
            }
            Effect::NoteRetention { job, result } => Event::RetentionNoted {
                job,
                counted_ms: result.counted_ms,
                noted: written,
            },
            Effect::WriteQuarantine { job, .. } => Event::QuarantineWritten {
                job,
                written: persisted(),
            },
            Effect::RemoveQuarantine {
                job,
                to_retry,
                reply,
            } => {
                if written.is_ok() {
                    self.reach(Reached::Retried);
                }
                Event::QuarantineRemoved {
                    job,
                    to_retry,
                    written: persisted(),
                    reply,
                }
            }
            Effect::DeleteUnreadableResult { job, reply } => Event::UnreadableResultDeleted {
                job,
                deleted: written,
                reply,
            },
            Effect::ReadWaitingJobs {
                jobs,
                number,
                reply,
            } => {
                let found = jobs.into_iter().map(|job| (job, self.reread(job)));
                let found = found.collect();
                Event::WaitingJobsRead {
                    found,
                    number,
                    reply,
                }
            }
            Effect::AwaitRecords { job, number } => Event::WaitingJobsRead {
                number,
                found: vec![(job, Ok(self.store.read(job)))],
                reply: None,
            },
            Effect::AwaitResult { job } => Event::ResultRead {
                job,
                found: self.store.read_result(job).map_err(|kind| {
                    let kind = kind.expect("awaited until it is definite");
                    (kind, "read in the simulation".to_owned())
                }),
            },
            Effect::ReadResults => {
                self.reach(Reached::ResultsReadLate);
                Event::ResultsRead(Box::new(self.store.read_results()))
            }
            Effect::ReadQuarantined { job, reply } => Event::QuarantinedRead {
                job,
                found: self.reread(job),
                reply,
            },
            Effect::RemoveJobMaster {
                job, broken, unfit, ..
            } => {
                self.job_masters.remove(&job);
                Event::JobMasterRemoved {
                    job,
                    broken,
                    unfit,
                    found: self.reread(job),
                }
            }
            Effect::List { reply, jobs } => {
                let listing = Listing {
                    unanswered: jobs.iter().enumerate().map(|(at, it)| (at, it.0)).collect(),
                    jobs: jobs.iter().map(|_| pb::JobDetails::default()).collect(),
                    as_of: pb::ReadPosition::default(),
                };
                Event::Listed { listing, reply }
            }
            Effect::StartTimer { timer, .. } => Event::TimedOut(timer),
            Effect::CancelByJobMaster { job, reply } => {
                let asked = self.answered(reply);
                assert_eq!(asked, Asked::Cancel(job));
                if self.writes_as_job_master(job) {
                    let state = &mut self.store.states.get_mut(&job).expect("it runs").value;
                    let has_finished = !state.terminal.is_empty() || !state.fatal_cause.is_empty();
                    if !has_finished {
                        state.set_wanted(pb::WantedStatus::Canceled);
                        let run = self.runs.get_mut(&job).expect("it runs");
                        run.is_cancel_acknowledged = true;
                    }
                }
                return self.check();
            }
            Effect::StopByJobMaster { reply, .. } | Effect::AnswerRetried { reply, .. } => {
                self.answered(reply);
                return;
            }
            answered => unreachable!("{answered:?} is done at once"),
        };
        self.give(event);
    }
}
