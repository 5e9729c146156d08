//! Sinks that record what is committed, as each life of a JobManager uses them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use tanist_dispatcher::{HiddenOutput, SinkCleaner};
use tanist_job_master::{SinkCommitter, Superseded};
use tanist_leadership::Sinks;
use tanist_model::CommitError;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::history::Event;
use super::world::{Step, World, process_of};

/// Sinks that record what is committed and cleaned.
#[derive(Debug, Clone)]
struct RecordedSinks {
    world: World,
}

pub(super) fn recorded_sinks(world: &World) -> Sinks {
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

    async fn commit_checkpoint(
        &self,
        number: u64,
        committables: &[pb::CheckpointCommittable],
    ) -> Result<(), CommitError> {
        let committed = Event::CheckpointCommitted(number, committables.to_vec());
        self.world.note(committed);
        Ok(())
    }

    async fn forget_marks(
        &self,
        _sinks: &pb::SinkDirectories,
        _job: JobId,
        _up_to: u64,
    ) -> Result<(), String> {
        Ok(())
    }

    async fn remove_superseded(
        &self,
        _sinks: &pb::SinkDirectories,
        _job: JobId,
        _superseded: &Superseded,
    ) -> Result<(), String> {
        Ok(())
    }
}

#[async_trait]
impl SinkCleaner for RecordedSinks {
    async fn clean(
        &self,
        _directory: &str,
        job: JobId,
        _run: &str,
        _kept: &HiddenOutput,
    ) -> Result<(), String> {
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

pub(super) fn sinks_of(sinks: &Sinks, world: &World, life: &str) -> Sinks {
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

impl MortalSinks {
    /// Waits until this life goes on; forever if it has ended.
    async fn goes_on(&self) {
        self.world.goes_on(process_of(&self.life)).await;
        if self.world.is_dead(&self.life) {
            std::future::pending().await
        }
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

    async fn commit_checkpoint(
        &self,
        number: u64,
        committables: &[pb::CheckpointCommittable],
    ) -> Result<(), CommitError> {
        self.world.goes_on(process_of(&self.life)).await;
        if !self.world.takes(&self.life, &Step::CommittingSinks) {
            return std::future::pending().await;
        }
        let committer = &self.sinks.committer;
        let committed = committer.commit_checkpoint(number, committables).await;
        if !self.world.takes(&self.life, &Step::CommittedSinks) {
            return std::future::pending().await;
        }
        committed
    }

    async fn forget_marks(
        &self,
        sinks: &pb::SinkDirectories,
        job: JobId,
        up_to: u64,
    ) -> Result<(), String> {
        self.goes_on().await;
        self.sinks.committer.forget_marks(sinks, job, up_to).await
    }

    async fn remove_superseded(
        &self,
        sinks: &pb::SinkDirectories,
        job: JobId,
        superseded: &Superseded,
    ) -> Result<(), String> {
        self.goes_on().await;
        let committer = &self.sinks.committer;
        committer.remove_superseded(sinks, job, superseded).await
    }
}

#[async_trait]
impl SinkCleaner for MortalSinks {
    async fn clean(
        &self,
        directory: &str,
        job: JobId,
        run: &str,
        kept: &HiddenOutput,
    ) -> Result<(), String> {
        self.goes_on().await;
        self.sinks.cleaner.clean(directory, job, run, kept).await
    }
}
