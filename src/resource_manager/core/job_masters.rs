//! The registered JobMaster of each job. Pure.
//!
//! - One registration for each job: repeating it changes nothing, a younger JobMaster replaces an older one, an
//!   older one is refused.
//! - Every message counts as a heartbeat. A registration without messages ends silently: if its JobMaster is
//!   alive, its next message is refused, and it registers again.
//! - A job without JobMaster keeps its requirements and slots until `job_timeout`, in which another JobMaster
//!   may register.

use std::collections::BTreeMap;
use std::time::Duration;

use tanist_gateway::{Departure, JobMasterId};
use tanist_ha::clock::Uptime;
use tanist_proto::id::JobId;

use super::LogLine;

/// A younger JobMaster is registered for the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Superseded {
    /// The registered one.
    pub present: JobMasterId,
}

/// The sender of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// The registered JobMaster.
    Registered,
    /// A JobMaster that must register first.
    Unknown,
    /// A JobMaster that was replaced by another one.
    Superseded(Superseded),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Contact {
    /// The registered one, or the last that was.
    id: JobMasterId,
    state: ContactState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContactState {
    Registered { last_heard: Uptime },
    Absent { since: Uptime },
}

/// See the module.
#[derive(Debug)]
pub(super) struct JobMasters {
    contacts: BTreeMap<JobId, Contact>,
    /// Jobs that hold slots and have no known JobMaster, and since when.
    unheard: BTreeMap<JobId, Uptime>,
    heartbeat_timeout: Duration,
    job_timeout: Duration,
    /// Nothing is due before this. Messages only postpone deadlines, so jobs are checked again only at this
    /// time.
    check_at: Option<Uptime>,
    log: Vec<LogLine>,
}

impl JobMasters {
    /// Without jobs.
    pub(super) fn new(heartbeat_timeout: Duration, job_timeout: Duration) -> JobMasters {
        JobMasters {
            contacts: BTreeMap::new(),
            unheard: BTreeMap::new(),
            heartbeat_timeout,
            job_timeout,
            check_at: None,
            log: Vec::new(),
        }
    }

    /// Takes the collected lines for the log.
    pub(super) fn take_log(&mut self) -> Vec<LogLine> {
        std::mem::take(&mut self.log)
    }

    /// Registers a JobMaster. Returns the registered one that it replaces.
    pub(super) fn register(
        &mut self,
        now: Uptime,
        job: JobId,
        id: JobMasterId,
    ) -> Result<Option<JobMasterId>, Superseded> {
        let before = self.contacts.get(&job).copied();
        if let Some(Contact { id: present, .. }) = before.filter(|before| id < before.id) {
            return Err(Superseded { present });
        }
        self.unheard.remove(&job);
        self.put(job, id, ContactState::Registered { last_heard: now });
        let replaced = before.filter(|before| before.is_registered() && before.id != id);
        Ok(replaced.map(|before| before.id))
    }

    /// Handles a message of a JobMaster.
    pub(super) fn hear(&mut self, now: Uptime, job: JobId, from: JobMasterId) -> Heard {
        let Some(contact) = self.contacts.get_mut(&job) else {
            return Heard::Unknown;
        };
        if from < contact.id {
            return Heard::Superseded(Superseded {
                present: contact.id,
            });
        }
        match &mut contact.state {
            ContactState::Registered { last_heard } if contact.id == from => {
                *last_heard = now;
                Heard::Registered
            }
            ContactState::Registered { .. } | ContactState::Absent { .. } => Heard::Unknown,
        }
    }

    /// Ends the registration of a job's JobMaster. Returns whether there was one.
    pub(super) fn disconnect(&mut self, now: Uptime, job: JobId, departure: Departure) -> bool {
        let registered = self.contacts.get(&job).filter(|it| it.is_registered());
        let Some(&Contact { id, .. }) = registered else {
            return false;
        };
        match departure {
            Departure::JobEnded(of) if of != id => return false,
            // No other one will come. Slots that are still held are followed as those of any job without
            // JobMaster.
            Departure::JobEnded(_) => self.forget(job),
            Departure::Broke => self.put(job, id, ContactState::Absent { since: now }),
        }
        true
    }

    /// Tracks jobs that hold slots and have no JobMaster. To be called for every job whose JobMaster has left,
    /// or that now holds slots or no longer does; the flag says whether it holds slots.
    pub(super) fn follow(&mut self, now: Uptime, jobs: impl Iterator<Item = (JobId, bool)>) {
        for (job, holds_slots) in jobs {
            if holds_slots && !self.contacts.contains_key(&job) {
                self.unheard.entry(job).or_insert(now);
                self.check_by(now + self.job_timeout);
            } else {
                self.unheard.remove(&job);
            }
        }
    }

    /// Forgets a job.
    pub(super) fn forget(&mut self, job: JobId) {
        self.contacts.remove(&job);
        self.unheard.remove(&job);
    }

    /// This process stood still and could receive nothing: that ends no registration and no job's timeout.
    pub(super) fn put_off(&mut self, now: Uptime, by: Duration) {
        let contacts = self.contacts.values_mut();
        let contacts = contacts.map(|contact| match &mut contact.state {
            ContactState::Registered { last_heard } => last_heard,
            ContactState::Absent { since } => since,
        });
        for since in contacts.chain(self.unheard.values_mut()) {
            *since = (*since + by).min(now);
        }
    }

    /// When [`JobMasters::take_overdue`] must be called next.
    pub(super) fn next_deadline(&self) -> Option<Uptime> {
        self.check_at
    }

    /// Ends the registrations of silent JobMasters. Returns the jobs without JobMaster whose timeout has
    /// passed; each is returned again after another timeout, until it is forgotten.
    pub(super) fn take_overdue(&mut self, now: Uptime) -> Vec<JobId> {
        if self.check_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        let mut overdue = Vec::new();
        for (&job, Contact { id, state }) in &mut self.contacts {
            match state {
                ContactState::Registered { last_heard }
                    if *last_heard + self.heartbeat_timeout <= now =>
                {
                    let job_master = *id;
                    self.log.push(LogLine::JobMasterSilent { job, job_master });
                    *state = ContactState::Absent { since: now };
                }
                ContactState::Absent { since } if *since + self.job_timeout <= now => {
                    *since = now;
                    overdue.push(job);
                }
                ContactState::Registered { .. } | ContactState::Absent { .. } => {}
            }
        }
        for (&job, since) in &mut self.unheard {
            if *since + self.job_timeout <= now {
                *since = now;
                overdue.push(job);
            }
        }
        let contacts = self.contacts.values().map(|it| self.deadline(it.state));
        let unheard = self.unheard.values().map(|&since| since + self.job_timeout);
        self.check_at = contacts.chain(unheard).min();
        overdue
    }

    fn put(&mut self, job: JobId, id: JobMasterId, state: ContactState) {
        self.contacts.insert(job, Contact { id, state });
        self.check_by(self.deadline(state));
    }

    fn check_by(&mut self, deadline: Uptime) {
        self.check_at = Some(self.check_at.map_or(deadline, |at| at.min(deadline)));
    }

    fn deadline(&self, state: ContactState) -> Uptime {
        match state {
            ContactState::Registered { last_heard } => last_heard + self.heartbeat_timeout,
            ContactState::Absent { since } => since + self.job_timeout,
        }
    }
}

impl Contact {
    fn is_registered(&self) -> bool {
        match self.state {
            ContactState::Registered { .. } => true,
            ContactState::Absent { .. } => false,
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

    fn job_masters() -> (Uptime, JobMasters) {
        (Uptime::START, JobMasters::new(SILENCE, OVERDUE))
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
        let ended = Departure::JobEnded(id(2, 4));
        assert!(
            !known.disconnect(now, JOB, ended),
            "it does not speak for it"
        );
        assert!(known.disconnect(now, JOB, Departure::Broke));
        assert!(
            !known.disconnect(now, JOB, Departure::Broke),
            "none is left"
        );
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
    fn nobody_is_silent_for_as_long_as_this_process_stood_still() {
        let (start, mut known) = job_masters();
        let (absent, unheard) = (JobId::from_bits(0xB), JobId::from_bits(0xC));
        assert_eq!(known.register(start, JOB, id(1, 1)), Ok(None));
        assert_eq!(known.register(start, absent, id(1, 2)), Ok(None));
        assert!(known.disconnect(start, absent, Departure::Broke));
        known.follow(start, [(unheard, true)].into_iter());
        let now = start + 2 * OVERDUE;
        known.put_off(now, now - start - SILENCE / 2);
        assert!(known.take_overdue(now).is_empty());
        assert_eq!(known.hear(now, JOB, id(1, 1)), Heard::Registered);
        let overdue = now + OVERDUE - SILENCE / 2;
        assert_eq!(known.take_overdue(overdue), [absent, unheard]);
    }

    #[test]
    fn nothing_is_remembered_of_a_job_that_ended_and_holds_nothing() {
        let (now, mut known) = job_masters();
        assert_eq!(known.register(now, JOB, id(2, 5)), Ok(None));
        assert!(known.disconnect(now, JOB, Departure::JobEnded(id(2, 5))));
        known.follow(now, [(JOB, true)].into_iter());
        known.follow(now, [(JOB, false)].into_iter());
        assert!(known.take_overdue(now + OVERDUE).is_empty());
        assert_eq!(known.next_deadline(), None);
    }

    #[test]
    fn a_job_that_only_holds_slots_is_given_the_same_time() {
        let (now, mut known) = job_masters();
        known.follow(now, [(JOB, true), (JOB, true)].into_iter());
        known.follow(now + SILENCE, [(JOB, true)].into_iter());
        assert_eq!(known.take_overdue(now + OVERDUE), [JOB]);
        known.follow(now + OVERDUE, [(JOB, true)].into_iter());
        assert_eq!(known.register(now + OVERDUE, JOB, id(1, 1)), Ok(None));
        assert!(known.take_overdue(now + OVERDUE * 2).is_empty());
    }
}
