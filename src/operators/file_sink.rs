//! Writes records as lines into a pending file; see [`crate::sink`] for how it becomes visible.
//!
//! A snapshot makes the file durable and names it with its length. From then on it belongs to the job: the sink does
//! not remove it, however it ends. A restored sink copies that length into a file of its own, because a former attempt
//! that does not know of its end may still append to the old one.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Read as _, Write};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;
use tanist_dataflow::{
    Built, Operator, OperatorContext, OperatorError, Output, PrepareCommit, Restored, Snapshot,
};
use tanist_model::operators;
use tanist_proto::v1::{Committable, PendingFile};

use super::factory::{Runtime, Setup, operator};
use super::lines::write_lines;
use crate::sink::{self, PartNames};
use crate::umask;

/// Name of its state, and what it is the state of.
const PENDING: &str = "pending-file";
const SIGNATURE: &str = "file-sink";
const BUFFER: usize = 256 * 1024;
const CREATE_TRIES: u32 = 5;

impl Runtime for operators::FileSink {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        operator(FileSink::new(&self.path, setup.context))
    }
}

pub(super) struct FileSink {
    names: PartNames,
    lines: Vec<u8>,
    /// The file that the snapshot names, until it is copied.
    restored: Option<PendingFile>,
    pending: Option<Pending>,
}

impl FileSink {
    pub(super) fn new(path: &str, context: &OperatorContext) -> FileSink {
        let names = PartNames::of(path, context);
        FileSink {
            names,
            lines: Vec::new(),
            restored: None,
            pending: None,
        }
    }

    fn opened(&mut self) -> Result<&mut Pending, OperatorError> {
        let pending = self.pending.as_mut();
        pending.ok_or_else(|| OperatorError::specification("the sink is not open"))
    }
}

impl Operator for FileSink {
    fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        self.restored = restored.message(PENDING, SIGNATURE)?;
        Ok(())
    }

    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        let pending = self.opened()?;
        let durable = pending.make_durable();
        durable.map_err(|error| OperatorError::io("write", &pending.path, error))?;
        let file = PendingFile {
            path: pending.path.as_os_str().as_bytes().to_vec(),
            length: pending.length,
        };
        snapshot.save_message(PENDING, SIGNATURE, &file);
        Ok(())
    }

    fn open(&mut self) -> Result<(), OperatorError> {
        sink::check_output(&self.names.directory)?;
        let path = self.names.pending.clone();
        let file = create(&path)?;
        let writer = BufWriter::with_capacity(BUFFER, file);
        let pending = self.pending.insert(Pending {
            path,
            length: 0,
            belongs_to_job: false,
            writer: Some(writer),
        });
        match self.restored.take() {
            Some(former) => pending.copy(former),
            None => Ok(()),
        }
    }

    fn process(&mut self, batch: RecordBatch, _output: &mut Output) -> Result<(), OperatorError> {
        let mut lines = std::mem::take(&mut self.lines);
        lines.clear();
        write_lines(&batch, &mut lines)?;
        let pending = self.opened()?;
        let written = pending.write(&lines);
        written.map_err(|error| OperatorError::io("write to", &pending.path, error))?;
        self.lines = lines;
        Ok(())
    }

    fn prepare_commit(&mut self) -> Option<PrepareCommit> {
        let pending = self.pending.take()?;
        let names = self.names.clone();
        Some(Box::new(move || {
            pending
                .seal()
                .map_err(|error| OperatorError::io("write", &names.pending, error))?;
            Ok(vec![Committable {
                pending_path: names.pending.to_string_lossy().into_owned(),
                final_path: names.visible.to_string_lossy().into_owned(),
            }])
        }))
    }
}

/// Creates a file with its directories. Tries it several times, since another job's cleanup may remove a
/// directory while it is empty.
fn create(pending: &Path) -> Result<File, OperatorError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let directory = pending
            .parent()
            .map_or(Ok(()), umask::create_output_directories);
        match directory.and_then(|()| umask::create_output_file(pending)) {
            Err(error) if error.kind() == ErrorKind::NotFound && tries < CREATE_TRIES => {}
            created => return created.map_err(|e| OperatorError::io("create", pending, e)),
        }
    }
}

/// A pending file that is being written. It is removed on drop unless it was completed or belongs to the job.
struct Pending {
    path: PathBuf,
    /// Number of bytes that were written.
    length: u64,
    /// A snapshot names it.
    belongs_to_job: bool,
    /// Taken once the file is complete.
    writer: Option<BufWriter<File>>,
}

