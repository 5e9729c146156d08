//! The record of a job's checkpoints, looked at from outside between faults: numbers and `floor` never fall (K2, K15),
//! and each object that a retained checkpoint names exists as it was written (K5).

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use tanist_chaos::dump::checkpoints;
use tanist_chaos::{Cluster, wait_for};
use tanist_proto::id::JobId;
use tanist_proto::manifest;
use tanist_proto::v1::stored_manifest::Place;
use tanist_proto::v1::{
    CheckpointManifest, JobCheckpoints, OperatorState, SourcePosition, StateSegment, StoredManifest,
};
use xxhash_rust::xxh3::xxh3_64;

use crate::support::BOUND;

/// The record of one job, as it was last seen.
#[derive(Debug)]
pub(crate) struct CheckpointRecord {
    job: JobId,
    seen: Option<JobCheckpoints>,
    /// Number of objects' ranges that were compared with their checksums.
    pub(crate) compared: usize,
}

/// A range of bytes of an object that a manifest names.
#[derive(Debug)]
struct Range<'m> {
    object: &'m str,
    offset: u64,
    length: u64,
    checksum: u64,
}

impl CheckpointRecord {
    pub(crate) fn new(job: JobId) -> CheckpointRecord {
        CheckpointRecord {
            job,
            seen: None,
            compared: 0,
        }
    }

    /// Reads the record, and checks it against the last one and the storage. The job runs meanwhile: what a checkpoint
    /// named that is not retained any more may be gone.
    pub(crate) async fn look(&mut self, cluster: &Cluster) -> anyhow::Result<()> {
        let Some(record) = self.read(cluster).await? else {
            return Ok(());
        };
        if let Some(before) = self.seen.replace(record.clone()) {
            check_succession(&before, &record)?;
        }
        for checkpoint in &record.retained {
            let number = checkpoint.number;
            ensure!(
                number < record.next,
                "{number} was not given out: {record:?}"
            );
            let checked = self.check_objects(cluster, checkpoint.manifest.as_ref());
            let Err(missing) = checked else { continue };
            let now = self.read(cluster).await?;
            let is_retained = |now: &JobCheckpoints| {
                let mut numbers = now.retained.iter().map(|it| it.number);
                numbers.any(|retained| retained == number)
            };
            ensure!(
                !now.as_ref().is_some_and(is_retained),
                "checkpoint {number} is retained, but {missing:#}"
            );
        }
        Ok(())
    }

    async fn read(&self, cluster: &Cluster) -> anyhow::Result<Option<JobCheckpoints>> {
        // The store may just have been started again.
        wait_for("the record of checkpoints", BOUND, async || {
            checkpoints(&*cluster.records().await?, self.job).await
        })
        .await
    }

    fn check_objects(
        &mut self,
        cluster: &Cluster,
        stored: Option<&StoredManifest>,
    ) -> anyhow::Result<()> {
        let objects = cluster.objects(&format!("/{}/", self.job))?;
        let objects = objects.into_iter().filter_map(|path| {
            let name = path.file_name()?.to_str()?.to_owned();
            Some((name, path))
        });
        let objects: BTreeMap<String, PathBuf> = objects.collect();
        let read = |name: &str| -> anyhow::Result<Vec<u8>> {
            let path = objects.get(name).with_context(|| format!("no {name}"))?;
            Ok(std::fs::read(path)?)
        };
        let bytes = match stored.and_then(|it| it.place.as_ref()) {
            Some(Place::Inline(bytes)) => bytes.clone(),
            Some(Place::Object(object)) => read(&object.name)?,
            None => anyhow::bail!("it has no manifest"),
        };
        let manifest = manifest::decode(&bytes)?;
        for range in ranges(&manifest) {
            let content = read(range.object)?;
            let start = usize::try_from(range.offset)?;
            let end = start + usize::try_from(range.length)?;
            let found = content.get(start..end).map(xxh3_64);
            ensure!(found == Some(range.checksum), "{range:?} is {found:?}");
            self.compared += 1;
        }
        Ok(())
    }
}

/// Checks a record against an earlier one of the same job.
fn check_succession(before: &JobCheckpoints, after: &JobCheckpoints) -> anyhow::Result<()> {
    ensure!(after.next >= before.next, "{after:?} follows {before:?}");
    ensure!(after.floor >= before.floor, "{after:?} follows {before:?}");
    let numbers = |record: &JobCheckpoints| -> Vec<u64> {
        record.retained.iter().map(|it| it.number).collect()
    };
    let retained = numbers(after);
    ensure!(retained.is_sorted_by(|a, b| a < b), "{after:?}");
    // One that is new has a number that was not given out then.
    let known = numbers(before);
    let newest = known.last().copied().unwrap_or_default();
    let older = retained.iter().filter(|number| **number <= newest);
    for number in older {
        ensure!(known.contains(number), "{number} came back: {after:?}");
    }
    Ok(())
}

/// Everything that a manifest says about objects.
fn ranges(manifest: &CheckpointManifest) -> Vec<Range<'_>> {
    let subtasks = manifest.regions.iter().flat_map(|it| &it.subtasks);
    let mut ranges = Vec::new();
    for subtask in subtasks {
        let of_positions = subtask
            .positions
            .iter()
            .map(|it: &SourcePosition| &it.place);
        let of_operators = subtask.operators.iter().map(|it: &OperatorState| &it.place);
        let places = of_positions.chain(of_operators).flatten();
        ranges.extend(places.map(|place| Range {
            object: &place.object,
            offset: place.offset,
            length: place.length,
            checksum: place.checksum,
        }));
        let segments = subtask.segments.iter().chain(&subtask.channels);
        let in_objects = segments.filter(|it: &&StateSegment| !it.object.is_empty());
        ranges.extend(in_objects.map(|segment| Range {
            object: &segment.object,
            offset: segment.offset,
            length: segment.length,
            checksum: segment.checksum,
        }));
    }
    ranges
}

#[test]
fn numbers_that_fall_or_come_back_are_found() {
    let record = |next, floor, retained: &[u64]| JobCheckpoints {
        next,
        floor,
        retained: retained
            .iter()
            .map(|number| tanist_proto::v1::CompletedCheckpoint {
                number: *number,
                ..Default::default()
            })
            .collect(),
        ..JobCheckpoints::default()
    };
    let before = record(9, 4, &[5, 7]);
    for right in [&before, &record(9, 4, &[7]), &record(12, 8, &[7, 9])] {
        assert!(check_succession(&before, right).is_ok(), "{right:?}");
    }
    let wrong = [
        record(8, 4, &[5, 7]),
        record(9, 3, &[5, 7]),
        record(9, 4, &[6, 7]),
        record(9, 4, &[7, 5]),
    ];
    for wrong in wrong {
        assert!(check_succession(&before, &wrong).is_err(), "{wrong:?}");
    }
}
