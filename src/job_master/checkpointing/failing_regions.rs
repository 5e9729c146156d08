//! Regions whose checkpoints fail, for people: others of the same job may complete meanwhile. Owned by `history.rs`;
//! whether failures are tolerated is for the core to decide.
//!
//! Regions of the same vertices are one group. The first failure of a group is an event of the job, and so is the
//! checkpoint with which the last one of its failing regions is complete again.

use std::collections::{BTreeMap, BTreeSet};

use tanist_proto::v1 as pb;

use crate::core::JobMasterCore;
use crate::core::checkpoints::CheckpointCore;

/// Number of groups that an event names.
const NAMED: usize = 3;

/// Names of the vertices of a region.
type Vertices = Vec<String>;

/// The failures of a region since it was saved last.
#[derive(Debug)]
struct Failures {
    /// The number that failed last, and why.
    number: u64,
    reason: String,
    in_a_row: u64,
    since_ms: u64,
}

/// The regions whose last checkpoint failed; see the module.
#[derive(Debug, Default)]
pub(super) struct FailingRegions {
    groups: BTreeMap<Vertices, BTreeMap<usize, Failures>>,
}

impl FailingRegions {
    /// A number has failed at a region. True: it is the first failure of the group.
    pub(super) fn fail(
        &mut self,
        (region, vertices): (usize, &Vertices),
        (number, reason): (u64, &str),
        now_ms: u64,
    ) -> bool {
        let regions = self.groups.entry(vertices.clone()).or_default();
        let is_first = regions.is_empty();
        let failures = regions.entry(region).or_insert_with(|| Failures {
            number,
            reason: String::new(),
            in_a_row: 0,
            since_ms: now_ms,
        });
        failures.number = number;
        reason.clone_into(&mut failures.reason);
        failures.in_a_row += 1;
        is_first
    }

    /// Regions are saved; they are in order. Returns the groups in which no region fails any more, and the most
    /// failures in a row there.
    pub(super) fn complete(&mut self, saved: &[usize]) -> Vec<(Vertices, u64)> {
        self.remove(|region| saved.binary_search(&region).is_ok())
    }

    /// A region has finished: it takes no further checkpoints, so it does not fail any more.
    pub(super) fn finish(&mut self, region: usize) {
        self.remove(|it| it == region);
    }

    fn remove(&mut self, is_gone: impl Fn(usize) -> bool) -> Vec<(Vertices, u64)> {
        let mut recovered = Vec::new();
        self.groups.retain(|vertices, regions| {
            let mut most = 0;
            regions.retain(|region, failures| {
                let stays = !is_gone(*region);
                if !stays {
                    most = most.max(failures.in_a_row);
                }
                stays
            });
            if regions.is_empty() {
                recovered.push((vertices.clone(), most));
            }
            !regions.is_empty()
        });
        recovered
    }

    /// By vertices: the region that has failed most often in a row, and how many others fail.
    pub(super) fn described(&self) -> Vec<pb::FailingRegions> {
        let groups = self.groups.iter();
        let described = groups.filter_map(|(vertices, regions)| {
            let worst = regions.values().max_by_key(|it| it.in_a_row)?;
            Some(pb::FailingRegions {
                vertices: vertices.clone(),
                regions: u32::try_from(regions.len()).unwrap_or(u32::MAX),
                number: worst.number,
                reason: worst.reason.clone(),
                in_a_row: worst.in_a_row,
                since_ms: worst.since_ms,
            })
        });
        described.collect()
    }
}

/// Which part of a job these groups are, for an event: nothing if they are all of it.
pub(super) fn part_of(
    groups: &BTreeSet<Vertices>,
    core: &CheckpointCore,
    job: &JobMasterCore,
) -> String {
    let mut others = core.unfinished().map(|region| job.vertices_of(region));
    if others.all(|vertices| groups.contains(&vertices)) {
        return String::new();
    }
    let named = groups.iter().take(NAMED).map(|it| it.join(", "));
    let named = named.collect::<Vec<_>>().join("; ");
    match groups.len().saturating_sub(NAMED) {
        0 => format!(" of {named}"),
        more => format!(" of {named} and {more} others"),
    }
}
