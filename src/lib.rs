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
pub mod job {
    pub use tanist_compile::*;
    pub use tanist_model::{
        ArtifactSpec, Column, ColumnType, Comparison, CustomRedistribution, CustomRole, CustomSpec,
        Emit, ExecColumn, ExecFormat, ExecLimits, ExecSpec, InvalidJob, InvalidJobGraph,
        NamedExpression, OperatorSpec, Position, Problem, Schema, Transformation, operators,
        operators::Windows,
    };
}
