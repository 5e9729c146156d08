//! Follows text files: reads them line by line, continues when they grow, and periodically looks for new files.
//!
//! A file is identified by device and inode, not by its name, and belongs to the subtask that its inode
//! selects: a renamed file is continued at its offset by the same subtask. A file that became shorter, or whose
//! last read bytes have changed, was truncated and is read from its beginning. A file that is gone (deleted, or
//! renamed to a name that no path matches) is read until it has not grown for a while, so that lines written
//! just before and after a rotation are not lost. Text after a file's last line break waits for its line break,
//! and counts as a line when the file is gone.
//!
//! Its position has each file with the offset behind the last line that was emitted, and the bytes before it. A file
//! that is not found within the same time after a restore is gone, with what it had beyond its offset, which is an
//! event of the job. At another parallelism a subtask gets the positions of all, and takes those of its files.
//!
//! A missing file is waited for. A file that exists and can't be read is an error, from the first look on.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use arrow_schema::SchemaRef;
use tanist_dataflow::{
    Built, Notices, OperatorContext, OperatorError, Restored, Snapshot, Source, SourceState,
};
use tanist_model::files::{Look, matching, unreadable};
use tanist_model::operators;
use tanist_proto::v1::{FollowedFile, FollowedFiles};
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

use super::factory::{Runtime, Setup, source};
use super::lines::{LineBatch, LineBuffer};

/// Interval at which files are checked for growth.
const POLL: Duration = Duration::from_millis(50);
/// A file that is gone is closed when it has not grown for this long.
const GRACE: Duration = Duration::from_secs(10);
const CHUNK: usize = 64 * 1024;
/// Number of last read bytes that are compared to distinguish a file that has grown from one that was
/// rewritten.
const REMEMBERED: usize = 128;
/// Signature of its saved position.
pub(super) const SIGNATURE: &str = "file-source with follow";

impl Runtime for operators::FollowFiles {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        source(FollowFiles::new(self, setup.context))
    }
}

pub(super) struct FollowFiles {
    paths: Vec<String>,
    subtask: u64,
    parallelism: u64,
    discovery_interval: Duration,
    output: SchemaRef,
    files: BTreeMap<FileId, Followed>,
    /// Restored files that are not found yet.
    missing: BTreeMap<FileId, FollowedFile>,
    /// From when on these count as gone.
    missing_until: Option<Instant>,
    notices: Notices,
    next_discovery: Option<Instant>,
    /// `First` before the first look is complete: a file that can't be read then was never readable.
    look: Look,
    /// The file that was read last.
    last: Option<FileId>,
    chunk: Vec<u8>,
}

/// Identifies a file independently of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FileId {
    device: u64,
    inode: u64,
}

struct Followed {
    path: PathBuf,
    file: File,
    /// Number of bytes that were read.
    offset: u64,
    /// The last bytes that were read.
    remembered: Vec<u8>,
    /// Time of the last modification before that read.
    modified: Option<SystemTime>,
    buffer: LineBuffer,
    /// When the file was first found to be gone.
    gone_since: Option<Instant>,
    grew_at: Instant,
}

impl FollowFiles {
    pub(super) fn new(spec: &operators::FollowFiles, context: &OperatorContext) -> FollowFiles {
        FollowFiles {
            paths: spec.paths.clone(),
            subtask: u64::from(context.subtask),
            parallelism: u64::from(context.parallelism.max(1)),
            discovery_interval: Duration::from_millis(spec.discovery_interval_ms),
            output: context.output_schema(),
            files: BTreeMap::new(),
            missing: BTreeMap::new(),
            notices: context.notices.clone(),
            missing_until: None,
            next_discovery: None,
            look: Look::at_start_of(context.generation),
            last: None,
            chunk: vec![0; CHUNK],
        }
    }

