//! Copies the objects of a checkpoint into the directory of a savepoint, each under the SHA-256 of its bytes.
//!
//! Invariants: the bytes that are written under a name have that checksum, and the checksum of each range that the
//! checkpoint names was compared; a difference is `Corrupt`. Memory is bounded: a small object is read once, a larger
//! one twice, in pieces, first for its checksum.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use sha2::{Digest as _, Sha256};
use tanist_ha::blob::{Checksum, ObjectDirectory, ObjectRange, ObjectUpload, STORE};
use tanist_ha::failpoint::failpoint;
use tanist_ha::{Error, Result};
use xxhash_rust::xxh3::Xxh3;

/// The size of an object that is held in memory.
const SMALL: u64 = 16 << 20;
/// The size of a piece of a larger one.
const PIECE: u64 = 8 << 20;
/// Maximum number of pieces that a store takes.
const MOST_PIECES: u64 = 9_000;
/// Objects that are copied at the same time.
const AT_ONCE: usize = 4;
/// Time without an answer after which one step of a copy has failed: a file system that hangs returns no error. Each
/// step is the reading or writing of one piece, so a copy of any size has time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// An object of a savepoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Copied {
    pub(super) sha256: Checksum,
    pub(super) size: u64,
}

/// Sizes that tests make smaller.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) small: u64,
    pub(super) piece: u64,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes {
            small: SMALL,
            piece: PIECE,
        }
    }
}

/// Copies every object that has one of `ranges`. Returns the copies by the names of the objects.
pub(super) async fn copy_all(
    source: &ObjectDirectory,
    ranges: &[ObjectRange],
    target: &ObjectDirectory,
    sizes: Sizes,
) -> Result<BTreeMap<String, Copied>> {
    let mut of_objects: BTreeMap<&str, Vec<&ObjectRange>> = BTreeMap::new();
    for range in ranges {
        of_objects.entry(&range.object).or_default().push(range);
    }
    let copies = of_objects.into_iter().map(|(object, mut ranges)| {
        ranges.sort_by_key(|range| (range.offset, range.length, range.checksum));
        ranges.dedup();
        let copy = Copy {
            source,
            object,
            target,
            sizes,
        };
        async move { Ok((object.to_owned(), copy.run(ranges).await?)) }
    });
    // Collected first: the closures borrow.
    let copies: Vec<_> = copies.collect();
    let copies = stream::iter(copies).buffer_unordered(AT_ONCE);
    copies.try_collect().await
}

/// Calculates the checksum of an object in pieces.
pub(super) async fn checksum_of(
    source: &ObjectDirectory,
    object: &str,
    size: u64,
) -> Result<Checksum> {
    let mut sums = Sums::new(Vec::new());
    for piece in pieces(size, PIECE) {
        let bytes = read(source, object, piece).await?;
        sums = sums.with(bytes).await?;
    }
    Ok(sums.finish().0)
}

/// Limits one step to [`ANSWER_TIMEOUT`].
pub(super) async fn answered<T>(what: &str, step: impl Future<Output = Result<T>>) -> Result<T> {
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, step).await;
    answer.unwrap_or_else(|_elapsed| {
        Err(Error::Unavailable {
            store: STORE,
            reason: format!("{what} has given no answer for {ANSWER_TIMEOUT:?}"),
        })
    })
}

struct Copy<'a> {
    source: &'a ObjectDirectory,
    object: &'a str,
    target: &'a ObjectDirectory,
    sizes: Sizes,
}

