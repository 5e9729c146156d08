//! Applications: programs that bring their own jobs, with a cluster of their own that ends with them.
//!
//! A binary that ends in [`ApplicationMain::main`] is the JobManager, the TaskManager and the client of its
//! cluster, by subcommand. The program itself runs in the leading JobManager, once per term: it builds its jobs
//! and waits for them. After a failover it runs again, and its submissions match the existing jobs: none is
//! submitted twice.
//!
//! [`Application::program`] and [`Application::job`] register its operators and committers in tables of the process,
//! by name: each process of the cluster must be this binary, or it refuses the graphs that name them.
//!
//! ```no_run
//! use tanist::application::Application;
//! use tanist::job::JobBuilder;
//!
//! fn main() -> std::process::ExitCode {
//!     Application::new("numbers")
//!         .job(|context| {
//!             let output = context.parameter("output").ok_or("give --param output=DIRECTORY")?;
//!             Ok(JobBuilder::new("numbers")
//!                 .datagen("numbers", None, Some(1000), 0, 10)
//!                 .file_sink("out", output)
//!                 .build())
//!         })
//!         .main()
//! }
//! ```

use std::sync::Arc;

use serde_json::Value;
use tanist_cli as cli;
use tanist_compile::StreamGraph;
use tanist_operators::committers::{self, Committer};
use tanist_operators::custom::{CustomOperator, register};
use tanist_process::ApplicationSetup;
use tanist_telemetry::ExitCode;

pub use tanist_dataflow::{
    BroadcastState, EndOfInput, EntryKey, EventTimers, KeyColumns, KeyGroups, KeyedState,
    KeyedStates, Keys, ListState, MapState, NamespaceMut, NoKeyColumn, Operator, OperatorContext,
    OperatorError, OperatorList, Output, PrepareCommit, ProcessingTimers, Restored, SavedEntry,
    SinkOutput, Snapshot, Source, SourceState, StateError, StateKey, StateProblem, StateTable,
    StateValue, TakenEntries, TimeSignal, ValueState,
};
pub use tanist_leadership::application::{
    ApplicationError, ApplicationJob, ApplicationRecord, ApplicationStatus, JobOutcome,
    ProgramError, SubmittedJobs, job_id_of,
};
pub use tanist_model::CommitError;
pub use tanist_operators::become_child_if_asked;
pub use tanist_operators::committers::{CommitRequest, OutputToCommit};
pub use tanist_process::ApplicationContext;

/// Builder of an application: has its name; its program or job is set next.
#[derive(Debug, Clone)]
pub struct Application {
    name: String,
    operators: Vec<(String, CustomOperator)>,
    committers: Vec<(String, Committer)>,
}

impl Application {
    /// Creates an application with this name, which must be the same in every process of its cluster.
    pub fn new(name: impl Into<String>) -> Application {
        Application {
            name: name.into(),
            operators: Vec::new(),
            committers: Vec::new(),
        }
    }

    /// Registers an operator or sink that its graphs name:
    /// [`CustomSpec::operator`](tanist_model::CustomSpec::operator) or
    /// [`CustomSpec::sink`](tanist_model::CustomSpec::sink). `make` creates one for each subtask from its config.
    #[must_use]
    pub fn operator<M>(mut self, name: impl Into<String>, make: M) -> Application
    where
        M: Fn(&Value, &OperatorContext) -> Result<Box<dyn Operator>, OperatorError>
            + Send
            + Sync
            + 'static,
    {
        let operator = CustomOperator::Operator(Arc::new(make));
        self.operators.push((name.into(), operator));
        self
    }

    /// Registers a source: [`CustomSpec::source`](tanist_model::CustomSpec::source).
    #[must_use]
    pub fn source<M>(mut self, name: impl Into<String>, make: M) -> Application
    where
        M: Fn(&Value, &OperatorContext) -> Result<Box<dyn Source>, OperatorError>
            + Send
            + Sync
            + 'static,
    {
        let operator = CustomOperator::Source(Arc::new(make));
        self.operators.push((name.into(), operator));
        self
    }

    /// Registers what makes the output of a kind visible that sinks of the application have prepared. The leading
    /// JobManager calls it with what a durable checkpoint lists, and again until it succeeds: also with what it has
    /// committed already, and perhaps beside a former leader that does the same. So it must be idempotent. A job has
    /// one commit at a time, and no later one begins before it returns.
    #[must_use]
    pub fn committer<C, F>(mut self, kind: impl Into<String>, commit: C) -> Application
    where
        C: Fn(CommitRequest) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), CommitError>> + Send + 'static,
    {
        let committer = Committer::new(commit);
        self.committers.push((kind.into(), committer));
        self
    }

    /// Sets the program of the application. It may run more than once: in each JobManager that becomes the
    /// leader. It must build the same jobs in the same order each time, and its other effects must tolerate
    /// repetition.
    pub fn program<P, F>(self, program: P) -> ApplicationMain
    where
        P: Fn(ApplicationContext) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), ProgramError>> + Send + 'static,
    {
        for (name, operator) in self.operators {
            register(name, operator);
        }
        for (kind, committer) in self.committers {
            committers::register(kind, committer);
        }
        ApplicationMain {
            setup: ApplicationSetup::new(self.name, program),
        }
    }

    /// Makes this one job the application.
    pub fn job<B>(self, build: B) -> ApplicationMain
    where
        B: Fn(&ApplicationContext) -> Result<StreamGraph, ProgramError> + Send + Sync + 'static,
    {
        self.program(move |context| {
            let graph = build(&context);
            async move {
                context.execute(graph?).await?;
                Ok(())
            }
        })
    }
}

/// A complete application.
#[derive(Debug, Clone)]
pub struct ApplicationMain {
    setup: ApplicationSetup,
}

impl ApplicationMain {
    /// Runs the subcommand of this process's arguments. Call it as the last expression of `main`.
    pub fn main(self) -> std::process::ExitCode {
        self.run(std::env::args_os()).into()
    }

    /// The same with these arguments, starting with the program's name.
    pub fn run(self, arguments: impl IntoIterator<Item = std::ffi::OsString>) -> ExitCode {
        cli::application::run(self.setup, arguments)
    }

    /// Returns the setup for JobManagers that are started without a command line.
    pub fn setup(&self) -> &ApplicationSetup {
        &self.setup
    }
}
