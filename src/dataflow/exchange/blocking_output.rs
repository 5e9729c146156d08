//! The output of a task for a blocking edge: complete before it is read, and readable any number of times.
//!
//! The batches of all targets are in one file, in the order in which they were produced; memory holds the
//! extents of each target. The file has no name, so it disappears with the process, and dropping the last
//! handle frees its space.
//!
//! A file that can't be created, written or read fails the task that does it ([`KeptError`]).
//!
//! Event-time signals and barriers are not kept: a consumer of a complete output gets the end right after the last
//! record, and the end closes all windows.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::ArrowError;

use super::channel::Channel;
use super::frame::{Decoder, Encoder};

/// Bytes that are written at once.
const BUFFER: usize = 1024 * 1024;

/// Why records can't be kept or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeptError {
    #[error("can't make a file in {path}: {source}")]
    Create { path: PathBuf, source: io::Error },
    #[error("can't write its records to disk: {0}")]
    Write(io::Error),
    #[error("can't read its records from disk: {0}")]
    Read(io::Error),
    #[error("can't encode its records: {0}")]
    Format(#[from] ArrowError),
    #[error("{0}")]
    Aborted(String),
}

/// Position of a batch in the file.
#[derive(Debug, Clone, Copy)]
struct Extent {
    offset: u64,
    length: usize,
}

/// A complete output.
#[derive(Debug)]
pub(super) struct Kept {
    file: Arc<File>,
    schema: Vec<u8>,
    // In the order of registration.
    targets: Vec<u32>,
    batches: Vec<Vec<Extent>>,
}

/// An output that is being written.
pub(super) struct KeptWriter {
    kept: Kept,
    encoder: Option<Encoder>,
    buffer: Vec<u8>,
    // Number of bytes that are written to the file.
    written: u64,
}

impl KeptWriter {
    /// Creates an empty output in a file without a name in this directory. Creates the directory again if it
    /// was removed.
    pub(super) fn create(directory: &Path, targets: Vec<u32>) -> Result<KeptWriter, KeptError> {
        let created = tempfile::tempfile_in(directory).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                std::fs::create_dir_all(directory)?;
                tempfile::tempfile_in(directory)
            }
            _ => Err(error),
        });
        let file = created.map_err(|source| KeptError::Create {
            path: directory.to_owned(),
            source,
        })?;
        let batches = vec![Vec::new(); targets.len()];
        Ok(KeptWriter {
            kept: Kept {
                file: Arc::new(file),
                schema: Vec::new(),
                targets,
                batches,
            },
            encoder: None,
            buffer: Vec::new(),
            written: 0,
        })
    }

    /// Adds a batch for the target with this index.
    pub(super) async fn push(
        &mut self,
        place: usize,
        batch: &RecordBatch,
    ) -> Result<(), KeptError> {
        let encoder = match &mut self.encoder {
            Some(encoder) => encoder,
            none => {
                let (created, schema) = Encoder::new(batch.schema_ref())?;
                self.kept.schema = schema;
                none.insert(created)
            }
        };
        let body = encoder.encode(batch)?;
        let offset = self.written + self.buffer.len() as u64;
        let length = body.len();
        self.kept.batches[place].push(Extent { offset, length });
        self.buffer.extend_from_slice(&body);
        if self.buffer.len() >= BUFFER {
            self.flush().await?;
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), KeptError> {
        let (file, buffer) = (
            Arc::clone(&self.kept.file),
            std::mem::take(&mut self.buffer),
        );
        let (offset, length) = (self.written, buffer.len() as u64);
        blocking(move || file.write_all_at(&buffer, offset).map_err(KeptError::Write)).await?;
        self.written += length;
        Ok(())
    }

    /// Completes the output.
    pub(super) async fn finish(mut self) -> Result<Kept, KeptError> {
        self.flush().await?;
        Ok(self.kept)
    }

    /// Makes all later writes fail as on a full disk.
    #[cfg(test)]
    pub(super) fn fill_disk(&mut self) {
        let full = File::options().write(true).open("/dev/full");
        self.kept.file = Arc::new(full.expect("every Linux has it"));
    }
}

