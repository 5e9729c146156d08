//! What a JobManager needs to lead an application: its name and its program. Also the end that a term decides
//! for its process.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use futures::future::BoxFuture;

use super::context::ApplicationContext;
use crate::job::CompileOptions;
use crate::telemetry::ExitCode;

/// The error of a program.
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
        }
    }

    /// Sets the parameters that the program receives.
    #[must_use]
    pub fn with_parameters(mut self, parameters: BTreeMap<String, String>) -> ApplicationSetup {
        self.parameters = Arc::new(parameters);
        self
    }

    /// Sets an identity that distinguishes it from others of its name: an ended application does not answer a
    /// request for another one.
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

/// The exit code of a process and the cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::process) struct End {
    pub code: ExitCode,
    pub cause: String,
}

/// The end of a process, decided once by a term: the first cause wins. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ending {
    decided: Arc<OnceLock<End>>,
}

impl Ending {
    /// Decides that the process must end.
    pub(in crate::process) fn decide(&self, code: ExitCode, cause: impl Into<String>) {
        let cause = cause.into();
        let _ = self.decided.set(End { code, cause });
    }

    /// The exit code once the end is decided, also for a process that is then asked to end.
    pub(crate) fn code(&self) -> Option<ExitCode> {
        self.decided().map(|end| end.code)
    }

    /// The decided end.
    pub(in crate::process) fn decided(&self) -> Option<&End> {
        self.decided.get()
    }
}
