//! The start of a job's checkpoints: reads their record and its manifests, and builds their core.
//!
//! Invariant: a record or manifest that can't be used ends the JobMaster (`unfit`), not the job, and no older
//! checkpoint is taken instead. One that can't be read at present is read again, without a limit: only this job waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tanist_gateway::manifests;
use tanist_gateway::persistence::CheckpointsUnread;
use tanist_ha::Error;
use tanist_ha::blob::CheckpointStorage;
use tanist_ha::election::Epoch;
use tanist_ha::keys::Name;
use tanist_ha::retry::Backoff;
use tanist_model::{asks_for_commits, shown, unnamed_steps};
use tanist_proto::v1 as pb;

use super::commits::SinkFiles;
use super::history::History;
use super::savepoints::Savepoints;
use super::storage_problem::StorageProblem;
use super::{Checkpoints, RestorePoints};
use crate::core::checkpoints::{
    CheckpointCore, Options, Unreadable, manifest_objects, newest_numbers, stop_request, stops_with,
};
use crate::core::{JobMasterCore, sink_directories};
use crate::options::{CheckpointDefaults, JobMasterContext};

/// The interval of a job that has checkpoints and takes none: longer than it lives.
const NEVER_MS: u64 = 100 * 365 * 24 * 3_600_000;

/// What to do about a job that takes none, for people.
pub(super) const NO_INTERVAL: &str =
    "set `interval` in its `checkpoints`, or `execution.checkpointing.interval` of all JobManagers";

/// The record and the manifests of a job that takes checkpoints or has some.
#[derive(Debug)]
pub(crate) struct Found {
    record: Arc<pb::JobCheckpoints>,
    objects: BTreeMap<String, Vec<u8>>,
    settings: pb::CheckpointSettings,
    storage: Option<CheckpointStorage>,
    /// Time between two listings of the job's directory.
    listing_interval_ms: u64,
    /// Number of regions of the job's record; 0: nothing was placed yet.
    regions: usize,
}

/// Why a JobMaster can't begin.
#[derive(Debug)]
pub(crate) enum Unread {
    TermOver,
    /// The reason, for people.
    Unfit(String),
}

/// The core of the checkpoints, or why there is none.
pub(crate) type Begun = Result<Option<Box<Checkpoints>>, Unreadable>;

/// Reads the record and its manifests. None: the job takes no checkpoints, and has none. Waits while something can't be
/// read at present.
pub(crate) async fn find(
    defaults: &CheckpointDefaults,
    context: &JobMasterContext,
) -> Result<Option<Found>, Unread> {
    let job_id = &context.graph.job_id;
    // A job that begins from a savepoint has a record from its submission on.
    let record = context.state_store.checkpoints(job_id).await;
    let record = record.map_err(|error| match error {
        CheckpointsUnread::TermOver => Unread::TermOver,
        CheckpointsUnread::Unreadable { .. } => Unread::Unfit(error.to_string()),
    })?;
    let settings = settings(&context.graph, defaults);
    // Tasks that an earlier JobMaster deployed may have output of checkpoints, also if there is no record yet.
    let takes_none = settings.interval_ms() == 0 && !context.state.takes_checkpoints;
    if record.is_none() && takes_none {
        return Ok(None);
    }
    let record = record.unwrap_or_else(|| pb::JobCheckpoints {
        job_id: job_id.clone(),
        ..pb::JobCheckpoints::default()
    });
    let storage = storage(job_id, context);
    if let Some(storage) = &storage {
        // A new leader may not know its storage yet. Until then, snapshots of tasks would count as misplaced.
        storage.wait_until_known().await;
    }
    Ok(Some(Found {
        objects: read_objects(&record, storage.as_ref()).await?,
        record: Arc::new(record),
        settings,
        storage,
        listing_interval_ms: defaults.listing_interval_ms,
        regions: context.state.regions.len(),
    }))
}