impl Pending {
    /// Begins with the content that a snapshot names.
    fn copy(&mut self, former: PendingFile) -> Result<(), OperatorError> {
        let (path, length) = (
            PathBuf::from(OsString::from_vec(former.path)),
            former.length,
        );
        let (Some(writer), 1..) = (&mut self.writer, length) else {
            return Ok(());
        };
        let file = File::open(&path).map_err(|error| OperatorError::io("read", &path, error))?;
        let copied = io::copy(&mut file.take(length), writer.get_mut());
        let found = copied.map_err(|error| OperatorError::io("copy", &path, error))?;
        if found < length {
            let message = format!("output is lost: it has {found} of {length} bytes");
            let shorter = io::Error::new(ErrorKind::UnexpectedEof, message);
            return Err(OperatorError::io("copy", &path, shorter));
        }
        self.length = length;
        Ok(())
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let writer = self.writer.as_mut().ok_or(ErrorKind::BrokenPipe)?;
        writer.write_all(lines)?;
        self.length += lines.len() as u64;
        Ok(())
    }

    /// Makes content and name durable. The file belongs to the job from now on.
    fn make_durable(&mut self) -> io::Result<()> {
        let writer = self.writer.as_mut().ok_or(ErrorKind::BrokenPipe)?;
        writer.flush()?;
        writer.get_ref().sync_data()?;
        if !self.belongs_to_job {
            sink::sync_ancestors(&self.path)?;
            self.belongs_to_job = true;
        }
        Ok(())
    }

