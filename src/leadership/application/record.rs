//! The record `applications/<cluster-id>`: the status of an application. Written by the leader under its term's
//! fence, read by the next leader together with the records of jobs.
//!
//! Invariants: the status leaves `RUNNING` once and never changes again; `cleaned` is set last, and then the
//! record is all that is left of the cluster. Fields are only added, each with a default.

use serde::{Deserialize, Serialize};
use tanist_config::HaOptions;
use tanist_gateway::kinds;
use tanist_ha::Error;
use tanist_ha::keys::{Key, Name};
use tanist_ha::store::cache::Records;
use tanist_ha::store::{CoordinationStore, Write};
use tanist_proto::id::JobId;
use tanist_telemetry::ExitCode;

use super::setup::Application;
use super::submitted::SubmittedJobs;
use crate::ha;

/// Maximum number of jobs that the record of an application lists.
const LISTED: usize = 100;
/// Maximum length of a text in the record, in characters. The record must fit into a transaction of any store.
pub(super) const LONGEST_TEXT: usize = 4096;

/// Advice in the error of a process that does not belong to the cluster.
const ELSEWHERE: &str = "choose another high-availability.cluster-id";

/// The status of an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum ApplicationStatus {
    /// It has not ended.
    Running,
    /// Its program returned and all its jobs FINISHED.
    Succeeded,
    /// Its program failed, or a job of it FAILED.
    Failed,
    /// A job of it was CANCELED.
    Canceled,
    /// Its end is not known. Never persisted: everything is kept.
    Unknown,
}

impl ApplicationStatus {
    /// Its name, as it is persisted.
    pub fn name(self) -> &'static str {
        match self {
            ApplicationStatus::Running => "RUNNING",
            ApplicationStatus::Succeeded => "SUCCEEDED",
            ApplicationStatus::Failed => "FAILED",
            ApplicationStatus::Canceled => "CANCELED",
            ApplicationStatus::Unknown => "UNKNOWN",
        }
    }

    /// The exit code of the cluster's processes.
    pub fn exit_code(self) -> ExitCode {
        match self {
            ApplicationStatus::Succeeded => ExitCode::Ended,
            ApplicationStatus::Failed => ExitCode::JobFailed,
            ApplicationStatus::Canceled => ExitCode::JobCanceled,
            // The process should be started again: the next leader may know more.
            ApplicationStatus::Running | ApplicationStatus::Unknown => ExitCode::Fatal,
        }
    }
}

/// The value of `applications/<cluster-id>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplicationRecord {
    /// The application's name.
    pub name: String,
    /// Distinguishes it from others of its name; empty if the name is sufficient.
    #[serde(default)]
    pub identity: String,
    /// Its status.
    pub status: ApplicationStatus,
    /// The reason; empty while it runs.
    #[serde(default)]
    pub diagnosis: String,
    /// When it was first led, in milliseconds since 1970.
    #[serde(default)]
    pub started_at_ms: u64,
    /// When its end was decided, in milliseconds since 1970; 0 before.
    #[serde(default)]
    pub ended_at_ms: u64,
    /// The jobs that its program has submitted: none of them is ever submitted again.
    #[serde(flatten)]
    pub submitted: SubmittedJobs,
    /// The jobs that it had when its end was decided; only some, if there were very many.
    #[serde(default)]
    pub jobs: Vec<String>,
    /// The number of jobs that it had.
    #[serde(default)]
    pub job_count: u64,
    /// What could not be removed of the jobs when the end was last carried out, for display. Empty: nothing, or
    /// it was not carried out.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub left: String,
    /// The end was carried out: nothing else is left of the cluster.
    #[serde(default)]
    pub cleaned: bool,
}

impl ApplicationRecord {
    /// The record of an application that begins.
    pub(super) fn begin(application: &Application, now_ms: u64) -> ApplicationRecord {
        ApplicationRecord {
            name: application.name.clone(),
            identity: application.identity.clone(),
            status: ApplicationStatus::Running,
            diagnosis: String::new(),
            started_at_ms: now_ms,
            ended_at_ms: 0,
            submitted: SubmittedJobs::default(),
            jobs: Vec::new(),
            job_count: 0,
            left: String::new(),
            cleaned: false,
        }
    }

    /// Whether the cluster is led only to remove what is left of it.
    pub fn is_over(&self) -> bool {
        self.cleaned || !self.left.is_empty()
    }

