//! A part that is being written, in a pending file.
//!
//! Invariant: a file that a snapshot may name belongs to the job, and is never removed here. Any other one is removed
//! on drop.

use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tanist_dataflow::{OperatorError, TaskEnding};
use tanist_ha::clock::millis;
use tanist_model::operators::Roll;
use tanist_proto::v1::PendingFile;
use tokio::time::Instant;

use super::sync_ancestors;
use crate::faults::{Fault, is_planted};
use crate::umask;

const BUFFER: usize = 256 * 1024;
const CREATE_TRIES: u32 = 5;
/// Bytes that are copied before it is checked again whether the task is ending.
const COPIED_AT_ONCE: u64 = 4 << 20;

/// See the module.
pub(crate) struct Part {
    path: PathBuf,
    /// Number of bytes that were written.
    length: u64,
    /// When its first record was written, or copied.
    began: Option<Instant>,
    /// How old the part was that it is a copy of.
    age: Duration,
    /// A snapshot may name it.
    belongs_to_job: bool,
    /// It could not be made durable: the system may have dropped what was written, and later say that all is well.
    is_broken: bool,
    writer: BufWriter<File>,
}

impl Part {
    /// Creates its file.
    pub(crate) fn create(path: PathBuf) -> Result<Part, OperatorError> {
        let file = create(&path)?;
        Ok(Part {
            path,
            length: 0,
            began: None,
            age: Duration::ZERO,
            belongs_to_job: false,
            is_broken: false,
            writer: BufWriter::with_capacity(BUFFER, file),
        })
    }

    /// Appends the content that a snapshot names, which is at `path`, before anything is written. It is copied, because
    /// a former attempt that does not know of its end may still append to the old file.
    pub(crate) fn copy(
        &mut self,
        path: &Path,
        former: &PendingFile,
        ending: &TaskEnding,
    ) -> Result<(), OperatorError> {
        if is_planted(Fault::PendingFileAppended) {
            return self.append_to(path, former);
        }
        if is_planted(Fault::OpenPartForgotten) {
            return Ok(());
        }
        let file = File::open(path).map_err(|error| OperatorError::io("read", path, error))?;
        let mut file = file.take(former.length);
        let mut copied = 0;
        while copied < former.length {
            if ending.has_begun() {
                return Err(OperatorError::unavailable("the task is canceled"));
            }
            let mut next = file.by_ref().take(COPIED_AT_ONCE);
            let found = io::copy(&mut next, self.writer.get_mut());
            match found.map_err(|error| OperatorError::io("copy", path, error))? {
                0 => {
                    let message =
                        format!("output is lost: it has {copied} of {} bytes", former.length);
                    let shorter = io::Error::new(ErrorKind::UnexpectedEof, message);
                    return Err(OperatorError::io("copy", path, shorter));
                }
                found => copied += found,
            }
        }
        self.length += copied;
        self.age = self.age.max(Duration::from_millis(former.age_ms));
        self.began.get_or_insert_with(Instant::now);
        Ok(())
    }

    /// A planted fault: goes on with the file itself.
    fn append_to(&mut self, path: &Path, former: &PendingFile) -> Result<(), OperatorError> {
        let file = File::options().append(true).open(path);
        let file = file.map_err(|error| OperatorError::io("open", path, error))?;
        self.writer = BufWriter::with_capacity(BUFFER, file);
        path.clone_into(&mut self.path);
        self.length += former.length;
        self.belongs_to_job = true;
        Ok(())
    }

    /// Appends lines.
    pub(crate) fn write(&mut self, lines: &[u8]) -> Result<(), OperatorError> {
        let written = self.usable().and_then(|()| self.writer.write_all(lines));
        written.map_err(|error| OperatorError::io("write to", &self.path, error))?;
        self.length += lines.len() as u64;
        self.began.get_or_insert_with(Instant::now);
        Ok(())
    }

    fn usable(&self) -> io::Result<()> {
        match self.is_broken {
            true => Err(io::Error::other("it could not be made durable before")),
            false => Ok(()),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Whether it has the size or age of a complete part.
    pub(crate) fn is_complete(&self, roll: Roll) -> bool {
        self.length >= roll.size || self.age() >= Duration::from_millis(roll.interval_ms)
    }

    fn age(&self) -> Duration {
        let since = self.began.map_or(Duration::ZERO, |began| began.elapsed());
        self.age.saturating_add(since)
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The form in which a snapshot names it.
    pub(crate) fn named(&self) -> PendingFile {
        PendingFile {
            path: self.path.as_os_str().as_bytes().to_vec(),
            length: self.length,
            age_ms: millis(self.age()),
        }
    }

    /// Makes content and name durable. It belongs to the job from now on.
    pub(crate) fn make_durable(&mut self) -> Result<(), OperatorError> {
        let made = self.usable().and_then(|()| self.sync());
        made.map_err(|error| OperatorError::io("write", &self.path, error))
    }

    fn sync(&mut self) -> io::Result<()> {
        self.writer.flush()?;
        // Until all is durable: after a failed sync the system may drop what was written, and the next sync succeeds.
        self.is_broken = true;
        self.writer.get_ref().sync_data()?;
        if !self.belongs_to_job {
            sync_ancestors(&self.path)?;
            self.belongs_to_job = true;
        }
        self.is_broken = false;
        Ok(())
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

impl Drop for Part {
    fn drop(&mut self) {
        if self.belongs_to_job && !is_planted(Fault::PendingFileRemoved) {
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
