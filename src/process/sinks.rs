//! Commits and removes the output of sinks, for JobMasters and Dispatchers: that of file sinks itself, that of custom
//! sinks by the committers of this binary. The work may block, so it runs on threads of its own ([`FileWork`]), neither
//! on the control runtime nor on the threads that stores use.
//!
//! Invariant: work whose caller does not wait any more begins no further rename or removal, at whichever call it hung.
//! A committer is then not polled again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::join_all;
use tanist_dispatcher::{HiddenOutput, SinkCleaner};
use tanist_job_master::{SinkCommitter, Superseded};
use tanist_leadership::Sinks;
use tanist_model::CommitError;
use tanist_operators::committers::{self, CommitRequest};
use tanist_operators::sink::{self, KeptFiles, SinkError};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::file_work::{Awaited, FileWork};

/// The work on the output of file sinks.
pub(super) fn file_sinks() -> Sinks {
    let files = Arc::new(FileSinks::default());
    Sinks {
        committer: files.clone(),
        cleaner: files,
    }
}

/// File sinks, by the paths that TaskManagers use.
#[derive(Debug, Default)]
struct FileSinks {
    files: FileWork,
}

/// The directories in which the parts of an output become visible.
fn directories_of(committables: &[pb::Committable]) -> Vec<PathBuf> {
    let visible = committables.iter().map(|it| Path::new(&it.final_path));
    let directories = visible.filter_map(Path::parent);
    directories.map(Path::to_owned).collect()
}

impl FileSinks {
    /// Commits parts, with `work`.
    async fn commit_with(
        &self,
        committables: Vec<pb::Committable>,
        work: impl FnOnce(&[pb::Committable], &dyn Fn() -> bool) -> Result<(), SinkError>
        + Send
        + 'static,
    ) -> Result<(), CommitError> {
        let directories = directories_of(&committables);
        let work = move |awaited: Awaited<'_>| work(&committables, &|| awaited.is_awaited());
        match self.files.run(directories, work).await {
            Ok(committed) => committed.map_err(commit_error),
            Err(failure) => Err(CommitError::Failed(failure)),
        }
    }

    /// Commits parts that a checkpoint lists.
    async fn commit_files(
        &self,
        number: u64,
        committables: &[pb::CheckpointCommittable],
    ) -> Result<(), CommitError> {
        let committables = sink::decoded(committables).map_err(commit_error)?;
        let work = move |committables: &[pb::Committable], is_awaited: &dyn Fn() -> bool| {
            sink::commit_checkpoint_while(number, committables, is_awaited)
        };
        self.commit_with(committables, work).await
    }