fn storage(job_id: &str, context: &JobMasterContext) -> Option<CheckpointStorage> {
    let blobs = context.checkpoint_objects.as_ref()?;
    Some(blobs.checkpoints(&Name::new(job_id).ok()?))
}

/// The contents of manifests that are objects, as far as they exist.
async fn read_objects(
    record: &pb::JobCheckpoints,
    storage: Option<&CheckpointStorage>,
) -> Result<BTreeMap<String, Vec<u8>>, Unread> {
    let mut objects = BTreeMap::new();
    let Some(storage) = storage else {
        return Ok(objects);
    };
    for name in manifest_objects(record) {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        loop {
            match storage.get(&name).await {
                Ok(bytes) => {
                    objects.insert(name, bytes.to_vec());
                    break;
                }
                // The object is missing. `CheckpointCore::new` says which checkpoint's it is, or that it is not needed.
                Err(Error::Corrupt { .. }) => break,
                Err(error) if error.may_pass() => {
                    let job = record.job_id.as_str();
                    tracing::warn!(job, %error, "a manifest can't be read; reading is retried");
                    tokio::time::sleep(backoff.next_delay()).await;
                }
                Err(error) => return Err(Unread::Unfit(error.to_string())),
            }
        }
    }
    Ok(objects)
}

/// The settings of a job, with those of the cluster where it has none.
fn settings(graph: &pb::JobGraph, defaults: &CheckpointDefaults) -> pb::CheckpointSettings {
    let options = graph.options.as_ref();
    let own = options.and_then(|options| options.checkpoints);
    let own = own.unwrap_or_default();
    let unlimited = |limit: u32| i64::from(limit);
    pb::CheckpointSettings {
        interval_ms: own.interval_ms.or(Some(defaults.interval_ms)),
        min_pause_ms: own.min_pause_ms.or(Some(defaults.min_pause_ms)),
        timeout_ms: own.timeout_ms.or(Some(defaults.timeout_ms)),
        tolerable_failures: own
            .tolerable_failures
            .or(Some(defaults.tolerable_failures.map_or(-1, unlimited))),
        retained: own.retained.or(Some(defaults.retained)),
        retention: own.retention.or(Some(defaults.retention.into())),
    }
}

/// Prefix of `started_from` if the job was started from a checkpoint of another job.
const FROM_JOB: &str = "job:";

impl Found {
    /// What regions are restored from, for the JobMaster's core.
    pub(crate) fn points(&self) -> Arc<RestorePoints> {
        let mut numbers = newest_numbers(&self.record, &self.objects);
        if let Some(origin) = &self.record.origin {
            let missing = self.regions.saturating_sub(numbers.len());
            numbers.extend(std::iter::repeat_n(origin.number, missing));
        }
        Arc::new(RestorePoints {
            numbers,
            held: BTreeSet::new(),
            // Until the checkpoints say otherwise: the job must not end before they are asked.
            has_uncommitted: true,
            stops_with: stops_with(&self.record).map(str::to_owned),
            stop_request: stop_request(&self.record).map(str::to_owned),
        })
    }

    /// What stays of the checkpoints if the job ends with this status before anything runs. None: nothing does.
    pub(crate) fn retained(&self, status: pb::JobStatus) -> Option<Arc<pb::JobCheckpoints>> {
        let is_kept = manifests::is_retained(status, self.settings.retention());
        let record = manifests::ended((*self.record).clone(), is_kept);
        (!record.retained.is_empty()).then(|| Arc::new(record))
    }

    fn options(&self) -> Options {
        let interval_ms = match self.settings.interval_ms() {
            0 => NEVER_MS,
            interval_ms => interval_ms,
        };
        Options {
            interval_ms,
            min_pause_ms: self.settings.min_pause_ms(),
            timeout_ms: self.settings.timeout_ms(),
            tolerable_failures: u32::try_from(self.settings.tolerable_failures()).ok(),
            retained: usize::try_from(self.settings.retained()).unwrap_or(usize::MAX),
            retention: self.settings.retention(),
            has_blob_store: self.storage.is_some(),
            listing_interval_ms: self.listing_interval_ms,
        }
    }
}