    /// Sets the end, with these jobs.
    pub(super) fn end(
        &mut self,
        status: ApplicationStatus,
        diagnosis: &str,
        jobs: &[JobId],
        now_ms: u64,
    ) {
        self.status = status;
        self.diagnosis = diagnosis.chars().take(LONGEST_TEXT).collect();
        self.ended_at_ms = now_ms;
        self.jobs = jobs.iter().take(LISTED).map(JobId::to_string).collect();
        self.job_count = jobs.len() as u64;
    }

    /// Whether it belongs to this application, not to another one of the same name. If one of the two has no
    /// identity, they count as the same.
    pub(super) fn is_of(&self, application: &Application) -> bool {
        let can_say = !self.identity.is_empty() && !application.identity.is_empty();
        self.name == application.name && (!can_say || self.identity == application.identity)
    }

    /// The refusal of a process that was started for another application of the same name.
    pub(super) fn refusal_of_another(&self, cluster_id: &Name) -> String {
        format!(
            "cluster {cluster_id} was that of another {:?}, which has ended {}: {ELSEWHERE}",
            self.name,
            self.status.name()
        )
    }

    /// The write that stores it.
    pub(super) fn write(&self, cluster_id: &Name) -> Write {
        let value = serde_json::to_vec(self).expect("numbers and texts are always JSON");
        Write::Put {
            key: key(cluster_id),
            value: value.into(),
        }
    }
}

/// Reads the record of a cluster's application; one that can't be parsed counts as absent.
pub async fn read(
    store: &dyn CoordinationStore,
    cluster_id: &Name,
) -> Result<Option<ApplicationRecord>, Error> {
    let found = store.get(&[key(cluster_id)]).await?.pop().flatten();
    Ok(found.and_then(|value| serde_json::from_slice(&value).ok()))
}

/// What an application whose process has ended left behind, if anything, for display. Also `None` if that can't
/// be read.
pub async fn left_by(options: &HaOptions) -> Option<String> {
    let left = ended(options).await?.left;
    (!left.is_empty()).then_some(left)
}

/// Why an application whose process has ended did not succeed, if that was recorded. Also `None` if that can't
/// be read.
pub async fn diagnosis_of(options: &HaOptions) -> Option<String> {
    let diagnosis = ended(options).await?.diagnosis;
    (!diagnosis.is_empty()).then_some(diagnosis)
}

async fn ended(options: &HaOptions) -> Option<ApplicationRecord> {
    let records = ha::open_records(options).await.ok()?;
    let found = read(&**records.coordination_store(), &options.cluster_id).await;
    found.ok()?
}

/// The state of a cluster for a JobManager that was just granted leadership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FoundApplication {
    /// Neither this process nor the store has an application.
    Session,
    /// This process's application was never led.
    Fresh,
    /// It was led before; its end is not decided, or not carried out.
    Recovered(Box<ApplicationRecord>),
    /// It has ended, and nothing is left to do.
    Over(Box<ApplicationRecord>),
}

/// The state of the cluster; an error: this process must not lead it.
pub(crate) fn find_application(
    application: Option<&Application>,
    cluster_id: &Name,
    records: &Records,
) -> Result<FoundApplication, String> {
    let found = match records.get(&key(cluster_id)) {
        Some(value) => Some(serde_json::from_slice::<ApplicationRecord>(value).map_err(
            |error| {
                format!(
                    "the record of the application of cluster {cluster_id} can't be read: {error}"
                )
            },
        )?),
        None => None,
    };
    // The order counts: each case excludes those above it.
    match (application, found) {
        (None, None) => Ok(FoundApplication::Session),
        (Some(_), None) if has_jobs(records) => Err(format!(
            "cluster {cluster_id} has jobs and does not belong to an application: {ELSEWHERE}"
        )),
        (Some(_), None) => Ok(FoundApplication::Fresh),
        (Some(own), Some(record)) if record.is_of(own) && record.cleaned => {
            Ok(FoundApplication::Over(Box::new(record)))
        }
        // Whether the jobs are the same is checked when the program submits them. A decided end is carried out
        // by any leader of this name.
        (Some(own), Some(record)) if own.name == record.name && !record.cleaned => {
            Ok(FoundApplication::Recovered(Box::new(record)))
        }
        (Some(own), Some(record)) if own.name == record.name => {
            Err(record.refusal_of_another(cluster_id))
        }
        (_, Some(record)) => Err(format!(
            "cluster {cluster_id} is that of the application {:?}, which is {}: {ELSEWHERE}",
            record.name,
            record.status.name()
        )),
    }
}

