//! Which JobMaster speaks for a job at the ResourceManager. Pure.
//!
//! - One registration a job: the same again changes nothing, a younger JobMaster takes the place of an older one, an older one
//!   is refused.
//! - Every message is a sign of life. Silence ends a registration without a word: a JobMaster that lives finds its next message
//!   refused, and registers again.
//! - A job without JobMaster keeps what it has until it is overdue: so long another one may come.

use std::collections::BTreeMap;
use std::time::Duration;

use tanist_proto::id::JobId;
use tokio::time::Instant;

use crate::gateway::JobMasterId;

/// A younger JobMaster speaks for the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superseded {
    /// This one.
    pub present: JobMasterId,
}

/// Whose message it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// The registered JobMaster's.
    Registered,
    /// Of one that has to register first.
    Unknown,
    /// Of one that another has taken the place of.
    Superseded(Superseded),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contact {
    Registered {
        id: JobMasterId,
        last_heard: Instant,
    },
    Absent {
        /// The last one that there was.
        last: Option<JobMasterId>,
        since: Instant,
    },
}

/// See the module.
#[derive(Debug)]
pub struct JobMasters {
    contacts: BTreeMap<JobId, Contact>,
    heartbeat_timeout: Duration,
    job_timeout: Duration,
    /// Nothing is due before this. Signs of life only put off what is due, so it is looked at all jobs again only then.
    check_at: Option<Instant>,
}

impl JobMasters {
    /// Knows no jobs.
    pub fn new(heartbeat_timeout: Duration, job_timeout: Duration) -> JobMasters {
        JobMasters {
            contacts: BTreeMap::new(),
            heartbeat_timeout,
            job_timeout,
            check_at: None,
        }
    }

    /// A JobMaster registers. Gives the registered one that it takes the place of.
    pub fn register(
        &mut self,
        now: Instant,
        job: JobId,
        id: JobMasterId,
    ) -> Result<Option<JobMasterId>, Superseded> {
        let (registered, last) = match self.contacts.get(&job) {
            Some(Contact::Registered { id, .. }) => (Some(*id), Some(*id)),
            Some(Contact::Absent { last, .. }) => (None, *last),
            None => (None, None),
        };
        if let Some(present) = last.filter(|last| id < *last) {
            return Err(Superseded { present });
        }
        let last_heard = now;
        self.put(job, Contact::Registered { id, last_heard });
        Ok(registered.filter(|registered| *registered != id))
    }

    /// A JobMaster says something.
    pub fn hear(&mut self, now: Instant, job: JobId, from: JobMasterId) -> Heard {
        match self.contacts.get_mut(&job) {
            Some(Contact::Registered { id, last_heard }) if *id == from => {
                *last_heard = now;
                Heard::Registered
            }
            Some(
                Contact::Registered { id: present, .. }
                | Contact::Absent {
                    last: Some(present),
                    ..
                },
            ) if from < *present => Heard::Superseded(Superseded { present: *present }),
            Some(_) | None => Heard::Unknown,
        }
    }

    /// The registered JobMaster of a job, or only this one, is gone. Whether there was one.
    pub fn disconnect(&mut self, now: Instant, job: JobId, only: Option<JobMasterId>) -> bool {
        let Some(Contact::Registered { id, .. }) = self.contacts.get(&job).copied() else {
            return false;
        };
        if only.is_some_and(|only| only != id) {
            return false;
        }
        let absent = Contact::Absent {
            last: Some(id),
            since: now,
        };
        self.put(job, absent);
        true
    }

    /// Takes up jobs of which no JobMaster was heard.
    pub fn follow(&mut self, now: Instant, jobs: impl Iterator<Item = JobId>) {
        for job in jobs {
            if !self.contacts.contains_key(&job) {
                let absent = Contact::Absent {
                    last: None,
                    since: now,
                };
                self.put(job, absent);
            }
        }
    }

    /// Nothing of the job is left.
    pub fn forget(&mut self, job: JobId) {
        self.contacts.remove(&job);
    }

