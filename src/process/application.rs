//! An application as its process knows it: its program with its parameters, and how the graphs of the program are
//! compiled.
//!
//! It owns no state of the cluster: the record, the jobs and the end of an application belong to
//! [`tanist_leadership::application`], which runs the program in each term.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use tanist_compile::{CompileOptions, StreamGraph};
use tanist_leadership::application::{
    Application, ApplicationError, ApplicationJob, JobOutcome, ProgramError, ProgramRun,
};
use tanist_proto::v1 as pb;

type Program =
    dyn Fn(ApplicationContext) -> BoxFuture<'static, Result<(), ProgramError>> + Send + Sync;

/// An application, as its JobManagers know it. Cheap to clone.
#[derive(Clone)]
pub struct ApplicationSetup {
    name: String,
    identity: String,
    program: Arc<Program>,
    parameters: Arc<BTreeMap<String, String>>,
    compile: CompileOptions,
    restore: Option<pb::RestoreRequest>,
}

impl ApplicationSetup {
    /// The application of this name: its program runs in the leading JobManager, once per term.
    pub fn new<P, F>(name: impl Into<String>, program: P) -> ApplicationSetup
    where
        P: Fn(ApplicationContext) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), ProgramError>> + Send + 'static,
    {
        ApplicationSetup {
            name: name.into(),
            identity: String::new(),
            program: Arc::new(move |context| Box::pin(program(context))),
            parameters: Arc::default(),
            compile: CompileOptions::default(),
            restore: None,
        }
    }

    /// Sets the parameters that the program receives.
    #[must_use]
    pub fn with_parameters(mut self, parameters: BTreeMap<String, String>) -> ApplicationSetup {
        self.parameters = Arc::new(parameters);
        self
    }

    /// Sets an identity, for two different applications that share a name and a cluster id. The record of an
    /// ended one is then not taken for the other's result; starting the other is refused. If either has none, the
    /// name decides.
    #[must_use]
    pub fn identified_by(mut self, identity: impl Into<String>) -> ApplicationSetup {
        self.identity = identity.into();
        self
    }

    /// Sets how its graphs are compiled; the job id in the options is ignored.
    #[must_use]
    pub fn compiled_with(mut self, options: CompileOptions) -> ApplicationSetup {
        self.compile = options;
        self
    }

    /// Sets the savepoint from which a job begins whose submission names none; `None`: it begins from the start.
    #[must_use]
    pub fn beginning_from(mut self, restore: Option<pb::RestoreRequest>) -> ApplicationSetup {
        self.restore = restore;
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What a term runs.
    pub(super) fn application(&self) -> Application {
        let setup = self.clone();
        let program = move |run| {
            (setup.program)(ApplicationContext {
                run,
                parameters: setup.parameters.clone(),
                compile: setup.compile.clone(),
                restore: setup.restore.clone(),
            })
        };
        Application::new(self.name.as_str(), program).identified_by(self.identity.as_str())
    }
}

impl fmt::Debug for ApplicationSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApplicationSetup")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Through this an application's program submits jobs and waits for them. A program that runs again, in another
/// process, gets the jobs that an earlier run submitted. Cheap to clone.
///
/// Submissions are numbered in the order in which [`execute`](Self::execute),
/// [`execute_async`](Self::execute_async) and [`execute_graph`](Self::execute_graph) are called, whenever their
/// futures are polled. The program must make the same submissions in the same order each time; otherwise it ends
/// with [`ApplicationError::AnotherGraph`].
#[derive(Debug, Clone)]
pub struct ApplicationContext {
    run: ProgramRun,
    parameters: Arc<BTreeMap<String, String>>,
    compile: CompileOptions,
    restore: Option<pb::RestoreRequest>,
}

impl ApplicationContext {
    /// The cluster of this application.
    pub fn cluster_id(&self) -> &str {
        self.run.cluster_id()
    }

    /// The parameters with which the JobManager was started: `--param NAME=VALUE`.
    pub fn parameters(&self) -> &BTreeMap<String, String> {
        &self.parameters
    }

    /// One of the parameters.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }

    /// Submits a job and waits until it has finished. An error if it does not: the application then ends as the
    /// job did, regardless of how the program handles the error.
    pub fn execute(
        &self,
        job: StreamGraph,
    ) -> impl Future<Output = Result<JobOutcome, ApplicationError>> + Send {
        let submitting = self.execute_async(job);
        async move { submitting.await?.finished().await }
    }

    /// Submits a job. It is in the store when this returns.
    pub fn execute_async(
        &self,
        job: StreamGraph,
    ) -> impl Future<Output = Result<ApplicationJob, ApplicationError>> + Send {
        let compile = self.compile.clone();
        let compile = move |job_id| job.compile(&CompileOptions { job_id, ..compile });
        self.run.submit_compiled(compile, self.restore.clone())
    }

    /// Submits a compiled graph; its job id is replaced.
    pub fn execute_graph(
        &self,
        graph: pb::JobGraph,
    ) -> impl Future<Output = Result<ApplicationJob, ApplicationError>> + Send {
        self.execute_graph_from(graph, None)
    }

    /// The same for a job that begins from a savepoint.
    pub fn execute_graph_from(
        &self,
        graph: pb::JobGraph,
        restore: Option<pb::RestoreRequest>,
    ) -> impl Future<Output = Result<ApplicationJob, ApplicationError>> + Send {
        self.run
            .submit_from(graph, restore.or_else(|| self.restore.clone()))
    }
}
