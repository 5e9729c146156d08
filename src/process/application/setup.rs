//! What makes a JobManager an application's: its name and its program. And the end that a term decides for its process.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use futures::future::BoxFuture;

use super::context::ApplicationContext;
use crate::job::CompileOptions;
use crate::telemetry::ExitCode;

/// What a program fails with.
pub type ProgramError = Box<dyn std::error::Error + Send + Sync>;

type Program =
    dyn Fn(ApplicationContext) -> BoxFuture<'static, Result<(), ProgramError>> + Send + Sync;

/// An application, as its JobManagers know it. Cheap to clone.
#[derive(Clone)]
pub struct ApplicationSetup {
    pub(super) name: String,
    pub(super) identity: String,
    pub(super) program: Arc<Program>,
    pub(super) parameters: Arc<BTreeMap<String, String>>,
    pub(super) compile: CompileOptions,
}

impl ApplicationSetup {
    /// The application of this name: its program runs in the JobManager that leads, once a term.
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
        }
    }

    /// What the program is given beside its jobs.
    #[must_use]
    pub fn with_parameters(mut self, parameters: BTreeMap<String, String>) -> ApplicationSetup {
        self.parameters = Arc::new(parameters);
        self
    }

    /// What tells it from others of its name: one that has ended answers nobody who asks for another.
    #[must_use]
    pub fn identified_by(mut self, identity: impl Into<String>) -> ApplicationSetup {
        self.identity = identity.into();
        self
    }

    /// How its graphs are compiled; the job id in it counts for nothing.
    #[must_use]
    pub fn compiled_with(mut self, options: CompileOptions) -> ApplicationSetup {
        self.compile = options;
        self
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for ApplicationSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApplicationSetup")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// With what a process is to end, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::process) struct End {
    pub code: ExitCode,
    pub cause: String,
}

/// Decided by a term, once: the first cause wins. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ending {
    decided: Arc<OnceLock<End>>,
}

impl Ending {
    /// The process is to end.
    pub(in crate::process) fn decide(&self, code: ExitCode, cause: impl Into<String>) {
        let cause = cause.into();
        let _ = self.decided.set(End { code, cause });
    }

    /// With what the process ends, whoever asks it to, once that is decided.
    pub(crate) fn code(&self) -> Option<ExitCode> {
        self.decided().map(|end| end.code)
    }

    /// What was decided.
    pub(in crate::process) fn decided(&self) -> Option<&End> {
        self.decided.get()
    }
}
