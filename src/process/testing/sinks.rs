//! Sinks that record what is committed, as each life of a JobManager uses them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use tanist_dispatcher::SinkCleaner;
use tanist_job_master::{CommitError, SinkCommitter};
use tanist_leadership::Sinks;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::history::Event;
use super::world::{Step, World, process_of};

/// Sinks that record what is committed and cleaned.
#[derive(Debug, Clone)]
struct RecordedSinks {
    world: World,
}

pub fn recorded_sinks(world: &World) -> Sinks {
    let recorded = Arc::new(RecordedSinks {
        world: world.clone(),
    });
    Sinks {
        committer: recorded.clone(),
        cleaner: recorded,
    }
}

#[async_trait]
impl SinkCommitter for RecordedSinks {
    async fn commit(&self, committables: &[pb::Committable]) -> Result<(), CommitError> {
        self.world
            .note(Event::SinksCommitted(committables.to_vec()));
        Ok(())
    }
}

#[async_trait]
impl SinkCleaner for RecordedSinks {
    async fn clean(&self, _directory: &str, job: JobId, _run: &str) -> Result<(), String> {
        if self.world.sinks_deny.load(Ordering::Relaxed) {
            return Err("a test forbids to remove anything".to_owned());
        }
        self.world.note(Event::Cleaned(job));
        Ok(())
    }
}

/// The sinks as one life of a JobManager uses them: each use may be its last step.
#[derive(Debug)]
struct MortalSinks {
    sinks: Sinks,
    world: World,
    life: String,
}

pub fn sinks_of(sinks: &Sinks, world: &World, life: &str) -> Sinks {
    let mortal = Arc::new(MortalSinks {
        sinks: sinks.clone(),
        world: world.clone(),
        life: life.to_owned(),
    });
    Sinks {
        committer: mortal.clone(),
        cleaner: mortal,
    }
}

#[async_trait]
impl SinkCommitter for MortalSinks {
    async fn commit(&self, committables: &[pb::Committable]) -> Result<(), CommitError> {
        self.world.goes_on(process_of(&self.life)).await;
        if !self.world.takes(&self.life, &Step::CommittingSinks) {
            return std::future::pending().await;
        }
        let committed = self.sinks.committer.commit(committables).await;
        if !self.world.takes(&self.life, &Step::CommittedSinks) {
            return std::future::pending().await;
        }
        committed
    }
}

#[async_trait]
impl SinkCleaner for MortalSinks {
    async fn clean(&self, directory: &str, job: JobId, run: &str) -> Result<(), String> {
        self.world.goes_on(process_of(&self.life)).await;
        if self.world.is_dead(&self.life) {
            return std::future::pending().await;
        }
        self.sinks.cleaner.clean(directory, job, run).await
    }
}
