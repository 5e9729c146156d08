//! A file sink that commits with checkpoints: alone, and with the JobMaster that commits for it.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use tanist_dataflow::testing::guard_of_ended;
use tanist_model::OperatorSpec;
use tanist_proto::id::JobId;
use tanist_proto::v1::{
    CheckpointBarrier, CheckpointCommittable, JobGraph, JobVertex, Operator as GraphOperator,
    SubtaskSnapshot,
};

use super::*;
use crate::testing::{context, texts};

const HOUR: Duration = Duration::from_secs(3600);

/// A context in which checkpoints are taken.
pub(super) fn checkpointed(restored_from: u64) -> OperatorContext {
    OperatorContext {
        takes_checkpoints: true,
        restored_from,
        ..context(2, 4)
    }
}

pub(super) fn rolling(directory: &Path, size: u64, interval: Duration) -> operators::FileSink {
    let spec = operators::FileSink::new(directory.to_string_lossy());
    let spec = spec.committing(Commit::Checkpoint);
    spec.rolling(size, interval)
}

pub(super) fn opened(
    spec: &operators::FileSink,
    context: &OperatorContext,
    restored: Option<&SubtaskSnapshot>,
) -> Result<FileSink, OperatorError> {
    let mut sink = FileSink::new(spec, context);
    if let Some(snapshot) = restored {
        sink.restore(&Restored::of("out", snapshot))?;
    }
    sink.open()?;
    Ok(sink)
}

pub(super) fn write(sink: &mut FileSink, word: &str) {
    let written = sink.process(texts("word", &[word]), &mut Output::default());
    written.expect("written");
}

pub(super) fn barrier(number: u64, newest: u64) -> CheckpointBarrier {
    CheckpointBarrier {
        number,
        newest,
        ..CheckpointBarrier::default()
    }
}

pub(super) fn saved(sink: &mut FileSink, barrier: CheckpointBarrier) -> SubtaskSnapshot {
    let mut snapshot = Snapshot::of(barrier);
    sink.snapshot(&mut snapshot).expect("saved");
    let mut subtask = SubtaskSnapshot::default();
    snapshot.add_to(&mut subtask, "out").expect("encoded");
    subtask
}

pub(super) fn ended(sink: &mut FileSink) -> Vec<CheckpointCommittable> {
    let output = sink.prepare_commit().expect("sinks commit")();
    let mut output = output.expect("prepared");
    assert!(output.committables.is_empty());
    // As the task does.
    for committable in &mut output.checkpoint_committables {
        "out".clone_into(&mut committable.uid);
    }
    output.checkpoint_committables
}

/// The names with which parts become visible, and their content.
fn parts(committables: &[CheckpointCommittable]) -> Vec<(String, String)> {
    let parts = sink::decoded(committables).expect("of a file sink");
    let part = |part: Committable| {
        let name = Path::new(&part.final_path).file_name().expect("a file");
        let content = fs::read_to_string(&part.pending_path).expect("pending");
        (name.to_string_lossy().into_owned(), content)
    };
    parts.into_iter().map(part).collect()
}

/// What [`parts`] of the job of these tests returns.
fn named<const N: usize>(parts: [(&str, &str); N]) -> Vec<(String, String)> {
    let job = context(2, 4).job;
    let part =
        |(number, content): (&str, &str)| (format!("part-{job}-2-{number}"), content.to_owned());
    parts.map(part).to_vec()
}

#[test]
fn a_complete_part_is_named_until_a_snapshot_that_has_it_is_durable() {
    let directory = tempfile::tempdir().expect("directory");
    let spec = rolling(directory.path(), 4, HOUR);
    let mut sink = opened(&spec, &checkpointed(0), None).expect("open");
    assert_eq!(
        parts(&saved(&mut sink, barrier(1, 0)).committables),
        named([])
    );
    write(&mut sink, "a");
    let open = saved(&mut sink, barrier(2, 1));
    assert_eq!(parts(&open.committables), named([]));
    assert_eq!(open.files.len(), 1);
    write(&mut sink, "b");
    let first = saved(&mut sink, barrier(3, 2));
    assert_eq!(parts(&first.committables), named([("3", "a\nb\n")]));
    assert!(first.files.is_empty(), "its committable names it");
    // Number 3 is aborted: the same part is named again.
    write(&mut sink, "cccc");
    let second = saved(&mut sink, barrier(4, 2));
    let both = named([("3", "a\nb\n"), ("4", "cccc\n")]);
    assert_eq!(parts(&second.committables), both);
    assert_eq!(second.committables[0], first.committables[0]);
    // Number 4 is durable.
    write(&mut sink, "d");
    let third = saved(&mut sink, barrier(5, 4));
    assert_eq!(parts(&third.committables), named([]));
    write(&mut sink, "eeee");
    saved(&mut sink, barrier(6, 5));
    write(&mut sink, "f");
    let last = named([("6", "d\neeee\n"), ("end-6-1", "f\n")]);
    assert_eq!(parts(&ended(&mut sink)), last);
}

