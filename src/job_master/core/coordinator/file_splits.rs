//! The coordinator of a file source: cuts files into splits, and assigns each to the first subtask that asks.
//! Pure.
//!
//! The files form one sequence of bytes. A split is a range of that sequence, so it may be part of one file or
//! contain many. The first free split is assigned next. A job that was started from the state of another one also has
//! splits that are neither free nor assigned: their records are in that state (`tanist_model::restore`).

use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use tanist_proto::v1 as pb;
use tanist_proto::v1::ask_coordinator_response::Answer;

use super::Taken;

/// Maximum total length, in bytes, of the names of all files that a job reads by splits. They are part of its
/// record.
pub(crate) const MOST_PATH_BYTES: usize = 512 * 1024;
/// Number of splits for each subtask if all are equally fast.
const SPLITS_PER_SUBTASK: u64 = 8;
/// Minimum size of a split in bytes, if there is still one for each subtask.
const SMALLEST: u64 = 4 * 1024;
/// Maximum size of a split in bytes, if `MOST_SPLITS` allows it.
const LARGEST: u64 = 64 * 1024 * 1024;
/// Maximum number of splits, or the number of subtasks if that is larger.
const MOST_SPLITS: u64 = 1024;

/// Cuts files into splits.
pub(crate) fn cut(files: Vec<(PathBuf, u64)>, parallelism: u32) -> pb::FileSplits {
    let parallelism = u64::from(parallelism.max(1));
    let total: u64 = files.iter().map(|(_, size)| size).sum();
    let wanted = total.div_ceil(parallelism * SPLITS_PER_SUBTASK);
    let for_each = total.div_ceil(parallelism);
    let fewest = total.div_ceil(MOST_SPLITS.max(parallelism));
    let size = wanted
        .max(SMALLEST.min(for_each))
        .min(LARGEST)
        .max(fewest)
        .max(1);
    let count = total.div_ceil(size);
    let ends = (1..=count).map(|number| {
        // Equal parts, so that the last split is not a small rest.
        let end = u128::from(total) * u128::from(number) / u128::from(count);
        u64::try_from(end).expect("at most the total")
    });
    let files = files.into_iter().map(|(path, size)| pb::SplitFile {
        path: path.into_os_string().into_vec(),
        size,
    });
    pb::FileSplits {
        ends: ends.collect(),
        files: files.collect(),
        assigned: Vec::new(),
        read: Vec::new(),
    }
}

/// Assigns the next free split to the subtask, if this is its next request.
pub(in crate::core) fn take(splits: &mut pb::FileSplits, subtask: u32, number: u64) -> Taken {
    let has = list_of(splits, subtask).len() as u64;
    if number == 0 || number > has + 1 {
        return Taken::OutOfTurn;
    }
    let free = match number <= has {
        true => None,
        false => first_free(splits),
    };
    let Some(split) = free else {
        return Taken::AsBefore;
    };
    let known = splits.assigned.iter().position(|it| it.subtask == subtask);
    let index = known.unwrap_or_else(|| {
        splits.assigned.push(pb::SubtaskSplits {
            subtask,
            splits: Vec::new(),
        });
        splits.assigned.len() - 1
    });
    splits.assigned[index].splits.push(split);
    Taken::Decided
}

/// The split that the subtask was assigned for this request, or that none is left.
pub(in crate::core) fn answer(
    splits: &pb::FileSplits,
    subtask: u32,
    number: u64,
) -> Option<Answer> {
    let list = list_of(splits, subtask);
    let index = usize::try_from(number.checked_sub(1)?).ok()?;
    if let Some(split) = list.get(index) {
        return Some(Answer::FileSplit(describe(splits, *split)));
    }
    (index == list.len() && first_free(splits).is_none()).then_some(Answer::Exhausted(pb::Ack {}))
}

/// The first split that is neither read nor assigned.
fn first_free(splits: &pb::FileSplits) -> Option<u32> {
    let mut free = vec![true; splits.ends.len()];
    let assigned = splits.assigned.iter().flat_map(|it| &it.splits);
    for split in assigned.chain(&splits.read) {
        if let Some(free) = free.get_mut(*split as usize) {
            *free = false;
        }
    }
    let first = free.iter().position(|free| *free);
    first.map(|first| u32::try_from(first).expect("splits are few"))
}

fn list_of(splits: &pb::FileSplits, subtask: u32) -> &[u32] {
    let mut lists = splits.assigned.iter();
    let list = lists.find(|it| it.subtask == subtask);
    list.map(|it| it.splits.as_slice()).unwrap_or_default()
}

/// The ranges of files in a split.
fn describe(splits: &pb::FileSplits, split: u32) -> pb::FileSplit {
    let index = split as usize;
    let from = match index.checked_sub(1) {
        Some(before) => splits.ends.get(before).copied().unwrap_or_default(),
        None => 0,
    };
    let to = splits.ends.get(index).copied().unwrap_or(from);
    let mut ranges = Vec::new();
    let mut first = 0;
    for file in &splits.files {
        let (start, end) = (from.max(first), to.min(first + file.size));
        if start < end {
            ranges.push(pb::FileRange {
                path: file.path.clone(),
                start: start - first,
                end: end - first,
                size: file.size,
            });
        }
        first += file.size;
    }
    pb::FileSplit { ranges }
}
