//! Records that are larger than a transaction: their chunks, the record that points to them, and the remains
//! of a crash in between.

use crate::election::LeaderSession;
use crate::error::Error;
use crate::keys::{Key, Kind, Name};
use crate::records::CHUNKS;
use crate::records::store::{Prepared, Record, RecordStore, Stored};
use crate::store::Write;
use crate::store::pipeline::CommitPipeline;
use crate::testing::kinds::DOCUMENTS;

use super::{CaseResult, Process, Subject, until_definite};

/// A record that can't be compressed.
#[derive(Debug, Clone, PartialEq)]
struct Noise(Vec<u8>);

impl Record for Noise {
    const KIND: Kind = DOCUMENTS;
    const FORMAT: u16 = 1;
    const SPLITS: bool = true;

    fn encode(&self) -> Vec<u8> {
        self.0.clone()
    }

    fn decode(_format: u16, bytes: &[u8]) -> Result<Noise, String> {
        Ok(Noise(bytes.to_vec()))
    }
}

impl Noise {
    fn of(bytes: usize) -> Noise {
        let words = (0..bytes as u64 / 8).map(|n| xxhash_rust::xxh3::xxh3_64(&n.to_le_bytes()));
        Noise(words.flat_map(u64::to_le_bytes).collect())
    }
}

fn owner() -> Name {
    Name::new("item").expect("a name")
}

/// A leading process with its pipeline and record store.
struct Writer {
    /// Its election ends with it.
    _process: Process,
    term: LeaderSession,
    pipeline: CommitPipeline,
    records: RecordStore,
}

impl Writer {
    async fn start(subject: &dyn Subject, name: &str) -> CaseResult<Writer> {
        let process = Process::start(subject, name).await?;
        let term = process.leads().await;
        Writer::of(subject, process, term).await
    }

    /// The leader that follows `former`, which it deposes.
    async fn succeed(subject: &dyn Subject, name: &str, former: &Writer) -> CaseResult<Writer> {
        let process = Process::start(subject, name).await?;
        let epoch = former.term.epoch();
        process.election.depose(epoch).await?;
        let term = process.leads_after(epoch).await;
        Writer::of(subject, process, term).await
    }

    async fn of(
        subject: &dyn Subject,
        process: Process,
        term: LeaderSession,
    ) -> CaseResult<Writer> {
        let pipeline = process.pipeline(subject, &term).await?;
        let store = subject.store(&process.id).await?;
        Ok(Writer {
            _process: process,
            term,
            pipeline,
            records: RecordStore::new(store, None, 1024).with_max_split(usize::MAX),
        })
    }

    /// Writes the chunks of a record that does not fit into a transaction, without a record that points to
    /// them.
    async fn write_chunks(&self, record: &Noise) -> CaseResult<Prepared> {
        let prepared = self
            .records
            .prepare(&owner(), self.term.epoch(), record)
            .await?;
        assert!(prepared.chunks.len() > 1, "it is split");
        for chunk in &prepared.chunks {
            self.pipeline.commit(vec![chunk.clone()]).await?;
        }
        Ok(prepared)
    }

    async fn read(&self) -> crate::Result<Option<Stored<Noise>>> {
        until_definite(async || self.records.get::<Noise>(&owner()).await).await
    }

    async fn orphans(&self) -> crate::Result<Vec<Name>> {
        let epoch = self.term.epoch();
        until_definite(async || self.records.orphaned_chunks(epoch, |_, _| false).await).await
    }

    async fn delete(&self, names: Vec<Name>) -> CaseResult {
        let keys = names.into_iter().map(|name| Key::new(CHUNKS, name));
        let deletes: Vec<Write> = keys.map(|key| Write::Delete { key }).collect();
        for some in deletes.chunks(self.pipeline.limits().writes) {
            self.pipeline.commit(some.to_vec()).await?;
        }
        Ok(())
    }

    async fn chunks(&self) -> crate::Result<usize> {
        let store = self.records.coordination_store();
        let page = until_definite(async || store.list(CHUNKS, None, 8).await).await?;
        Ok(page.items.len())
    }

    fn larger_than_a_transaction(&self) -> Noise {
        Noise::of(self.pipeline.limits().bytes + 700_000)
    }
}

/// A record larger than a transaction is read as written, by this term and the next, and can be removed.
pub async fn a_record_larger_than_a_transaction_is_kept_in_chunks(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Writer::start(subject, "a").await?;
    let record = a.larger_than_a_transaction();
    let prepared = a.write_chunks(&record).await?;
    assert_eq!(a.read().await?, None, "nothing points to the chunks");
    a.pipeline.commit(vec![prepared.write.clone()]).await?;
    let stored = a.read().await?.expect("it is there");
    assert!(stored.record == record, "it is not what was written");
    let written: Vec<Name> = prepared
        .chunks
        .iter()
        .map(|chunk| chunk.key().name.clone())
        .collect();
    assert_eq!(stored.chunks, written);
    let listed = until_definite(async || a.records.list::<Noise>().await).await?;
    assert!(
        matches!(&listed[..], [(name, Ok(stored))] if *name == owner() && stored.record == record)
    );

    // The next term finds it, and knows that its chunks are in use.
    let b = Writer::succeed(subject, "b", &a).await?;
    let stored = b.read().await?.expect("it is still there");
    assert!(stored.record == record, "it is not what was written");
    let keeps = |_: &_, name: &Name| stored.chunks.contains(name);
    let orphans = b.records.orphaned_chunks(b.term.epoch(), keeps).await?;
    assert_eq!(orphans, []);
    let key = Key::new(DOCUMENTS, owner());
    b.pipeline.commit(vec![Write::Delete { key }]).await?;
    b.delete(stored.chunks).await?;
    assert_eq!(b.chunks().await?, 0);
    Ok(())
}

/// Chunks of a term that ended before it wrote their record are found and removed by the next term. Late
/// writes of the earlier term are refused, so that no record ever points to removed chunks.
pub async fn chunks_without_a_record_are_removed_by_the_next_term(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Writer::start(subject, "a").await?;
    let prepared = a.write_chunks(&a.larger_than_a_transaction()).await?;
    assert_eq!(
        a.orphans().await?,
        [],
        "those of its own term may still be pointed to"
    );
    let b = Writer::succeed(subject, "b", &a).await?;
    let orphans = b.orphans().await?;
    assert_eq!(orphans.len(), prepared.chunks.len());
    b.delete(orphans).await?;
    assert_eq!(b.chunks().await?, 0);
    let late = a.pipeline.commit(vec![prepared.write.clone()]).await;
    assert!(late.is_err(), "{late:?}");
    assert_eq!(b.read().await?, None);
    Ok(())
}

/// A record above the split limit is refused before anything is written, and the error names the option to
/// set.
pub async fn a_record_above_the_limit_is_refused_before_anything_is_written(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Writer::start(subject, "a").await?;
    let record = a.larger_than_a_transaction();
    let before = a.pipeline.last();
    let records = a.records.clone().with_max_split(record.0.len() - 1);
    let refused = records.prepare(&owner(), a.term.epoch(), &record).await;
    let error = refused.expect_err("too large");
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("high-availability.store.max-graph-size"),
        "{text}"
    );
    assert_eq!(a.pipeline.last(), before);
    assert_eq!(a.chunks().await?, 0);
    Ok(())
}
