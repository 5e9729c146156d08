//! A job that has no JobMaster now: the last one broke, its turn to be recovered has not come, or its records can't be
//! read for now. The job, or its unreadable result, is being read again.

use super::{Quarantined, SubmissionKey};

/// Number of a read of waiting jobs, in the order in which they start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct ReadNumber(u64);

impl ReadNumber {
    /// The number of the next read.
    pub(super) fn next(self) -> ReadNumber {
        ReadNumber(self.0 + 1)
    }
}

/// A job that has no JobMaster now.
#[derive(Debug)]
pub(crate) struct Rebuilding {
    key: SubmissionKey,
    name: String,
    why: &'static str,
    /// The first read of waiting jobs that counts; `None`: its broken JobMaster is being removed, and none counts. A
    /// read that began before the removal may have found what that JobMaster has changed since.
    first_read: Option<ReadNumber>,
    /// Set if only the state was read: the turn has not come, or the graph can't be read for now.
    suspect: Option<Box<Suspect>>,
}

/// A job of which only the state was read. It can be cancelled.
#[derive(Debug)]
struct Suspect {
    /// Its data, in the same form as for a quarantined job.
    known: Quarantined,
    /// Its turn came while its result was being written.
    was_passed_over: bool,
}

impl Rebuilding {
    /// A job whose JobMaster broke.
    pub(super) fn broken(key: SubmissionKey, name: String) -> Rebuilding {
        Rebuilding {
            key,
            name,
            why: "its JobMaster broke, and another one is started",
            first_read: None,
            suspect: None,
        }
    }

    /// A job of which only the state was read.
    pub(super) fn suspect(known: Quarantined, first_read: ReadNumber) -> Rebuilding {
        Rebuilding {
            key: known.key().clone(),
            name: known.name().to_owned(),
            why: "an earlier term died in recovery: this job is started when its turn comes",
            first_read: Some(first_read),
            suspect: Some(Box::new(Suspect {
                known,
                was_passed_over: false,
            })),
        }
    }

    /// A job about which nothing is known.
    pub(super) fn unknown(why: &'static str, first_read: ReadNumber) -> Rebuilding {
        Rebuilding {
            key: SubmissionKey::unknown(),
            name: String::new(),
            why,
            first_read: Some(first_read),
            suspect: None,
        }
    }

    pub(super) fn key(&self) -> &SubmissionKey {
        &self.key
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Why it has no JobMaster.
    pub(super) fn why(&self) -> &'static str {
        self.why
    }

    /// Its records can't be read for now. Only reads from `first_read` on count.
    pub(super) fn await_records(&mut self, why: &'static str, first_read: ReadNumber) {
        self.why = why;
        self.first_read = Some(first_read);
    }

    /// What is known of the job, if its state was read.
    pub(super) fn known(&self) -> Option<&Quarantined> {
        self.suspect.as_ref().map(|suspect| &suspect.known)
    }

    /// Begins to write its result CANCELED, and returns what is known of it. `Err(Some)`: it can't be cancelled now, as
    /// its result is being written already, or its output may be visible; this is why it has no JobMaster. `Err(None)`:
    /// its state was not read.
    pub(super) fn cancel(&mut self) -> Result<&Quarantined, Option<&'static str>> {
        let suspect = self.suspect.as_mut().ok_or(None)?;
        if suspect.known.is_busy() || suspect.known.has_finished() {
            return Err(Some(self.why));
        }
        suspect.known.set_busy(true);
        self.why = "it was cancelled before its turn to be recovered came, and its result is being written";
        Ok(&suspect.known)
    }

    /// Records that its result could not be written. Returns true if its turn came meanwhile: it must be read now.
    pub(super) fn cancel_failed(&mut self) -> bool {
        let Some(suspect) = &mut self.suspect else {
            return false;
        };
        suspect.known.set_busy(false);
        self.why = "its cancellation could not be written: this job is started when its turn comes";
        std::mem::take(&mut suspect.was_passed_over)
    }

    /// The job was read. Returns true if it waits for that. It does not while its result is being written: it was
    /// *passed over*, and is read again if that write fails.
    pub(super) fn takes_turn(&mut self, number: ReadNumber) -> bool {
        if self.first_read.is_none_or(|first| number < first) {
            return false;
        }
        match &mut self.suspect {
            Some(suspect) if suspect.known.is_busy() => {
                suspect.was_passed_over = true;
                false
            }
            Some(_) | None => true,
        }
    }
}