/// Number of steps that the warning about steps without names lists.
const NAMED_STEPS: usize = 4;

/// The warning about steps whose state is identified by the name of their operator alone. None: all have names.
fn warning_of_names(graph: &pb::JobGraph) -> Option<String> {
    let unnamed = unnamed_steps(graph);
    let named = unnamed.iter().take(NAMED_STEPS);
    let named: Vec<String> = named.map(|step| format!("`{step}`")).collect();
    if unnamed.is_empty() {
        return None;
    }
    let others = match unnamed.len().saturating_sub(NAMED_STEPS) {
        0 => String::new(),
        others => format!(" and {others} others"),
    };
    let steps = named.join(", ");
    Some(format!(
        "warning: only the name of their operator identifies the state of the steps {steps}{others} in checkpoints: \
         give each a `name` or a `uid`"
    ))
}

/// The warning about a job that needs checkpoints and takes none, because neither it nor its cluster has an interval.
pub(crate) fn warning_of_no_interval(
    graph: &pb::JobGraph,
    defaults: &CheckpointDefaults,
) -> Option<String> {
    let options = graph.options.as_ref();
    let own = options.and_then(|options| options.checkpoints.as_ref());
    let interval_ms = own.and_then(|own| own.interval_ms);
    if interval_ms.unwrap_or(defaults.interval_ms) > 0 {
        return None;
    }
    let has_none = match (asks_for_commits(graph), own) {
        (Some(sink), _) => format!(
            "step {} has `commit: checkpoint`, and without checkpoints its output is lost unless the job finishes",
            shown(sink)
        ),
        (None, Some(_)) if interval_ms.is_none() => {
            "the job asks for checkpoints, and none is taken".to_owned()
        }
        (None, _) => return None,
    };
    Some(format!("warning: {has_none}: {NO_INTERVAL}"))
}

/// Builds the core of the checkpoints beside that of the JobMaster. `is_first`: the job has had no JobMaster.
pub(crate) fn begin(
    found: Option<Found>,
    core: &JobMasterCore,
    graph: &pb::JobGraph,
    is_first: bool,
    epoch: Epoch,
    now_ms: u64,
) -> Begun {
    let Some(found) = found else {
        return Ok(None);
    };
    let options = (found.options(), core.checkpoint_topology(graph));
    let mut start = core.checkpoint_start();
    if is_first {
        start.began_ms = now_ms;
    }
    let record = found.record;
    let started_from = record.started_from.clone();
    let mut history = History::new(record.retained.last(), now_ms);
    let savepoints = Savepoints::new(&record);
    let has_received = started_from.starts_with(FROM_JOB);
    let sinks = pb::SinkDirectories {
        paths: sink_directories(graph),
        run: graph.run.clone(),
    };
    if is_first && found.settings.interval_ms() > 0 {
        warning_of_names(graph)
            .into_iter()
            .for_each(|it| history.announce(it));
    }
    if !is_first && found.settings.interval_ms() == 0 && !record.retained.is_empty() {
        history.announce(format!(
            "warning: an earlier JobManager took checkpoints of the job, and this one takes none: {NO_INTERVAL}"
        ));
    }
    let checkpoints = CheckpointCore::new(options, record, &found.objects, start, epoch, now_ms)?;
    Ok(Some(Box::new(Checkpoints {
        points: Arc::default(),
        core: checkpoints,
        settings: found.settings,
        storage: found.storage,
        history,
        storage_problem: StorageProblem::default(),
        files: SinkFiles::new(sinks, has_received),
        savepoints,
        refusal: None,
        is_over: false,
        redistributed: None,
        started_from,
        first_trigger: None,
    })))
}