    /// Finds new files, and those that are gone.
    fn discover(&mut self, now: Instant) -> Result<(), OperatorError> {
        let mut present = BTreeSet::new();
        let mut found = BTreeSet::new();
        for path in &self.paths {
            if Path::new(path).is_dir() {
                let all = format!("{}/*", glob::Pattern::escape(path));
                found.extend(matching(&all, self.look)?);
            } else if Path::new(path).exists() || !path.contains(['*', '?', '[']) {
                found.insert(PathBuf::from(path));
            } else {
                found.extend(matching(path, self.look)?);
            }
        }
        for path in found {
            // Files may disappear between two looks: a missing one is found later, if it comes back.
            let Some(metadata) = if_exists(fs::metadata(&path), &path, self.look)? else {
                continue;
            };
            if !metadata.is_file() {
                continue;
            }
            let id = FileId::of(&metadata);
            if let Some(known) = self.files.get_mut(&id) {
                known.path = path;
                present.insert(id);
            } else if self.owns(id)
                && let Some(file) = if_exists(File::open(&path), &path, self.look)?
            {
                // The name may refer to another file now.
                let opened = file.metadata();
                let id = FileId::of(&opened.map_err(|e| OperatorError::io("read", &path, e))?);
                if self.owns(id) && !self.files.contains_key(&id) {
                    tracing::debug!(?path, "following a file");
                    let mut followed = Followed::new(path, file, now);
                    if let Some(former) = self.take_missing(id, &followed.path) {
                        let continued = followed.continue_behind(former);
                        continued.map_err(|e| OperatorError::io("read", &followed.path, e))?;
                    }
                    self.files.insert(id, followed);
                }
                present.insert(id);
            }
        }
        for (id, file) in &mut self.files {
            file.gone_since = match present.contains(id) {
                true => None,
                false => file.gone_since.or(Some(now)),
            };
        }
        Ok(())
    }

    /// Takes the restored position of a file. The device of one file may have another number on another host, or after
    /// a mount; then the name decides.
    fn take_missing(&mut self, id: FileId, path: &Path) -> Option<FollowedFile> {
        if let Some(file) = self.missing.remove(&id) {
            return Some(file);
        }
        let name = path.as_os_str().as_bytes();
        let mut missing = self.missing.iter();
        let found = missing.find(|(it, file)| it.inode == id.inode && file.path == name);
        let other = *found?.0;
        self.missing.remove(&other)
    }

    /// Forgets restored files that were not found in time.
    fn drop_missing(&mut self, now: Instant) {
        if self.missing.is_empty() {
            return;
        }
        if now >= *self.missing_until.get_or_insert(now + GRACE) {
            for file in std::mem::take(&mut self.missing).into_values() {
                let path = PathBuf::from(OsString::from_vec(file.path));
                let offset = file.offset;
                tracing::warn!(
                    ?path,
                    offset,
                    "a followed file is gone since the checkpoint; what it had behind the offset is not read"
                );
                self.notices.say(format!(
                    "what is behind offset {offset} of the followed file {} is not read: it is gone since the checkpoint",
                    path.display()
                ));
            }
        }
    }

    fn owns(&self, id: FileId) -> bool {
        xxh3_64(&id.inode.to_le_bytes()) % self.parallelism == self.subtask
    }

    /// Reads lines from all files in turn until the batch is full.
    fn read(&mut self, now: Instant, lines: &mut LineBatch) -> Result<(), OperatorError> {
        let after = self.last;
        let (before, behind): (Vec<FileId>, Vec<FileId>) =
            self.files.keys().partition(|id| Some(**id) <= after);
        for id in behind.into_iter().chain(before) {
            let Some(file) = self.files.get_mut(&id) else {
                continue;
            };
            let at_end = file.read(&mut self.chunk, now, lines)?;
            self.last = Some(id);
            if lines.is_full() {
                return Ok(());
            }
            if at_end && file.is_over(now) {
                tracing::debug!(path = ?file.path, "a followed file is gone");
                if let Some(rest) = file.buffer.take_rest() {
                    lines.push(&rest);
                }
                self.files.remove(&id);
            }
        }
        Ok(())
    }
}

/// Returns the result for a file that exists, `None` for one that does not.
fn if_exists<T>(found: io::Result<T>, path: &Path, look: Look) -> Result<Option<T>, OperatorError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(path, error, look).into()),
    }
}