    /// Makes content and name durable.
    fn seal(mut self) -> io::Result<()> {
        let Some(writer) = self.writer.as_mut() else {
            return Ok(());
        };
        writer.flush()?;
        writer.get_ref().sync_all()?;
        sink::sync_ancestors(&self.path)?;
        self.writer = None;
        Ok(())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.writer.is_none() || self.belongs_to_job {
            return;
        }
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "can't remove a pending file");
        }
        // The job's directory and `.tanist`: the cleanup may have run before this task ended. Others may still
        // use them.
        for directory in self.path.ancestors().skip(1).take(2) {
            if fs::remove_dir(directory).is_err() {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tanist_proto::v1::SubtaskSnapshot;

    use super::*;
    use crate::testing::{context, texts};

    fn sink(directory: &std::path::Path) -> FileSink {
        FileSink::new(&directory.to_string_lossy(), &context(2, 4))
    }

    #[test]
    fn nothing_is_visible_before_the_commit() {
        let directory = tempfile::tempdir().expect("directory");
        let output = directory.path().join("out");
        let mut sink = sink(&output);
        sink.open().expect("open");
        sink.process(texts("word", &["a", "b"]), &mut Output::default())
            .expect("written");
        let prepare = sink.prepare_commit().expect("sinks commit");
        let committables = prepare().expect("prepared");
        drop(sink);

        let visible = output.join("part-2");
        assert_eq!(committables[0].final_path, visible.to_string_lossy());
        assert!(!visible.exists());
        let pending = fs::read_to_string(&committables[0].pending_path).expect("pending");
        assert_eq!(pending, "a\nb\n");
        assert!(committables[0].pending_path.contains("/.tanist/"));
        assert!(committables[0].pending_path.contains("-2-1-"));
        assert!(committables[0].pending_path.ends_with(".pending"));

        sink::commit(&committables).expect("committed");
        assert_eq!(fs::read_to_string(visible).expect("visible"), "a\nb\n");
    }

    #[test]
    fn a_record_with_a_line_break_is_refused_and_nothing_of_its_batch_is_written() {
        let directory = tempfile::tempdir().expect("directory");
        let mut sink = sink(directory.path());
        sink.open().expect("open");
        let batch = texts("word", &["a", "b\nc"]);
        let refused = sink.process(batch, &mut Output::default());
        assert_eq!(
            refused.expect_err("it is no line").to_string(),
            "it has a line break, so it is no line: put a `format-json` before it, which escapes it, at record [b\\nc]"
        );
        sink.process(texts("word", &["d\\n"]), &mut Output::default())
            .expect("written");
        let committables = sink.prepare_commit().expect("sinks commit")().expect("prepared");
        let pending = fs::read_to_string(&committables[0].pending_path).expect("pending");
        assert_eq!(pending, "d\\n\n");
    }

    #[test]
    fn a_sink_that_never_ends_leaves_no_file() {
        let directory = tempfile::tempdir().expect("directory");
        let mut sink = sink(directory.path());
        sink.open().expect("open");
        sink.process(texts("word", &["a"]), &mut Output::default())
            .expect("written");
        let pending = sink.names.pending.clone();
        assert!(pending.exists());
        drop(sink);
        assert!(!pending.exists());
        let left = fs::read_dir(directory.path()).expect("directory").count();
        assert_eq!(left, 0, "not even a directory");
    }

    /// What a sink has saved, for the sinks that are restored from it.
    fn saved(sink: &mut FileSink) -> SubtaskSnapshot {
        let mut snapshot = Snapshot::default();
        sink.snapshot(&mut snapshot).expect("saved");
        let mut subtask = SubtaskSnapshot::default();
        snapshot.add_to(&mut subtask, "out");
        subtask
    }

    fn write(sink: &mut FileSink, word: &str) {
        let written = sink.process(texts("word", &[word]), &mut Output::default());
        written.expect("written");
    }

    #[test]
    fn a_restored_sink_copies_what_the_snapshot_names_and_no_attempt_removes_a_named_file() {
        let directory = tempfile::tempdir().expect("directory");
        let mut first = sink(directory.path());
        first.open().expect("open");
        write(&mut first, "before");
        let snapshot = saved(&mut first);
        write(&mut first, "behind");
        let named = first.names.pending.clone();

        for _ in 0..2 {
            let mut second = sink(directory.path());
            let restored = Restored::of("out", &snapshot);
            second.restore(&restored).expect("restored");
            second.open().expect("open");
            // The former attempt does not know that it is one.
            write(&mut first, "zombie");
            saved(&mut first);
            write(&mut second, "after");
            let own = second.names.pending.clone();
            assert_ne!(own, named);
            saved(&mut second);
            drop(second);
            let content = fs::read_to_string(&own).expect("it belongs to the job");
            assert_eq!(content, "before\nafter\n");
        }
        // One that no snapshot names is removed, and its snapshot's file is not.
        let mut third = sink(directory.path());
        third
            .restore(&Restored::of("out", &snapshot))
            .expect("restored");
        third.open().expect("open");
        let own = third.names.pending.clone();
        drop((first, third));
        assert!(!own.exists() && named.exists());
        sink::cleanup(directory.path(), context(2, 4).job, "").expect("the job has ended");
        let left = fs::read_dir(directory.path()).expect("directory").count();
        assert_eq!(left, 0);
    }

    #[test]
    fn a_restored_sink_commits_its_own_file() {
        let directory = tempfile::tempdir().expect("directory");
        let mut first = sink(directory.path());
        first.open().expect("open");
        write(&mut first, "before");
        let snapshot = saved(&mut first);
        drop(first);
        let mut second = sink(directory.path());
        second
            .restore(&Restored::of("out", &snapshot))
            .expect("restored");
        second.open().expect("open");
        write(&mut second, "after");
        let committables = second.prepare_commit().expect("sinks commit")().expect("prepared");
        sink::commit(&committables).expect("committed");
        let visible = fs::read_to_string(directory.path().join("part-2"));
        assert_eq!(visible.expect("visible"), "before\nafter\n");
    }

    #[test]
    fn a_named_file_that_is_shorter_or_missing_is_an_error_and_leaves_no_other() {
        let directory = tempfile::tempdir().expect("directory");
        let mut first = sink(directory.path());
        first.open().expect("open");
        write(&mut first, "before");
        let snapshot = saved(&mut first);
        let named = first.names.pending.clone();
        let fails = || {
            let mut second = sink(directory.path());
            second
                .restore(&Restored::of("out", &snapshot))
                .expect("restored");
            let error = second.open().expect_err("output is lost").to_string();
            let own = second.names.pending.clone();
            drop(second);
            assert!(!own.exists());
            error
        };
        fs::write(&named, "bef").expect("shortened");
        let error = fails();
        assert!(error.contains("has 3 of 7 bytes"), "{error}");
        fs::remove_file(&named).expect("removed");
        let error = fails();
        assert!(error.contains(&*named.to_string_lossy()), "{error}");
    }

    #[test]
    fn what_an_earlier_run_left_behind_never_touches_the_file_of_the_next_one() {
        let directory = tempfile::tempdir().expect("directory");
        let mut former = sink(directory.path());
        former.open().expect("open");
        former
            .process(texts("word", &["former"]), &mut Output::default())
            .expect("written");
        sink::cleanup(directory.path(), context(2, 4).job, "").expect("it has ended");
        // The same job, vertex, subtask and generation.
        let mut next = sink(directory.path());
        next.open().expect("open");
        next.process(texts("word", &["next"]), &mut Output::default())
            .expect("written");
        drop(former);
        let committables = next.prepare_commit().expect("sinks commit")().expect("prepared");
        let pending = fs::read_to_string(&committables[0].pending_path).expect("it is there");
        assert_eq!(pending, "next\n");
    }

    #[test]
    fn a_file_in_the_place_of_the_directory_is_beyond_a_restart_and_nothing_to_clean() {
        let directory = tempfile::tempdir().expect("directory");
        let file = directory.path().join("file");
        fs::write(&file, "precious").expect("written");
        for path in [file.clone(), file.join("below")] {
            let error = sink(&path).open().expect_err("refused");
            assert!(error.is_unrecoverable(), "{error}");
            assert!(
                error.to_string().contains("can't be a directory"),
                "{error}"
            );
            sink::cleanup(&path, context(0, 1).job, "").expect("there is nothing");
        }
        assert_eq!(fs::read_to_string(file).expect("untouched"), "precious");
    }

    #[test]
    fn an_output_of_another_run_is_not_touched() {
        let directory = tempfile::tempdir().expect("directory");
        fs::write(directory.path().join("part-0"), "precious").expect("written");
        let error = sink(directory.path())
            .open()
            .expect_err("refused")
            .to_string();
        assert!(error.contains("part-0"), "{error}");
    }
}
