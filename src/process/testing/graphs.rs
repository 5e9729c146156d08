//! The jobs of these tests.

use std::time::Duration;

use tanist_compile::{Checkpoints, CompileOptions, JobBuilder};
use tanist_proto::id::JobId;
use tanist_proto::resources::Resources;
use tanist_proto::v1 as pb;

/// Two vertices with this parallelism in one region: at parallelism 2, four tasks in two slots.
pub(crate) fn graph(job: JobId, parallelism: u32) -> pb::JobGraph {
    let options = CompileOptions {
        job_id: job,
        ..CompileOptions::default()
    };
    let stream = JobBuilder::new("stream")
        .parallelism(parallelism)
        .datagen("numbers", Some(10), None, 1, 10)
        .key_by("by-key", ["key"])
        .count("counts")
        .discard("out");
    stream.build().compile(&options).expect("a valid job")
}

/// Two vertices in one region, with separate slots of one core and of half a core: at parallelism 1, two tasks
/// in two slots.
pub(crate) fn graph_with_resources(job: JobId, parallelism: u32) -> pb::JobGraph {
    let options = CompileOptions {
        job_id: job,
        ..CompileOptions::default()
    };
    let cores = |cores: &str| Resources {
        cpu: cores.parse().expect("cores"),
        ..Resources::ZERO
    };
    let stream = JobBuilder::new("resources")
        .parallelism(parallelism)
        .slot_sharing_group("counting", cores("0.5"))
        .datagen("numbers", Some(10), None, 1, 10)
        .with_resources(cores("1"))
        .key_by("by-key", ["key"])
        .count("counts")
        .in_slot_sharing_group("counting")
        .discard("out");
    stream.build().compile(&options).expect("a valid job")
}

/// A source and its reader in one region, each with a slot that takes a whole TaskManager of two cores.
pub(crate) fn graph_on_two_task_managers(job: JobId) -> pb::JobGraph {
    let options = CompileOptions {
        job_id: job,
        ..CompileOptions::default()
    };
    let whole = Resources {
        cpu: "2".parse().expect("cores"),
        ..Resources::ZERO
    };
    let stream = JobBuilder::new("two-task-managers")
        .parallelism(1)
        .slot_sharing_group("counting", whole.clone())
        .datagen("numbers", Some(10), None, 1, 10)
        .with_resources(whole)
        .key_by("by-key", ["key"])
        .count("counts")
        .in_slot_sharing_group("counting")
        .discard("out");
    stream.build().compile(&options).expect("a valid job")
}

/// Two unconnected vertices: a region each, which share slots.
pub(crate) fn graph_of_regions(job: JobId, parallelism: u32) -> pb::JobGraph {
    let options = CompileOptions {
        job_id: job,
        ..CompileOptions::default()
    };
    let stream = JobBuilder::new("regions")
        .parallelism(parallelism)
        .datagen("numbers", Some(10), None, 1, 10)
        .discard("out")
        .datagen("others", Some(10), None, 1, 10)
        .discard("there");
    stream.build().compile(&options).expect("a valid job")
}

/// Two vertices in one region, and a third one whose subtasks are a region each, with a checkpoint a second: at
/// parallelism 2, six tasks in three regions.
pub(crate) fn graph_with_checkpoints(job: JobId, parallelism: u32) -> pb::JobGraph {
    let options = CompileOptions {
        job_id: job,
        ..CompileOptions::default()
    };
    let stream = JobBuilder::new("checkpoints")
        .parallelism(parallelism)
        .checkpoints(Checkpoints::every(Duration::from_secs(1)))
        .datagen("flapping", None, None, 1, 10)
        .key_by("by-key", ["key"])
        .count("counts")
        .discard("out")
        .datagen("steady", None, None, 1, 10)
        .discard("there");
    stream.build().compile(&options).expect("a valid job")
}

/// Two vertices in one region, the first of which reads files: at parallelism 2, four tasks in two slots.
pub(crate) fn graph_of_files(job: JobId, parallelism: u32, path: &str) -> pb::JobGraph {
    let options = CompileOptions {
        job_id: job,
        ..CompileOptions::default()
    };
    let stream = JobBuilder::new("files")
        .parallelism(parallelism)
        .file_source("lines", [path])
        .key_by("by-line", ["line"])
        .count("counts")
        .discard("out");
    stream.build().compile(&options).expect("a valid job")
}