/// From the checkpoint of an ended job, whose cleanup comes before or after the other job begins.
#[test]
fn a_job_that_begins_from_a_checkpoint_goes_on_with_the_part_that_was_open() {
    for is_cleaned_first in [true, false] {
        let directory = tempfile::tempdir().expect("directory");
        let spec = rolling(directory.path(), 1_000, HOUR);
        let first = checkpointed(0);
        let mut sink = opened(&spec, &first, None).expect("open");
        write(&mut sink, "a");
        let snapshot = saved(&mut sink, barrier(3, 0));
        write(&mut sink, "not in the checkpoint");
        drop(sink);
        let kept = sink::KeptFiles {
            paths: snapshot.files.iter().cloned().collect(),
            has_uncommitted: false,
        };
        let clean = |kept: &sink::KeptFiles| {
            let cleaned = sink::cleanup_except(directory.path(), (first.job, ""), kept);
            cleaned.expect("cleaned up");
        };
        if is_cleaned_first {
            clean(&kept);
        }
        let second = OperatorContext {
            job: JobId::from_bits(0xB),
            ..checkpointed(3)
        };
        let heir = (second.job, "");
        let directories = [directory.path().to_owned()];
        let given = sink::hand_over(&snapshot.files, heir, &directories, &|| true);
        assert_eq!(given.expect("handed over").len(), 1);
        clean(&sink::KeptFiles::default());
        // It is restored twice, from the same snapshot.
        for _ in 0..2 {
            let mut sink = opened(&spec, &second, Some(&snapshot)).expect("open");
            write(&mut sink, "b");
            let parts = parts(&ended(&mut sink));
            let content: Vec<&str> = parts.iter().map(|it| &*it.1).collect();
            assert_eq!(content, ["a\nb\n"]);
        }
    }
}

#[test]
fn a_sink_without_records_names_nothing() {
    let directory = tempfile::tempdir().expect("directory");
    let spec = rolling(directory.path(), 1, Duration::ZERO);
    let mut sink = opened(&spec, &checkpointed(0), None).expect("open");
    saved(&mut sink, barrier(1, 0));
    assert!(ended(&mut sink).is_empty());
    drop(sink);
    sink::cleanup(directory.path(), checkpointed(0).job, "").expect("cleaned up");
    let left = fs::read_dir(directory.path()).expect("directory").count();
    assert_eq!(left, 0);
}

#[tokio::test(start_paused = true)]
async fn a_part_is_complete_at_its_age_which_a_restore_does_not_change() {
    let directory = tempfile::tempdir().expect("directory");
    let spec = rolling(directory.path(), 1000, Duration::from_secs(60));
    let mut sink = opened(&spec, &checkpointed(0), None).expect("open");
    tokio::time::advance(HOUR).await;
    write(&mut sink, "a");
    tokio::time::advance(Duration::from_secs(40)).await;
    let snapshot = saved(&mut sink, barrier(1, 0));
    assert!(snapshot.committables.is_empty());
    let mut sink = opened(&spec, &checkpointed(1), Some(&snapshot)).expect("open");
    tokio::time::advance(Duration::from_secs(19)).await;
    assert!(saved(&mut sink, barrier(2, 1)).committables.is_empty());
    tokio::time::advance(Duration::from_secs(1)).await;
    let snapshot = saved(&mut sink, barrier(3, 2));
    assert_eq!(parts(&snapshot.committables), named([("3", "a\n")]));
}

#[test]
fn a_savepoint_completes_every_part() {
    let directory = tempfile::tempdir().expect("directory");
    let spec = rolling(directory.path(), 1000, HOUR);
    let mut sink = opened(&spec, &checkpointed(0), None).expect("open");
    write(&mut sink, "a");
    let savepoint = CheckpointBarrier {
        savepoint: true,
        ..barrier(1, 0)
    };
    let snapshot = saved(&mut sink, savepoint);
    assert_eq!(parts(&snapshot.committables), named([("1", "a\n")]));
    assert!(snapshot.files.is_empty());
}

#[test]
fn a_restored_attempt_copies_the_open_part_and_repeats_nothing() {
    let directory = tempfile::tempdir().expect("directory");
    let spec = rolling(directory.path(), 4, HOUR);
    let mut first = opened(&spec, &checkpointed(0), None).expect("open");
    write(&mut first, "aaaa");
    saved(&mut first, barrier(1, 0));
    write(&mut first, "b");
    let snapshot = saved(&mut first, barrier(2, 0));
    assert_eq!(snapshot.committables.len(), 1);
    let mut second = opened(&spec, &checkpointed(2), Some(&snapshot)).expect("open");
    write(&mut first, "zombie");
    saved(&mut first, barrier(3, 0));
    write(&mut second, "c");
    let next = saved(&mut second, barrier(4, 2));
    assert_eq!(parts(&next.committables), named([("4", "b\nc\n")]));
    // One that ends before it hears of any number repeats nothing either.
    let mut third = opened(&spec, &checkpointed(2), Some(&snapshot)).expect("open");
    assert_eq!(parts(&ended(&mut third)), named([("end-2-1", "b\n")]));
}

