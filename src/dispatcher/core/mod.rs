//! The decisions of a Dispatcher that depend on no loop: which submissions are accepted, what is known of a job, how
//! long results are kept. Pure: time is an argument.
//!
//! The handlers of the loop ([`super::actor`]) still decide what follows from an event: they start tasks themselves.

mod admission;
mod entry;
mod job_master_failures;
mod quarantined;
mod read_barrier;
mod retention;
mod suspect;

pub use self::admission::{
    Admission, Deadline, Known, Submission, SubmissionKey, Times, admit, first_state, is_expired,
    sink_directories,
};
pub use self::entry::{
    Described, Entry, accepted, describe, describe_without_job_master, ended_details, no_such_job,
    result_key, state_key, status_name,
};
pub use self::job_master_failures::JobMasterFailures;
pub use self::quarantined::{Quarantined, event};
pub use self::read_barrier::ReadBarrier;
pub use self::retention::Retention;
pub use self::suspect::Suspect;
