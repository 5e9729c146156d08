//! The work on the output of sinks that a term needs: two traits, which the process implements. Leadership does not
//! know what a sink is.

use std::sync::Arc;

use tanist_dispatcher::SinkCleaner;
use tanist_job_master::SinkCommitter;

/// Commits the output of sinks, and removes what is left of it.
#[derive(Debug, Clone)]
pub struct Sinks {
    /// Makes output visible.
    pub committer: Arc<dyn SinkCommitter>,
    /// Removes what a job left behind, or hands it over to another one.
    pub cleaner: Arc<dyn SinkCleaner>,
}
