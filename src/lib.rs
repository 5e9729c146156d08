//! Tanist: a cluster runtime for job graphs whose control plane does not go down.
//!
//! This crate is what programs use: it describes jobs ([`job`]), submits them ([`client`]), and builds applications
//! that bring their own cluster ([`application`]). The runtime itself is in crates of its own, one per layer, in the
//! folders below `src/`; the file `ARCHITECTURE.md` has the picture.

// Lets examples be compiled as tests of this crate, too.
#[cfg(test)]
extern crate self as tanist;

pub mod application;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

/// The client of a cluster: finds the leader, and submits jobs and asks about them over a failover.
///
/// ```no_run
/// use tanist::client::ClusterClient;
/// use tanist::config::{Configuration, LoadOptions};
/// use tanist::job::JobBuilder;
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let configuration = Configuration::load(LoadOptions::from_environment())?;
/// let cluster = ClusterClient::connect(&configuration).await?;
/// let job = JobBuilder::new("numbers")
///     .datagen("numbers", None, Some(100), 0, 10)
///     .file_sink("out", "numbers")
///     .build();
/// let execution = cluster.execute_async(job).await?;
/// println!("job {} is {:?}", execution.id(), execution.status().await?);
/// let result = execution.finished().await?;
/// println!("it took {:?}", result.duration);
/// # Ok(())
/// # }
/// ```
pub use tanist_client as client;
pub use tanist_config as config;

/// Jobs: the builder, job files, and the steps that both consist of.
///
/// ```
/// use tanist::job::{CompileOptions, JobBuilder};
///
/// let graph = JobBuilder::new("numbers")
///     .datagen("numbers", None, Some(1000), 0, 10)
///     .file_sink("out", "/data/out")
///     .build()
///     .compile(&CompileOptions::default())?;
/// assert_eq!(graph.vertices.len(), 1);
/// # Ok::<(), tanist::job::InvalidJob>(())
/// ```
///
/// One that counts words:
///
/// ```
/// use tanist::job::{CompileOptions, JobBuilder};
///
/// let job = JobBuilder::new("wordcount")
///     .file_source("lines", ["books/*.txt"])
///     .split_words("words", "line")
///     .key_by("by-word", ["word"])
///     .count("counts")
///     .file_sink("out", "counts")
///     .build();
/// let graph = job.compile(&CompileOptions::default())?;
/// assert_eq!(graph.vertices.len(), 2);
/// # Ok::<(), tanist::job::InvalidJob>(())
/// ```
pub mod job {
    pub use tanist_compile::{
        ChainingOptions, Checkpoints, CompileOptions, DEFAULT_SLOT_SHARING_GROUP, Exchange,
        JobBuilder, JobFile, JobFileError, MAX_CHANNELS, MAX_SUBTASKS, Partition, Plan, Steps,
        StreamGraph, StreamNode, compile,
    };
    pub use tanist_model::{
        ArtifactSpec, Column, ColumnType, Comparison, CustomRedistribution, CustomRole, CustomSpec,
        Emit, ExecColumn, ExecFormat, ExecLimits, ExecSpec, InvalidJob, InvalidJobGraph,
        NamedExpression, OperatorSpec, Position, Problem, Schema, Transformation, operators,
        operators::Windows,
    };
}

/// The guides whose examples are compiled with those above.
#[cfg(doctest)]
mod guides {
    #[doc = include_str!("../docs/guides/applications.md")]
    mod applications {}
}
