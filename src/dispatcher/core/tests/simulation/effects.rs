//! How effects that wait are done: a write is applied, then answered; or it is refused, or its answer is lost.

use tanist_gateway::persistence::PersistError;
use tanist_ha::Error;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::reads::Read;
use super::store::Health;
use super::world::{Asked, Pending, RETENTION, Reached, Run, Tickets, World};
use crate::JobStoreError;
use crate::core::{Effect, Event, Listing};

fn token_of(key: &[u8]) -> u8 {
    key.first().copied().expect("a digest of one byte")
}

impl World {
    /// Applies the write in the store, if this is one. Returns whether it was applied by this call.
    pub(super) fn apply(&mut self, index: usize) -> bool {
        self.check_end(index);
        if self.pending[index].read.is_none() {
            self.read_now(index);
        }
        self.restore(index);
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
                    name: submission.graph.run.clone(),
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
                    if self.removed.contains_key(job) {
                        continue;
                    }
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
                    store.drop_description(result);
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
        let Pending {
            effect, is_applied, ..
        } = &self.pending[index];
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
            (false, false, true) => Err(self.refusal(index)),
            (false, false, false) => {
                self.apply(index);
                Ok(())
            }
        }
    }

    /// Why the store does not accept a write.
    fn refusal(&self, index: usize) -> JobStoreError {
        let store = "the simulation";
        let is_submission = matches!(self.pending[index].effect, Effect::WriteSubmission { .. });
        match self.refusal & 3 {
            0 => JobStoreError::OutOfSpace(Error::OutOfSpace {
                store,
                reason: "it is full".to_owned(),
            }),
            1 => JobStoreError::Refused(Error::Denied {
                store,
                reason: "the token has expired".to_owned(),
            }),
            2 if is_submission => JobStoreError::NotUploaded("an upload is missing".to_owned()),
            _ => JobStoreError::Refused(Error::TooLarge {
                store,
                what: "a record",
                size: 2,
                limit: 1,
            }),
        }
    }

    /// Writes results again that a removal has removed before it failed.
    fn restore(&mut self, index: usize) {
        let written = match &self.pending[index].effect {
            Effect::NoteRetention { result, .. } => std::slice::from_ref(&**result),
            Effect::DropDescriptions { results } => results.as_slice(),
            _ => return,
        };
        for result in written {
            let job: JobId = result.job_id.parse().expect("a job id");
            if let Some(run) = self.removed.remove(&job) {
                self.runs.insert(job, run);
                self.store.put_result(job, result.clone());
            }
        }
    }

    /// Applies a part of a write that fails. The core does not hear which part of a removal was done.
    fn apply_in_part(&mut self, index: usize) {
        let reached = match &mut self.pending[index].effect {
            Effect::DropDescriptions { results } => {
                results.truncate(results.len() / 2);
                if results.is_empty() {
                    return;
                }
                Reached::PartlyDropped
            }
            Effect::DeleteResults { jobs, .. } => {
                for job in jobs.iter().take(jobs.len().div_ceil(2)) {
                    if let Some(run) = self.runs.remove(job) {
                        self.store.results.remove(job);
                        self.forgotten.insert(*job);
                        self.removed.insert(*job, run);
                    }
                }
                self.reach(Reached::PartlyDeleted);
                return;
            }
            _ => return,
        };
        self.restore(index);
        if let Effect::DropDescriptions { results } = &self.pending[index].effect {
            let store = &mut self.store;
            results.iter().for_each(|it| store.drop_description(it));
        }
        self.reach(reached);
    }

    /// Ends an effect, and gives its outcome to the core.
    pub(super) fn finish(&mut self, index: usize, is_refused: bool) {
        if self.waits(&self.pending[index].effect, is_refused) {
            return;
        }
        // No answer of the store from before reaches a deposed term.
        let before = self.pending[index].read.take().filter(|_| !self.is_fenced);
        if before.is_some() {
            self.reach(Reached::ReadBefore);
        }
        let read = before.or_else(|| self.read(index));
        let awaits = matches!(
            self.pending[index].effect,
            Effect::AwaitRecords { .. } | Effect::AwaitResult { .. }
        );
        if awaits && read.is_none() {
            return;
        }
        // Whatever is no write ignores this.
        let written = self.write(index, is_refused);
        let is_refused_in_term = written.is_err() && !self.is_fenced;
        if is_refused_in_term {
            self.apply_in_part(index);
        }
        let Pending { effect, .. } = self.pending.remove(index);
        let persisted = || written.clone().map_err(PersistError::from);
        let event = match effect {
            Effect::ConfirmTerm => {
                let confirmed = matches!(read, Some(Read::Term(true))) && !is_refused;
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
            Effect::CleanUp { job, .. } => {
                assert!(self.store.results.contains_key(&job), "{job} has no result");
                if is_refused {
                    let reason = "no permission".to_owned();
                    Event::CleanupGivenUp { job, reason }
                } else {
                    let run = self.runs.get_mut(&job).expect("it has ended");
                    run.is_cleaned_up = true;
                    Event::CleanedUp { job }
                }
            }
            Effect::WriteCleanResult { job, .. } => Event::MarkedClean {
                job,
                marked: written,
            },
            Effect::DeleteResults { jobs, .. } => {
                if written.is_ok() {
                    self.removed.retain(|job, _| !jobs.contains(job));
                }
                Event::ResultsDeleted {
                    jobs,
                    deleted: written,
                }
            }
            Effect::DropDescriptions { mut results } => {
                results.iter_mut().for_each(|it| it.description = None);
                if written.is_err() && !is_refused_in_term {
                    results.clear();
                }
                Event::DescriptionsDropped {
                    results,
                    failure: written.err(),
                }
            }
            Effect::NoteRetention { job, result } => Event::RetentionNoted {
                job,
                counted_ms: result.counted_ms,
                noted: written,
            },
            Effect::WriteQuarantine { job, .. } => {
                if is_refused_in_term {
                    self.reach(Reached::QuarantineNotWritten);
                }
                Event::QuarantineWritten {
                    job,
                    written: persisted(),
                }
            }
            Effect::RemoveQuarantine {
                job,
                to_retry,
                from_checkpoint,
                reply,
            } => {
                if written.is_ok() {
                    self.reach(Reached::Retried);
                }
                Event::QuarantineRemoved {
                    job,
                    to_retry,
                    goes_back: from_checkpoint.is_some(),
                    written: persisted(),
                    reply,
                }
            }
            Effect::DeleteUnreadableResult { job, reply } => Event::UnreadableResultDeleted {
                job,
                deleted: written,
                reply,
            },
            Effect::ReadWaitingJobs { number, reply, .. } => {
                let found = Read::into_jobs(read);
                Event::WaitingJobsRead {
                    found,
                    number,
                    reply,
                }
            }
            Effect::AwaitRecords { number, .. } => Event::WaitingJobsRead {
                found: Read::into_jobs(read),
                number,
                reply: None,
            },
            Effect::AwaitResult { job } => Event::ResultRead {
                job,
                found: match read {
                    Some(Read::Result(Ok(result))) => Ok(result),
                    Some(Read::Result(Err(kind))) => {
                        Err((kind, "read in the simulation".to_owned()))
                    }
                    other => unreachable!("{other:?}"),
                },
            },
            Effect::ReadResults => {
                self.reach(Reached::ResultsReadLate);
                match read {
                    Some(Read::Results(results)) => Event::ResultsRead(results),
                    other => unreachable!("{other:?}"),
                }
            }
            Effect::ReadQuarantined {
                job,
                from_checkpoint,
                reply,
            } => Event::QuarantinedRead {
                job,
                found: Read::into_job(read),
                from_checkpoint,
                reply,
            },
            Effect::RemoveJobMaster {
                job, broken, unfit, ..
            } => Event::JobMasterRemoved {
                job,
                broken,
                unfit,
                found: Read::into_job(read),
            },
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