    /// Does `work` in each directory. One that hangs or fails does not stop the work in the others. The error is the
    /// first one.
    async fn in_each(
        &self,
        sinks: &pb::SinkDirectories,
        work: impl Fn(&Path, &dyn Fn() -> bool) -> Result<(), SinkError> + Clone + Send + 'static,
    ) -> Result<(), String> {
        let each = sinks.paths.iter().map(|path| {
            let (directory, work) = (PathBuf::from(path), work.clone());
            let directories = vec![directory.clone()];
            self.files.run(directories, move |awaited: Awaited<'_>| {
                work(&directory, &|| awaited.is_awaited())
            })
        });
        for done in join_all(each).await {
            done?.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// Commits output of a kind with the committer of this binary, on a thread of its own: it may block.
async fn commit_custom(
    kind: &str,
    number: u64,
    committables: Vec<pb::CheckpointCommittable>,
) -> Result<(), CommitError> {
    let Some(committer) = committers::find(kind) else {
        // Another JobManager may have it.
        let uids: BTreeSet<&str> = committables.iter().map(|it| &*it.uid).collect();
        let uids = uids.into_iter().collect::<Vec<_>>().join(", ");
        return Err(CommitError::Failed(format!(
            "this binary has no committer for output of kind {kind:?}, of the sinks {uids}"
        )));
    };
    let (mut reply, result) = oneshot::channel();
    let runtime = Handle::current();
    let commit = move || {
        let request = CommitRequest::new(number, committables);
        let committed = runtime.block_on(async {
            tokio::select! {
                committed = committer.commit(request) => Some(committed),
                () = reply.closed() => None,
            }
        });
        if let Some(committed) = committed {
            let _ = reply.send(committed);
        }
    };
    let started = std::thread::Builder::new().name("committer".to_owned());
    let started = started.spawn(commit);
    started.map_err(|error| CommitError::Failed(format!("no thread for a committer: {error}")))?;
    result.await.map_err(|_| {
        CommitError::Failed(format!(
            "the committer of kind {kind:?} ended without an answer"
        ))
    })?
}

fn commit_error(error: SinkError) -> CommitError {
    match error {
        // No later attempt succeeds: files in the way belong to another run, and only their owner may remove them; a
        // part that can't be decoded stays so.
        SinkError::Occupied { .. }
        | SinkError::Later { .. }
        | SinkError::Owned { .. }
        | SinkError::NoDirectory { .. }
        | SinkError::Unreadable { .. }
        | SinkError::Elsewhere { .. } => CommitError::Refused(error.to_string()),
        // An output that seems lost may come back: its directory may not be mounted. Another JobManager may know
        // the sink.
        SinkError::Lost { .. }
        | SinkError::Removed { .. }
        | SinkError::Io { .. }
        | SinkError::UnknownKind { .. }
        | SinkError::NotAwaited => CommitError::Failed(error.to_string()),
    }
}

#[async_trait]
impl SinkCommitter for FileSinks {
    async fn commit(&self, committables: &[pb::Committable]) -> Result<(), CommitError> {
        self.commit_with(committables.to_vec(), sink::commit_while)
            .await
    }

    async fn commit_checkpoint(
        &self,
        number: u64,
        committables: &[pb::CheckpointCommittable],
    ) -> Result<(), CommitError> {
        let mut by_kind: BTreeMap<&str, Vec<pb::CheckpointCommittable>> = BTreeMap::new();
        for committable in committables {
            let of_kind = by_kind.entry(&committable.kind).or_default();
            of_kind.push(committable.clone());
        }
        // All kinds are committed, even if one fails.
        let commits = by_kind
            .into_iter()
            .map(async |(kind, committables)| match kind {
                sink::KIND => self.commit_files(number, &committables).await,
                kind => commit_custom(kind, number, committables).await,
            });
        let mut failures: Vec<CommitError> = Vec::new();
        for done in join_all(commits).await {
            failures.extend(done.err());
        }
        // A failure is returned before a refusal: it is tried again, while a refusal fails the job, and nothing of the
        // others would be tried again.
        let is_failed = |it: &CommitError| matches!(it, CommitError::Failed(_));
        let failed = failures.iter().position(is_failed);
        match failures.is_empty() {
            true => Ok(()),
            false => Err(failures.swap_remove(failed.unwrap_or_default())),
        }
    }

    async fn forget_marks(
        &self,
        sinks: &pb::SinkDirectories,
        job: JobId,
        up_to: u64,
    ) -> Result<(), String> {
        let run = sinks.run.clone();
        let forget = move |directory: &Path, is_awaited: &dyn Fn() -> bool| {
            sink::forget_marks(directory, (job, &run), up_to, is_awaited)
        };
        self.in_each(sinks, forget).await
    }

    async fn remove_superseded(
        &self,
        sinks: &pb::SinkDirectories,
        job: JobId,
        superseded: &Superseded,
    ) -> Result<(), String> {
        let (run, superseded) = (sinks.run.clone(), Arc::new(superseded.clone()));
        let remove = move |directory: &Path, is_awaited: &dyn Fn() -> bool| {
            let Superseded { below, kept } = &*superseded;
            sink::remove_superseded(directory, (job, &run), (below, kept), is_awaited)
        };
        self.in_each(sinks, remove).await
    }
}

#[async_trait]
impl SinkCleaner for FileSinks {
    async fn clean(
        &self,
        directory: &str,
        job: JobId,
        run: &str,
        kept: &HiddenOutput,
    ) -> Result<(), String> {
        let (directory, run) = (PathBuf::from(directory), run.to_owned());
        let kept = kept_files(kept);
        let work = {
            let directory = directory.clone();
            // Before anything is removed: a file system that hangs does so at this read, and then the caller may have
            // stopped waiting.
            move |awaited: Awaited<'_>| match sink::has_pending(&directory) {
                Ok(true) if awaited.is_awaited() => {
                    sink::cleanup_except(&directory, (job, &run), &kept)
                }
                Ok(_) => Ok(()),
                Err(error) => Err(error),
            }
        };
        let done = self.files.run(vec![directory], work).await?;
        done.map_err(|error| error.to_string())
    }

    async fn finish_commit(
        &self,
        number: u64,
        committables: &[pb::CheckpointCommittable],
    ) -> Result<(), String> {
        let committed = self.commit_checkpoint(number, committables).await;
        committed.map_err(|error| error.to_string())
    }

    async fn hand_over(
        &self,
        files: &[Vec<u8>],
        (job, run): (JobId, &str),
        directories: &[PathBuf],
    ) -> Result<Vec<Vec<u8>>, String> {
        let (files, run, of_job) = (files.to_vec(), run.to_owned(), directories.to_vec());
        let work = move |awaited: Awaited<'_>| {
            sink::hand_over(&files, (job, &run), &of_job, &|| awaited.is_awaited())
        };
        let done = self.files.run(directories.to_vec(), work).await?;
        done.map_err(|error| error.to_string())
    }
}

