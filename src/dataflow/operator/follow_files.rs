//! Follows text files: reads them line by line and goes on when they grow, and looks now and then for files that are new.
//!
//! A file is known by its device and inode, not by its name, and belongs to the subtask that its inode chooses: one that is
//! renamed goes on being read where it was, by whoever had it. A file that became shorter, or has something else where it was
//! read last, was truncated and is read from its beginning. One that
//! is gone (deleted, or renamed to what no path names) is read until it has not grown for a while since, so that what is written
//! just before and after a rotation is not lost. What stands behind a file's last line break waits for its line break, and
//! counts as a line when the file is gone.
//!
//! A file that is not there is waited for; what can't be read although it is there is an error, from the first look on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use arrow_schema::SchemaRef;
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

use super::file_source::matching;
use super::input::{Look, unreadable};
use super::lines::{LineBatch, LineBuffer};
use super::{OperatorContext, OperatorError, Source, SourceState};
use crate::job::spec;

/// How long it waits for growth.
const POLL: Duration = Duration::from_millis(50);
/// A file is closed when it has been gone, and has not grown, for so long.
const GRACE: Duration = Duration::from_secs(10);
const CHUNK: usize = 64 * 1024;
/// So much of what was read last tells a file that has grown from one that was written anew.
const REMEMBERED: usize = 128;

pub(super) struct FollowFiles {
    paths: Vec<String>,
    subtask: u64,
    parallelism: u64,
    discovery_interval: Duration,
    output: SchemaRef,
    files: BTreeMap<FileId, Followed>,
    next_discovery: Option<Instant>,
    /// Before the first look is over: what can't be read then never could.
    look: Look,
    /// The file that was read last.
    last: Option<FileId>,
    chunk: Vec<u8>,
}

/// A file, whatever it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FileId {
    device: u64,
    inode: u64,
}

struct Followed {
    path: PathBuf,
    file: File,
    /// How much of it was read.
    offset: u64,
    /// The last bytes of that.
    remembered: Vec<u8>,
    /// When it was last written before that.
    modified: Option<SystemTime>,
    buffer: LineBuffer,
    /// When it was first seen to be gone.
    gone_since: Option<Instant>,
    grew_at: Instant,
}

impl FollowFiles {
    pub(super) fn new(spec: &spec::FollowFiles, context: &OperatorContext) -> FollowFiles {
        FollowFiles {
            paths: spec.paths.clone(),
            subtask: u64::from(context.subtask),
            parallelism: u64::from(context.parallelism.max(1)),
            discovery_interval: Duration::from_millis(spec.discovery_interval_ms),
            output: context.output_schema(),
            files: BTreeMap::new(),
            next_discovery: None,
            look: Look::at_start_of(context.generation),
            last: None,
            chunk: vec![0; CHUNK],
        }
    }

    /// Finds files that are new, and those that are gone.
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
            // Files come and go between two looks: what isn't there is found later, if it comes back.
            let Some(metadata) = there(fs::metadata(&path), &path, self.look)? else {
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
                && let Some(file) = there(File::open(&path), &path, self.look)?
            {
                // It may be another one than a moment ago.
                let opened = file.metadata();
                let id = FileId::of(&opened.map_err(|e| OperatorError::io("read", &path, e))?);
                if self.owns(id) && !self.files.contains_key(&id) {
                    tracing::debug!(?path, "following a file");
                    self.files.insert(id, Followed::new(path, file, now));
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

    fn owns(&self, id: FileId) -> bool {
        xxh3_64(&id.inode.to_le_bytes()) % self.parallelism == self.subtask
    }

    /// Takes lines from all files in turn until there are enough.
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

/// Whether a file that was looked for is there.
fn there<T>(found: io::Result<T>, path: &Path, look: Look) -> Result<Option<T>, OperatorError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(path, error, look)),
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

    /// Whether it is gone and nobody writes to it any more. It may have been silent for long before that: whoever had it open has had
    /// time to notice only since then.
    fn is_over(&self, now: Instant) -> bool {
        self.gone_since
            .is_some_and(|gone| now.duration_since(gone.max(self.grew_at)) >= GRACE)
    }

    /// Takes lines until there are enough, and says whether that is all there is.
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

    /// It may have grown beyond what it was since.
    fn was_truncated(&self, metadata: &Metadata) -> io::Result<bool> {
        if metadata.len() < self.offset {
            return Ok(true);
        }
        if metadata.len() == self.offset && metadata.modified().ok() == self.modified {
            return Ok(false);
        }
        let mut there = [0; REMEMBERED];
        let there = &mut there[..self.remembered.len()];
        let from = self.offset - self.remembered.len() as u64;
        match self.file.read_exact_at(there, from) {
            Ok(()) => Ok(*there != self.remembered[..]),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(true),
            Err(error) => Err(error),
        }
    }
}

impl Source for FollowFiles {
    fn next(&mut self, now: Instant) -> Result<SourceState, OperatorError> {
        if self.next_discovery.is_none_or(|due| now >= due) {
            self.discover(now)?;
            self.look = Look::Later;
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