impl Kept {
    /// Whether the output has a channel for this target.
    pub(super) fn is_for(&self, target: u32) -> bool {
        self.targets.contains(&target)
    }

    /// Fills a channel with a target's batches, to the end or to an error.
    pub(super) async fn fill(self: Arc<Self>, target: u32, channel: Arc<Channel>) {
        match self.read_into(target, &channel).await {
            Ok(()) => channel.finish(),
            Err(error) => channel.fail(error.to_string()),
        }
    }

    async fn read_into(&self, target: u32, channel: &Channel) -> Result<(), KeptError> {
        let mut decoder = Decoder::default();
        if !self.schema.is_empty() {
            decoder.schema(self.schema.clone())?;
        }
        let mut targets = self.targets.iter().zip(&self.batches);
        let batches = targets.find(|(of, _)| **of == target);
        for extent in batches.map_or(&[][..], |(_, batches)| batches) {
            let (file, Extent { offset, length }) = (Arc::clone(&self.file), *extent);
            let body = blocking(move || {
                let mut body = vec![0; length];
                file.read_exact_at(&mut body, offset)
                    .map_err(KeptError::Read)?;
                Ok(body)
            });
            let batch = decoder.batch(body.await?)?;
            if channel.push(batch).await.is_err() {
                // The consumer is gone and knows why.
                return Ok(());
            }
        }
        Ok(())
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, KeptError> + Send + 'static,
) -> Result<T, KeptError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(KeptError::Aborted(error.to_string())))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::exchange::channel::Popped;
    use crate::testing::texts;

    pub(in crate::exchange) async fn read(kept: &Arc<Kept>, target: u32) -> Vec<RecordBatch> {
        let channel = Arc::new(Channel::default());
        let filling = tokio::spawn(Arc::clone(kept).fill(target, Arc::clone(&channel)));
        let mut batches = Vec::new();
        loop {
            match channel.pop() {
                Popped::Batch(batch) => batches.push(batch),
                Popped::Time(signal) => panic!("{signal:?} was kept"),
                Popped::Barrier(barrier) => panic!("{barrier:?} was kept"),
                Popped::Empty => tokio::task::yield_now().await,
                Popped::Finished => break,
                Popped::Failed(cause) => panic!("{cause}"),
            }
        }
        filling.await.expect("no panic");
        batches
    }

    #[tokio::test]
    async fn each_target_gets_its_batches_in_order_and_as_often_as_it_reads() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut writer = KeptWriter::create(directory.path(), vec![3, 7]).expect("a file");
        let large = "x".repeat(BUFFER / 2);
        for (place, text) in [(0, "a"), (1, "b"), (1, &*large), (0, &*large), (1, "c")] {
            let pushed = writer.push(place, &texts("w", &[text])).await;
            pushed.expect("written");
        }
        let kept = Arc::new(writer.finish().await.expect("written"));
        assert!(kept.is_for(3) && kept.is_for(7) && !kept.is_for(0));
        for _ in 0..2 {
            let expected = [texts("w", &["a"]), texts("w", &[&large])];
            assert_eq!(read(&kept, 3).await, expected);
            assert_eq!(read(&kept, 7).await.len(), 3);
        }
        let left = std::fs::read_dir(directory.path()).expect("readable");
        assert_eq!(left.count(), 0, "a file with a name is left");
    }

    #[tokio::test]
    async fn an_output_without_records_just_ends_also_where_the_directory_was_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let removed = directory.path().join("removed");
        let writer = KeptWriter::create(&removed, vec![0]).expect("a file");
        let kept = Arc::new(writer.finish().await.expect("written"));
        assert!(read(&kept, 0).await.is_empty());
    }
}