/// The pending files of retained output. Output of other kinds of sinks has no files.
fn kept_files(kept: &HiddenOutput) -> KeptFiles {
    let committables = kept.uncommitted.iter();
    let parts = committables.filter_map(|it| sink::decoded(std::slice::from_ref(it)).ok());
    let parts = parts.flatten().map(|part| part.pending_path.into_bytes());
    KeptFiles {
        paths: kept.files.iter().cloned().chain(parts).collect(),
        has_uncommitted: !kept.uncommitted.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use prost::Message as _;

    use super::*;

    const JOB: JobId = JobId::from_bits(1);

    /// A pending part in a directory, and its committable.
    fn part(directory: &Path, name: &str) -> (pb::Committable, pb::CheckpointCommittable) {
        let parent = directory.join(".tanist").join(format!("{JOB}-r"));
        fs::create_dir_all(&parent).expect("made");
        let pending = parent.join(format!("{name}.pending"));
        fs::write(&pending, name).expect("written");
        let part = pb::Committable {
            pending_path: pending.to_string_lossy().into_owned(),
            final_path: directory.join(name).to_string_lossy().into_owned(),
        };
        let committable = pb::CheckpointCommittable {
            uid: "out".to_owned(),
            kind: "file".to_owned(),
            content: part.encode_to_vec(),
        };
        (part, committable)
    }

    #[tokio::test]
    async fn what_a_checkpoint_names_becomes_visible_and_its_mark_is_forgotten() {
        let directory = tempfile::tempdir().expect("directory");
        let (part, committable) = part(directory.path(), "v-0-1-a");
        let files = FileSinks::default();
        for _ in 0..2 {
            let committed = files.commit_checkpoint(7, std::slice::from_ref(&committable));
            committed.await.expect("committed");
            assert!(Path::new(&part.final_path).exists());
        }
        let mark = Path::new(&part.pending_path).with_file_name("committing-7");
        let sinks = pb::SinkDirectories {
            paths: ["missing", ""]
                .map(|it| directory.path().join(it).to_string_lossy().into_owned())
                .to_vec(),
            run: "r".to_owned(),
        };
        files.forget_marks(&sinks, JOB, 6).await.expect("removed");
        assert!(mark.exists());
        files.forget_marks(&sinks, JOB, 7).await.expect("removed");
        assert!(!mark.exists());
        let superseded = Superseded {
            below: [(("v".to_owned(), 0), 2)].into(),
            ..Superseded::default()
        };
        let (zombie, _) = self::part(directory.path(), "v-0-1-b");
        let removed = files.remove_superseded(&sinks, JOB, &superseded);
        removed.await.expect("removed");
        assert!(!Path::new(&zombie.pending_path).exists());
    }

    #[tokio::test]
    async fn hidden_output_of_an_ended_job_is_kept_committed_and_handed_over() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().to_string_lossy().into_owned();
        let files = FileSinks::default();
        let (listed, committable) = part(directory.path(), "v-0-1-a");
        let (taken, other) = part(directory.path(), "v-0-1-b");
        let (open, _) = part(directory.path(), "v-1-1-c");
        let (left, _) = part(directory.path(), "v-1-1-d");
        let foreign = pb::CheckpointCommittable {
            kind: "topic".to_owned(),
            ..committable.clone()
        };
        let open = open.pending_path.into_bytes();
        let kept = HiddenOutput {
            files: [open.clone()].into(),
            uncommitted: vec![committable.clone(), other.clone(), foreign],
        };
        files.clean(&path, JOB, "r", &kept).await.expect("cleaned");
        assert!(!Path::new(&left.pending_path).exists());
        let heir = (JobId::from_bits(2), "s");
        let directories = [PathBuf::from(&path)];
        let given = files.hand_over(&[open], heir, &directories).await;
        let given = given.expect("handed over").concat();
        let listing = [committable, other];
        for _ in 0..2 {
            let committed = files.finish_commit(7, &listing).await;
            committed.expect("committed");
            assert!(Path::new(&listed.final_path).exists());
            // A reader has taken it away. The mark says so, and it stays while the output counts as uncommitted.
            let _ = fs::remove_file(&taken.final_path);
            let cleaned = files.clean(&path, JOB, "r", &kept).await;
            cleaned.expect("cleaned");
        }
        let nothing = HiddenOutput::default();
        let cleaned = files.clean(&path, JOB, "r", &nothing).await;
        cleaned.expect("cleaned");
        let given = String::from_utf8(given).expect("a path");
        assert_eq!(fs::read(given).expect("it is there"), b"v-1-1-c");
    }

    #[tokio::test]
    async fn each_kind_is_committed_by_its_own_committer_whatever_the_others_do() {
        let directory = tempfile::tempdir().expect("directory");
        let (part, committable) = part(directory.path(), "v-0-1-a");
        let committed: Arc<parking_lot::Mutex<Vec<String>>> = Arc::default();
        let log = committed.clone();
        let committer = committers::Committer::new(move |request: CommitRequest| {
            let outputs = request.outputs();
            let outputs = outputs.map(|(uid, it)| format!("{uid} {}", String::from_utf8_lossy(it)));
            let outputs: Vec<String> = outputs.collect();
            let log = log.clone();
            async move {
                let text = format!("{} {}", request.checkpoint(), outputs.join(","));
                log.lock().push(text);
                Ok(())
            }
        });
        committers::register("sinks-tests-works", committer);
        let fails = CommitError::Failed("no connection".to_owned());
        let refuses = CommitError::Refused("no such table".to_owned());
        for (kind, error) in [
            ("sinks-tests-fails", fails),
            ("sinks-tests-refuses", refuses),
        ] {
            let committer =
                committers::Committer::new(move |_| std::future::ready(Err(error.clone())));
            committers::register(kind, committer);
        }
        let panics = committers::Committer::new(async |_| panic!("a test"));
        committers::register("sinks-tests-panics", panics);
        let of = |kind: &str, content: &str| pb::CheckpointCommittable {
            uid: "rows".to_owned(),
            kind: format!("sinks-tests-{kind}"),
            content: content.as_bytes().to_vec(),
        };
        let files = FileSinks::default();
        let mut all = vec![
            of("works", "a"),
            of("fails", "b"),
            committable,
            of("works", "c"),
        ];
        let error = files
            .commit_checkpoint(7, &all)
            .await
            .expect_err("one fails");
        assert_eq!(error, CommitError::Failed("no connection".to_owned()));
        assert!(Path::new(&part.final_path).exists());
        assert_eq!(*committed.lock(), ["7 rows a,rows c"]);
        all.push(of("refuses", "d"));
        let error = files.commit_checkpoint(7, &all).await.expect_err("not yet");
        assert_eq!(error, CommitError::Failed("no connection".to_owned()));
        let refused = files.commit_checkpoint(7, &[of("refuses", "d")]).await;
        let refusal = CommitError::Refused("no such table".to_owned());
        assert_eq!(refused, Err(refusal));
        for kind in ["panics", "unknown"] {
            let error = files.commit_checkpoint(7, &[of(kind, "")]).await;
            let kind = format!("sinks-tests-{kind}");
            let is_told = |text: &String| text.contains(&kind);
            assert!(
                matches!(&error, Err(CommitError::Failed(text)) if is_told(text)),
                "{error:?}"
            );
        }
    }

    #[tokio::test]
    async fn output_that_can_t_be_committed_is_refused_or_waits() {
        let directory = tempfile::tempdir().expect("directory");
        let files = FileSinks::default();
        let (part, committable) = part(directory.path(), "v-0-1-a");
        let commit = async |committable: &pb::CheckpointCommittable| {
            let committed = files.commit_checkpoint(7, std::slice::from_ref(committable));
            committed.await.expect_err("it can't be committed")
        };
        let unknown = pb::CheckpointCommittable {
            kind: "topic".to_owned(),
            ..committable.clone()
        };
        let error = commit(&unknown).await;
        assert!(
            matches!(&error, CommitError::Failed(text) if text.contains("topic")),
            "{error}"
        );
        let unreadable = pb::CheckpointCommittable {
            content: vec![0xff],
            ..committable.clone()
        };
        let error = commit(&unreadable).await;
        assert!(matches!(error, CommitError::Refused(_)), "{error}");
        fs::write(&part.final_path, "precious").expect("written");
        let error = commit(&committable).await;
        assert!(matches!(error, CommitError::Refused(_)), "{error}");
        fs::remove_file(&part.final_path).expect("removed");
        fs::remove_file(&part.pending_path).expect("removed");
        let error = commit(&committable).await;
        assert!(matches!(error, CommitError::Failed(_)), "{error}");
    }
}