impl Copy<'_> {
    async fn run(&self, ranges: Vec<&ObjectRange>) -> Result<Copied> {
        let size = answered(self.object, self.source.size_of(self.object)).await?;
        if let Some(range) = ranges.iter().find(|range| !fits(range, size)) {
            let (offset, length) = (range.offset, range.length);
            let reason = format!("it has {size} bytes, and no {length} from {offset} on");
            return Err(self.source.corrupt(self.object, reason));
        }
        let mut sums = Sums::new(ranges.into_iter().cloned().collect());
        let mut whole = None;
        let piece = match size <= self.sizes.small {
            true => size.max(1),
            false => self.sizes.piece.max(size / MOST_PIECES),
        };
        for range in pieces(size, piece) {
            let bytes = read(self.source, self.object, range).await?;
            whole = (size <= self.sizes.small).then(|| bytes.clone());
            sums = sums.with(bytes).await?;
        }
        let (sha256, different) = sums.finish();
        if let Some(range) = different {
            let (offset, length) = (range.offset, range.length);
            let reason = format!("{length} bytes from {offset} on are not those that were written");
            return Err(self.source.corrupt(self.object, reason));
        }
        let copied = Copied { sha256, size };
        let name = sha256.to_string();
        let place = self.target.location();
        // An earlier copy may have written it, or another object may have the same bytes.
        let found = answered(&place, self.target.find_size(&name)).await?;
        if found != Some(size) {
            let put = |bytes| answered(&place, self.target.put(&name, bytes));
            match (size, whole) {
                (0, _) => put(Bytes::new()).await?,
                (_, Some(bytes)) => put(bytes).await?,
                (_, None) => self.put_in_pieces(&name, copied, piece).await?,
            }
        }
        failpoint("savepoint.some-copied").await;
        Ok(copied)
    }

    async fn put_in_pieces(&self, name: &str, copied: Copied, piece: u64) -> Result<()> {
        let place = self.target.location();
        let mut upload = answered(&place, self.target.begin(name)).await?;
        let written = self.put_pieces(&mut upload, copied, piece).await;
        if written.is_err() {
            let _it_stays_unfinished = answered(&place, upload.abort()).await;
            return written;
        }
        answered(&place, upload.complete()).await
    }

    async fn put_pieces(
        &self,
        upload: &mut ObjectUpload,
        copied: Copied,
        piece: u64,
    ) -> Result<()> {
        let place = self.target.location();
        let mut sums = Sums::new(Vec::new());
        for range in pieces(copied.size, piece) {
            let bytes = read(self.source, self.object, range).await?;
            sums = sums.with(bytes.clone()).await?;
            answered(&place, upload.put_part(bytes)).await?;
        }
        if sums.finish().0 == copied.sha256 {
            return Ok(());
        }
        let reason = "its bytes changed while it was copied".to_owned();
        Err(self.source.corrupt(self.object, reason))
    }
}

fn fits(range: &ObjectRange, size: u64) -> bool {
    let end = range.offset.checked_add(range.length);
    end.is_some_and(|end| end <= size)
}

/// The ranges of the pieces of an object of this size.
fn pieces(size: u64, piece: u64) -> impl Iterator<Item = Range<u64>> {
    let starts = (0..size.div_ceil(piece)).map(move |number| number * piece);
    starts.map(move |start| start..size.min(start + piece))
}

async fn read(source: &ObjectDirectory, object: &str, range: Range<u64>) -> Result<Bytes> {
    let end = range.end;
    let bytes = answered(object, source.read(object, range)).await?;
    bytes.ok_or_else(|| source.corrupt(object, format!("it ends before byte {end}")))
}

/// The checksum of an object, and those of its ranges, as far as it was read.
struct Sums {
    whole: Sha256,
    /// Ordered by offset.
    ranges: Vec<(ObjectRange, Xxh3)>,
    at: u64,
}

impl Sums {
    fn new(ranges: Vec<ObjectRange>) -> Sums {
        let ranges = ranges.into_iter().map(|range| (range, Xxh3::new()));
        Sums {
            whole: Sha256::new(),
            ranges: ranges.collect(),
            at: 0,
        }
    }

    /// Adds the next bytes, on a blocking thread: a large object would delay the runtime.
    async fn with(mut self, bytes: Bytes) -> Result<Sums> {
        let adding = tokio::task::spawn_blocking(move || {
            self.add(&bytes);
            self
        });
        adding.await.map_err(|error| Error::Unavailable {
            store: STORE,
            reason: error.to_string(),
        })
    }

    fn add(&mut self, bytes: &[u8]) {
        self.whole.update(bytes);
        let start = self.at;
        self.at += bytes.len() as u64;
        for (range, sum) in &mut self.ranges {
            let from = range.offset.clamp(start, self.at) - start;
            let to = (range.offset + range.length).clamp(start, self.at) - start;
            let within = |offset: u64| usize::try_from(offset).expect("within the bytes");
            sum.update(&bytes[within(from)..within(to)]);
        }
    }

    /// The checksum of all bytes, and the first range that has another one than was written.
    fn finish(self) -> (Checksum, Option<ObjectRange>) {
        let sha256 = Checksum::from(<[u8; 32]>::from(self.whole.finalize()));
        let mut ranges = self.ranges.into_iter();
        let different = ranges.find(|(range, sum)| sum.digest() != range.checksum);
        (sha256, different.map(|(range, _)| range))
    }
}
