//! An application, as the terms of its JobManagers know it: its name and its program.

use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;

use super::program_run::ProgramRun;

/// The error of a program.
pub type ProgramError = Box<dyn std::error::Error + Send + Sync>;

type Program = dyn Fn(ProgramRun) -> BoxFuture<'static, Result<(), ProgramError>> + Send + Sync;

/// An application. Cheap to clone.
#[derive(Clone)]
pub struct Application {
    pub(super) name: String,
    pub(super) identity: String,
    pub(super) program: Arc<Program>,
}

impl Application {
    /// The application of this name: its program runs in the leading JobManager, once per term.
    pub fn new<P, F>(name: impl Into<String>, program: P) -> Application
    where
        P: Fn(ProgramRun) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), ProgramError>> + Send + 'static,
    {
        Application {
            name: name.into(),
            identity: String::new(),
            program: Arc::new(move |run| Box::pin(program(run))),
        }
    }

    /// Sets an identity, for two different applications that share a name and a cluster id. The record of an
    /// ended one is then not taken for the other's result; starting the other is refused. If either has none, the
    /// name decides.
    #[must_use]
    pub fn identified_by(mut self, identity: impl Into<String>) -> Application {
        self.identity = identity.into();
        self
    }
}

impl fmt::Debug for Application {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Application")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
