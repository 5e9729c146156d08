//! Writes records as lines into a pending file; see [`crate::sink`] for how it becomes visible.

use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;
use tanist_dataflow::{Built, Operator, OperatorContext, OperatorError, Output, PrepareCommit};
use tanist_model::operators;
use tanist_proto::v1::Committable;

use super::factory::{Runtime, Setup, operator};
use super::lines::write_lines;
use crate::sink::{self, PartNames};
use crate::umask;

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
    pending: Option<Pending>,
}

impl FileSink {
    pub(super) fn new(path: &str, context: &OperatorContext) -> FileSink {
        let names = PartNames::of(path, context);
        FileSink {
            names,
            lines: Vec::new(),
            pending: None,
        }
    }
}

impl Operator for FileSink {
    fn open(&mut self) -> Result<(), OperatorError> {
        sink::check_output(&self.names.directory)?;
        let pending = &self.names.pending;
        let file = create(pending)?;
        let writer = BufWriter::with_capacity(BUFFER, file);
        self.pending = Some(Pending {
            path: pending.clone(),
            writer: Some(writer),
        });
        Ok(())
    }

    fn process(&mut self, batch: RecordBatch, _output: &mut Output) -> Result<(), OperatorError> {
        self.lines.clear();
        write_lines(&batch, &mut self.lines)?;
        let writer = self
            .pending
            .as_mut()
            .and_then(|pending| pending.writer.as_mut());
        let writer = writer.ok_or_else(|| OperatorError::specification("the sink is not open"))?;
        let written = writer.write_all(&self.lines);
        written.map_err(|error| OperatorError::io("write to", &self.names.pending, error))
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

/// A pending file that is being written. It is removed on drop unless it was completed.
struct Pending {
    path: PathBuf,
    /// Taken once the file is complete.
    writer: Option<BufWriter<File>>,
}

impl Pending {
    /// Makes content and name durable.
    fn seal(mut self) -> std::io::Result<()> {
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
        if self.writer.is_none() {
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