impl FileId {
    fn of(metadata: &fs::Metadata) -> FileId {
        FileId {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

impl Followed {
    fn new(path: PathBuf, file: File, now: Instant) -> Followed {
        Followed {
            path,
            file,
            offset: 0,
            remembered: Vec::new(),
            modified: None,
            buffer: LineBuffer::default(),
            gone_since: None,
            grew_at: now,
        }
    }

    /// Continues behind the offset of a restored position. The next read notices if the file was truncated since.
    fn continue_behind(&mut self, former: FollowedFile) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(former.offset))?;
        self.offset = former.offset;
        self.remembered = former.remembered;
        let unneeded = self.remembered.len().saturating_sub(REMEMBERED);
        self.remembered.drain(..unneeded);
        Ok(())
    }

    /// Its position: the offset behind the last line that was emitted, with the bytes before it.
    fn position(&self, id: FileId) -> io::Result<FollowedFile> {
        let mut position = FollowedFile {
            device: id.device,
            inode: id.inode,
            path: self.path.as_os_str().as_bytes().to_vec(),
            ..FollowedFile::default()
        };
        let rest = self.buffer.rest();
        if rest == 0 {
            position.offset = self.offset;
            position.remembered.clone_from(&self.remembered);
        } else if !self.was_truncated(&self.file.metadata()?)? {
            position.offset = self.offset - rest as u64;
            let length = position.offset.min(REMEMBERED as u64);
            position.remembered = vec![0; usize::try_from(length).unwrap_or(REMEMBERED)];
            let from = position.offset - length;
            self.file.read_exact_at(&mut position.remembered, from)?;
        }
        Ok(position)
    }

    /// Whether the file is gone and no process writes to it any more. The time counts from when it was gone,
    /// even if the file had not grown for long before: only then could its writer notice the rotation.
    fn is_over(&self, now: Instant) -> bool {
        self.gone_since
            .is_some_and(|gone| now.duration_since(gone.max(self.grew_at)) >= GRACE)
    }

    /// Reads lines until the batch is full. Returns whether all available lines were read.
    fn read(
        &mut self,
        chunk: &mut [u8],
        now: Instant,
        lines: &mut LineBatch,
    ) -> Result<bool, OperatorError> {
        loop {
            lines.take_from(&mut self.buffer)?;
            if lines.is_full() {
                return Ok(false);
            }
            match self.read_chunk(chunk) {
                Ok(0) => return Ok(true),
                Ok(read) => {
                    self.grew_at = now;
                    self.buffer.push(&chunk[..read]);
                }
                Err(error) => return Err(OperatorError::io("read", &self.path, error)),
            }
        }
    }

    fn read_chunk(&mut self, chunk: &mut [u8]) -> io::Result<usize> {
        let metadata = self.file.metadata()?;
        if self.was_truncated(&metadata)? {
            tracing::info!(path = ?self.path, "a followed file was truncated and is read from its beginning");
            self.file.rewind()?;
            self.offset = 0;
            self.remembered.clear();
            self.buffer.clear();
        }
        self.modified = metadata.modified().ok();
        let read = self.file.read(chunk)?;
        self.offset += read as u64;
        self.remembered
            .extend(&chunk[read.saturating_sub(REMEMBERED)..read]);
        let too_many = self.remembered.len().saturating_sub(REMEMBERED);
        self.remembered.drain(..too_many);
        Ok(read)
    }

    /// Whether the file was truncated since the last read. Its size alone does not say: it may have grown beyond its
    /// old size since. So the last bytes that were read are compared.
    fn was_truncated(&self, metadata: &Metadata) -> io::Result<bool> {
        if metadata.len() < self.offset {
            return Ok(true);
        }
        if metadata.len() == self.offset && metadata.modified().ok() == self.modified {
            return Ok(false);
        }
        let mut present = [0; REMEMBERED];
        let present = &mut present[..self.remembered.len()];
        let from = self.offset - self.remembered.len() as u64;
        match self.file.read_exact_at(present, from) {
            Ok(()) => Ok(*present != self.remembered[..]),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(true),
            Err(error) => Err(error),
        }
    }
}

impl Source for FollowFiles {
    fn restore(&mut self, restored: &Restored<'_>) -> Result<(), OperatorError> {
        let positions: Vec<FollowedFiles> = restored.position_messages(SIGNATURE)?;
        for file in positions.into_iter().flat_map(|position| position.files) {
            let FollowedFile { device, inode, .. } = file;
            let id = FileId { device, inode };
            if self.owns(id) {
                self.missing.insert(id, file);
            }
        }
        Ok(())
    }

    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        let mut files: Vec<FollowedFile> = self.missing.values().cloned().collect();
        for (id, file) in &self.files {
            let position = file.position(*id);
            files.push(position.map_err(|e| OperatorError::io("read", &file.path, e))?);
        }
        snapshot.save_position_message(SIGNATURE, &FollowedFiles { files });
        Ok(())
    }

    fn next(&mut self, now: Instant) -> Result<SourceState, OperatorError> {
        if self.next_discovery.is_none_or(|due| now >= due) {
            self.discover(now)?;
            self.look = Look::Later;
            self.drop_missing(now);
            self.next_discovery = Some(now + self.discovery_interval);
        }
        let mut lines = LineBatch::new();
        self.read(now, &mut lines)?;
        if lines.is_empty() {
            let due = self.next_discovery.unwrap_or(now);
            return Ok(SourceState::Wait(due.min(now + POLL)));
        }
        Ok(SourceState::Batch(lines.finish(&self.output)?))
    }
}

#[cfg(test)]
#[path = "follow_files_tests.rs"]
mod tests;
