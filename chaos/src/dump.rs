//! The content of a cluster's store, by kind: for checks that ended jobs leave nothing, and for deliberate damage.

use std::collections::BTreeMap;

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use prost::Message;
use tanist_gateway::kinds;
use tanist_ha::keys::{Key, Kind, Name};
use tanist_ha::records::record::{self, Payload};
use tanist_ha::store::{CommitReply, CommitRequest, CoordinationStore, Fence, Write};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

/// Number of items per read.
const PAGE: usize = 500;
/// The newest format of results that this code reads.
const RESULT_FORMAT: u16 = 1;
/// The newest format of states of jobs that this code reads.
const STATES_FORMAT: u16 = 1;
/// The newest format of records of checkpoints that this code reads.
const CHECKPOINTS_FORMAT: u16 = 1;
/// Number of attempts to write damage while the leader commits at the same time.
const DAMAGE_TRIES: usize = 100;

/// The names of all items of jobs in a store, and their results.
#[derive(Debug, Clone, Default)]
pub struct StoreDump {
    /// Names by kind, without history and storages, which belong to no job.
    pub items: BTreeMap<Kind, Vec<Name>>,
    /// The results, by job.
    pub results: BTreeMap<Name, pb::JobResult>,
}

impl StoreDump {
    /// Reads everything.
    pub async fn read(store: &dyn CoordinationStore) -> anyhow::Result<StoreDump> {
        let mut dump = StoreDump::default();
        let of_jobs = |kind: &Kind| !matches!(*kind, kinds::HISTORY | kinds::STORAGES);
        for kind in kinds::ALL.iter().filter(of_jobs) {
            for (name, value) in items(store, kind).await? {
                if kind == kinds::RESULTS {
                    dump.results.insert(name.clone(), result(&name, &value)?);
                }
                dump.items.entry(kind).or_default().push(name);
            }
        }
        Ok(dump)
    }

    /// Returns an error with all remaining items, unless only clean results with their descriptions remain.
    pub fn check_empty(&self) -> anyhow::Result<()> {
        let is_kept = |key: &Key| {
            let result = self.results.get(&key.name);
            match key.kind {
                kinds::RESULTS => true,
                kinds::DESCRIPTIONS => result.is_some_and(|result| result.description.is_some()),
                _ => false,
            }
        };
        let left: Vec<String> = self
            .items
            .iter()
            .flat_map(|(kind, names)| names.iter().map(|name| Key::new(*kind, name.clone())))
            .filter(|key| !is_kept(key))
            .map(|key| key.to_string())
            .collect();
        ensure!(left.is_empty(), "left in the store: {left:?}");
        let dirty: Vec<&Name> = self
            .results
            .iter()
            .filter(|(_, result)| result.dirty)
            .map(|(name, _)| name)
            .collect();
        ensure!(dirty.is_empty(), "results that are not clean: {dirty:?}");
        Ok(())
    }
}

/// All items of a kind, ordered by name.
pub(crate) async fn items(
    store: &dyn CoordinationStore,
    kind: Kind,
) -> anyhow::Result<Vec<(Name, Bytes)>> {
    let (mut items, mut next) = (Vec::new(), None);
    loop {
        let page = store.list(kind, next, PAGE).await?;
        items.extend(page.items);
        next = page.next;
        if next.is_none() {
            return Ok(items);
        }
    }
}

fn result(name: &Name, value: &[u8]) -> anyhow::Result<pb::JobResult> {
    let key = Key::new(kinds::RESULTS, name.clone());
    small_record(&key, RESULT_FORMAT, value)
}

/// Decodes a record that is always inline, and never in a blob or in chunks. `format`: the newest one that this code
/// reads.
fn small_record<M: Message + Default>(key: &Key, format: u16, value: &[u8]) -> anyhow::Result<M> {
    match record::decode(key, format, value)? {
        Payload::Inline { bytes, .. } => M::decode(bytes).with_context(|| key.to_string()),
        Payload::Blob { .. } | Payload::Chunks { .. } => {
            bail!("{key} is in a blob or in chunks, and a record of this kind is always inline")
        }
    }
}

/// The record of a job's checkpoints; `None` if the job has none.
pub async fn checkpoints(
    store: &dyn CoordinationStore,
    job: JobId,
) -> anyhow::Result<Option<pb::JobCheckpoints>> {
    let key = Key::new(kinds::CHECKPOINTS, Name::new(job.to_string())?);
    let found = store.get(std::slice::from_ref(&key)).await?;
    let Some(value) = found.into_iter().flatten().next() else {
        return Ok(None);
    };
    small_record(&key, CHECKPOINTS_FORMAT, &value).map(Some)
}

/// The state of a job.
pub async fn state(store: &dyn CoordinationStore, job: JobId) -> anyhow::Result<pb::JobState> {
    let key = Key::new(kinds::STATES, Name::new(job.to_string())?);
    let found = store.get(std::slice::from_ref(&key)).await?;
    let value = found.into_iter().flatten().next();
    let value = value.with_context(|| format!("there is no {key}"))?;
    small_record(&key, STATES_FORMAT, &value)
}

/// Replaces the value of an item as if the leader had written it. The leader notices this at its next
/// write, and its term ends.
pub async fn damage(store: &dyn CoordinationStore, key: &Key, value: &[u8]) -> anyhow::Result<()> {
    for _ in 0..DAMAGE_TRIES {
        let guard = store.guard().await?;
        let (epoch, token, incarnation) = guard.epoch.clone().context("there was no leader yet")?;
        let request = CommitRequest {
            fence: Fence {
                epoch,
                token,
                incarnation,
            },
            after: guard.change,
            writes: vec![Write::Put {
                key: key.clone(),
                value: Bytes::copy_from_slice(value),
            }],
        };
        match store.commit(&request).await? {
            CommitReply::Applied => return Ok(()),
            // The leader committed in the meantime.
            CommitReply::Refused(_) => {}
        }
    }
    bail!("{key} could not be replaced in {DAMAGE_TRIES} tries")
}