#[test]
fn a_subtask_takes_the_open_parts_of_several() {
    let directory = tempfile::tempdir().expect("directory");
    let spec = rolling(directory.path(), 1000, HOUR);
    let mut merged = SubtaskSnapshot::default();
    let mut former = Vec::new();
    for word in ["a", "b"] {
        let mut sink = opened(&spec, &checkpointed(0), None).expect("open");
        write(&mut sink, word);
        merged
            .operators
            .extend(saved(&mut sink, barrier(1, 0)).operators);
        former.push(sink);
    }
    let mut sink = opened(&spec, &checkpointed(1), Some(&merged)).expect("open");
    assert_eq!(parts(&ended(&mut sink)), named([("end-1-1", "a\nb\n")]));
}

#[test]
fn a_copy_stops_when_the_task_ends() {
    let directory = tempfile::tempdir().expect("directory");
    let spec = rolling(directory.path(), 1000, HOUR);
    let mut first = opened(&spec, &checkpointed(0), None).expect("open");
    write(&mut first, "a");
    let snapshot = saved(&mut first, barrier(1, 0));
    let context = OperatorContext {
        end_guard: guard_of_ended(),
        ..checkpointed(1)
    };
    let error = opened(&spec, &context, Some(&snapshot)).err();
    assert!(error.expect("stopped").to_string().contains("canceled"));
    let pending = directory
        .path()
        .join(".tanist")
        .join(context.job.to_string());
    let left = fs::read_dir(pending).expect("directory").count();
    assert_eq!(left, 1, "only what the snapshot names");
}

/// A graph with one source.
fn reading(source: impl Into<OperatorSpec>) -> Arc<JobGraph> {
    let operator = GraphOperator {
        spec: source.into().to_json(),
        ..GraphOperator::default()
    };
    let vertex = JobVertex {
        operators: vec![operator],
        ..JobVertex::default()
    };
    Arc::new(JobGraph {
        vertices: vec![vertex],
        ..JobGraph::default()
    })
}

#[test]
fn without_a_choice_a_job_whose_sources_end_commits_at_its_end() {
    let datagen = |count| operators::Datagen {
        rate: None,
        count,
        seed: 0,
        keys: 1,
    };
    let spec = operators::FileSink::new("/out");
    for (count, takes_checkpoints, with_checkpoints) in [
        (None, true, true),
        (None, false, false),
        (Some(1), true, false),
    ] {
        let context = OperatorContext {
            graph: reading(datagen(count)),
            takes_checkpoints,
            ..checkpointed(0)
        };
        let sink = FileSink::new(&spec, &context);
        assert_eq!(sink.roll.is_some(), with_checkpoints, "{count:?}");
        let chosen = spec.clone().committing(Commit::Checkpoint);
        let sink = FileSink::new(&chosen, &context);
        assert_eq!(sink.roll.is_some(), takes_checkpoints);
    }
}

#[test]
fn parts_of_another_job_are_in_the_way_unless_the_job_descends_from_it() {
    let directory = tempfile::tempdir().expect("directory");
    let spec = rolling(directory.path(), 1, HOUR);
    let of = |job: u128, restored_from: u64| OperatorContext {
        job: JobId::from_bits(job),
        ..checkpointed(restored_from)
    };
    let mut first = opened(&spec, &of(7, 0), None).expect("open");
    write(&mut first, "a");
    let snapshot = saved(&mut first, barrier(1, 0));
    let committed = sink::decoded(&snapshot.committables).expect("decoded");
    sink::commit_checkpoint_while(1, &committed, &|| true).expect("committed");
    let error = opened(&spec, &of(8, 0), None).err().expect("refused");
    assert!(error.is_unrecoverable(), "{error}");
    // A descendant would wait for the cleanup after its ancestor.
    let ends = |job: u128| {
        let cleaned = sink::cleanup(directory.path(), JobId::from_bits(job), "");
        cleaned.expect("cleaned up");
    };
    ends(7);
    let mut second = opened(&spec, &of(8, 1), Some(&snapshot)).expect("its savepoint");
    let descended = saved(&mut second, barrier(2, 1));
    ends(8);
    opened(&spec, &of(9, 2), Some(&descended)).expect("and that of the second");
    let nothing = SubtaskSnapshot::default();
    let mut added = opened(&spec, &of(9, 2), Some(&nothing)).expect("it did not exist");
    // It knows no more than that when its job is gone.
    let of_added = saved(&mut added, barrier(3, 2));
    opened(&spec, &of(10, 3), Some(&of_added)).expect("others had checked it");
    let own = saved(
        &mut opened(&spec, &of(9, 2), Some(&descended)).expect("it knows"),
        barrier(3, 2),
    );
    let mut merged = own.clone();
    merged.operators.extend(of_added.operators);
    ends(9);
    opened(&spec, &of(10, 3), Some(&merged)).expect("one of both knows");
    let error = opened(&spec, &of(11, 0), None).err().expect("another job");
    assert!(error.is_unrecoverable(), "{error}");
    // The job itself is restarted, but does not begin again.
    opened(&spec, &of(7, 1), Some(&snapshot)).expect("restarted");
    opened(&spec, &of(7, 0), None)
        .err()
        .expect("another run under its id");
}