    /// When [`JobMasters::take_overdue`] is to be called next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.check_at
    }

    /// Ends the registrations of silent JobMasters. Gives the jobs that were without one for too long; each comes again after
    /// as long, until it is forgotten.
    pub fn take_overdue(&mut self, now: Instant) -> Vec<JobId> {
        if self.check_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        let mut overdue = Vec::new();
        for (&job, contact) in &mut self.contacts {
            match contact {
                Contact::Registered { id, last_heard }
                    if *last_heard + self.heartbeat_timeout <= now =>
                {
                    tracing::warn!(%job, job_master = %id, "a JobMaster is silent");
                    *contact = Contact::Absent {
                        last: Some(*id),
                        since: now,
                    };
                }
                Contact::Absent { since, .. } if *since + self.job_timeout <= now => {
                    *since = now;
                    overdue.push(job);
                }
                Contact::Registered { .. } | Contact::Absent { .. } => {}
            }
        }
        self.check_at = self.contacts.values().map(|it| self.deadline(it)).min();
        overdue
    }

    fn put(&mut self, job: JobId, contact: Contact) {
        let deadline = self.deadline(&contact);
        self.check_at = Some(self.check_at.map_or(deadline, |at| at.min(deadline)));
        self.contacts.insert(job, contact);
    }

    fn deadline(&self, contact: &Contact) -> Instant {
        match contact {
            Contact::Registered { last_heard, .. } => *last_heard + self.heartbeat_timeout,
            Contact::Absent { since, .. } => *since + self.job_timeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use tanist_ha::election::Epoch;

    use super::*;

    const JOB: JobId = JobId::from_bits(0xA);
    const SILENCE: Duration = Duration::from_secs(50);
    const OVERDUE: Duration = Duration::from_secs(300);

    fn id(epoch: u64, incarnation: u64) -> JobMasterId {
        JobMasterId {
            epoch: Epoch::new(epoch),
            incarnation,
        }
    }

    fn job_masters() -> (Instant, JobMasters) {
        (Instant::now(), JobMasters::new(SILENCE, OVERDUE))
    }

    #[test]
    fn the_same_again_succeeds_a_younger_one_replaces_and_an_older_one_is_refused() {
        let (now, mut known) = job_masters();
        assert_eq!(known.register(now, JOB, id(2, 4)), Ok(None));
        assert_eq!(known.register(now, JOB, id(2, 4)), Ok(None));
        assert_eq!(known.register(now, JOB, id(2, 5)), Ok(Some(id(2, 4))));
        let present = id(2, 5);
        for older in [id(2, 4), id(1, 9)] {
            assert_eq!(known.register(now, JOB, older), Err(Superseded { present }));
            let heard = known.hear(now, JOB, older);
            assert_eq!(heard, Heard::Superseded(Superseded { present }));
        }
        assert_eq!(known.hear(now, JOB, present), Heard::Registered);
        assert_eq!(known.hear(now, JOB, id(2, 6)), Heard::Unknown);
    }

    #[test]
    fn an_older_one_is_refused_also_after_the_younger_one_left() {
        let (now, mut known) = job_masters();
        assert_eq!(known.register(now, JOB, id(2, 5)), Ok(None));
        assert!(!known.disconnect(now, JOB, Some(id(2, 4))), "not this one");
        assert!(known.disconnect(now, JOB, Some(id(2, 5))));
        assert!(!known.disconnect(now, JOB, None), "nobody is left");
        assert!(known.register(now, JOB, id(2, 4)).is_err());
        assert_eq!(known.hear(now, JOB, id(2, 5)), Heard::Unknown);
        assert_eq!(known.register(now, JOB, id(2, 5)), Ok(None));
    }

    #[test]
    fn silence_ends_a_registration_and_then_the_job_has_its_time() {
        let (start, mut known) = job_masters();
        assert_eq!(known.register(start, JOB, id(1, 1)), Ok(None));
        let heard = start + Duration::from_secs(40);
        assert_eq!(known.hear(heard, JOB, id(1, 1)), Heard::Registered);
        assert_eq!(known.next_deadline(), Some(start + SILENCE));
        assert!(known.take_overdue(start + SILENCE).is_empty());
        let silent = heard + SILENCE;
        assert_eq!(known.next_deadline(), Some(silent));
        assert!(known.take_overdue(silent).is_empty());
        assert_eq!(known.hear(silent, JOB, id(1, 1)), Heard::Unknown);
        let overdue = silent + OVERDUE;
        assert_eq!(known.next_deadline(), Some(overdue));
        assert_eq!(known.take_overdue(overdue), [JOB]);
        assert!(known.take_overdue(overdue).is_empty());
        assert_eq!(known.take_overdue(overdue + OVERDUE), [JOB], "again");
        known.forget(JOB);
        assert!(known.take_overdue(overdue + OVERDUE * 2).is_empty());
        assert_eq!(known.next_deadline(), None);
    }

    #[test]
    fn a_job_that_only_holds_slots_is_given_the_same_time() {
        let (now, mut known) = job_masters();
        known.follow(now, [JOB, JOB].into_iter());
        known.follow(now + SILENCE, [JOB].into_iter());
        assert_eq!(known.take_overdue(now + OVERDUE), [JOB]);
        known.follow(now + OVERDUE, [JOB].into_iter());
        assert_eq!(known.register(now + OVERDUE, JOB, id(1, 1)), Ok(None));
        assert!(known.take_overdue(now + OVERDUE * 2).is_empty());
    }
}