/// Whether there is anything of a job, even if only its result. The end of an application ends all jobs of its cluster
/// and removes their results: so it must not begin in a cluster that has others.
fn has_jobs(records: &Records) -> bool {
    let mut kinds = [kinds::GRAPHS, kinds::STATES, kinds::RESULTS].into_iter();
    kinds.any(|kind| records.of(kind).next().is_some())
}

fn key(cluster_id: &Name) -> Key {
    Key::new(kinds::APPLICATIONS, cluster_id.clone())
}

#[cfg(test)]
mod tests {
    use tanist_ha::keys::Kind;

    use super::*;

    fn cluster() -> Name {
        Name::new("c").expect("a name")
    }

    fn setup(name: &str, identity: &str) -> Application {
        Application::new(name, |_| async { Ok(()) }).identified_by(identity)
    }

    fn records(record: Option<&ApplicationRecord>, graphs: usize) -> Records {
        records_of(kinds::GRAPHS, record, graphs)
    }

    fn records_of(kind: Kind, record: Option<&ApplicationRecord>, jobs: usize) -> Records {
        let mut all = Vec::new();
        if let Some(record) = record
            && let Write::Put { key, value } = record.write(&cluster())
        {
            all.push((key, value));
        }
        for number in 0..jobs {
            let name = Name::new(format!("{number:032x}")).expect("a name");
            all.push((Key::new(kind, name), bytes::Bytes::new()));
        }
        all.into_iter().collect()
    }

    #[test]
    fn an_application_goes_on_with_its_own_record_and_ends_with_its_tombstone() {
        let own = setup("counts", "");
        let mut record = ApplicationRecord::begin(&own, 7);
        let of = |record: &ApplicationRecord| {
            find_application(Some(&own), &cluster(), &records(Some(record), 1))
        };
        let recovered = FoundApplication::Recovered(Box::new(record.clone()));
        assert_eq!(of(&record), Ok(recovered));
        record.status = ApplicationStatus::Canceled;
        record.cleaned = true;
        assert_eq!(
            of(&record),
            Ok(FoundApplication::Over(Box::new(record.clone())))
        );
        let fresh = find_application(Some(&own), &cluster(), &records(None, 0));
        assert_eq!(fresh, Ok(FoundApplication::Fresh));
        let session = find_application(None, &cluster(), &records(None, 3));
        assert_eq!(session, Ok(FoundApplication::Session));
    }

    #[test]
    fn a_process_that_does_not_belong_to_a_cluster_is_refused_with_the_owner() {
        let own = setup("counts", "");
        let record = ApplicationRecord::begin(&own, 7);
        for stranger in [None, Some(setup("others", ""))] {
            let refused =
                find_application(stranger.as_ref(), &cluster(), &records(Some(&record), 0));
            let reason = refused.expect_err("refused");
            assert!(reason.contains("\"counts\""), "{reason}");
        }
        // Jobs of a session, even if they have all ended.
        for kind in [kinds::GRAPHS, kinds::STATES, kinds::RESULTS] {
            let refused = find_application(Some(&own), &cluster(), &records_of(kind, None, 1));
            assert!(refused.expect_err("refused").contains("has jobs"));
        }
    }

    #[test]
    fn the_record_of_an_ended_application_is_not_the_result_of_another_one_of_its_name() {
        let mut record = ApplicationRecord::begin(&setup("job a", "1"), 7);
        record.status = ApplicationStatus::Succeeded;
        let of = |record: &ApplicationRecord, identity| {
            find_application(
                Some(&setup("job a", identity)),
                &cluster(),
                &records(Some(record), 0),
            )
        };
        // Any process of this name carries out its end.
        assert!(matches!(
            of(&record, "2"),
            Ok(FoundApplication::Recovered(_))
        ));
        record.cleaned = true;
        assert!(matches!(of(&record, "1"), Ok(FoundApplication::Over(_))));
        let reason = of(&record, "2").expect_err("refused");
        assert!(reason.contains("another \"job a\""), "{reason}");
        // One that can't say which it was.
        record.identity.clear();
        assert!(matches!(of(&record, "2"), Ok(FoundApplication::Over(_))));
    }

    #[test]
    fn a_record_with_the_required_fields_alone_is_read_and_unknown_fields_are_ignored() {
        let kept = r#"{"name":"a","status":"FAILED","of_a_later_version":1}"#;
        let record: ApplicationRecord = serde_json::from_str(kept).expect("readable");
        assert_eq!(record.status, ApplicationStatus::Failed);
        assert_eq!(record.status.exit_code(), ExitCode::JobFailed);
        assert!(!record.cleaned && record.jobs.is_empty() && record.submitted.is_empty());
    }
}
