//! Reads of a job's stored generations by a TaskManager.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use tanist_gateway::{JobRecords as _, StoredGenerations};
use tanist_ha::Result;
use tanist_ha::keys::{Key, Kind, Name};
use tanist_ha::memory::MemoryStore;
use tanist_ha::records::store::RecordStore;
use tanist_ha::store::{
    Change, CommitReply, CommitRequest, CoordinationStore, Guard, Limits, Page, PageToken, Touched,
};
use tanist_proto::id::{Generation, JobId};
use tokio::sync::watch;

use crate::job_records::StoredJobRecords;
use crate::testing::cluster::{TestCluster, graph};

const JOB: JobId = JobId::from_bits(0xA);
const OTHER: JobId = JobId::from_bits(0xB);

/// Counts the records that are read.
#[derive(Debug)]
struct Counting {
    inner: MemoryStore,
    reads: Arc<AtomicUsize>,
}

#[async_trait]
impl CoordinationStore for Counting {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Bytes>>> {
        self.reads.fetch_add(keys.len(), Ordering::Relaxed);
        self.inner.get(keys).await
    }

    async fn list(&self, kind: Kind, page: Option<PageToken>, limit: usize) -> Result<Page> {
        self.inner.list(kind, page, limit).await
    }

    async fn guard(&self) -> Result<Guard> {
        self.inner.guard().await
    }

    fn changes(&self) -> watch::Receiver<Option<Change>> {
        self.inner.changes()
    }

    async fn touched(&self, first: u64, last: u64) -> Result<Vec<Option<Touched>>> {
        self.inner.touched(first, last).await
    }

    async fn commit(&self, request: &CommitRequest) -> Result<CommitReply> {
        self.inner.commit(request).await
    }
}

/// Returns JOB's records under OTHER's name, too.
#[derive(Debug)]
struct Misplaced(MemoryStore);

#[async_trait]
impl CoordinationStore for Misplaced {
    fn limits(&self) -> Limits {
        self.0.limits()
    }

    async fn get(&self, keys: &[Key]) -> Result<Vec<Option<Bytes>>> {
        let of_job = Name::new(JOB.to_string()).expect("a name");
        let keys = keys.iter().map(|key| Key::new(key.kind, of_job.clone()));
        self.0.get(&keys.collect::<Vec<Key>>()).await
    }

    async fn list(&self, kind: Kind, page: Option<PageToken>, limit: usize) -> Result<Page> {
        self.0.list(kind, page, limit).await
    }

    async fn guard(&self) -> Result<Guard> {
        self.0.guard().await
    }

    fn changes(&self) -> watch::Receiver<Option<Change>> {
        self.0.changes()
    }

    async fn touched(&self, first: u64, last: u64) -> Result<Vec<Option<Touched>>> {
        self.0.touched(first, last).await
    }

    async fn commit(&self, request: &CommitRequest) -> Result<CommitReply> {
        self.0.commit(request).await
    }
}

fn records(cluster: &TestCluster) -> (StoredJobRecords, Arc<AtomicUsize>) {
    let reads = Arc::new(AtomicUsize::new(0));
    let store = Counting {
        inner: cluster.memory.store(),
        reads: reads.clone(),
    };
    let records = StoredJobRecords::opened(RecordStore::new(Arc::new(store), None, 0));
    (records, reads)
}

#[tokio::test(start_paused = true)]
async fn a_job_is_present_with_its_generations_then_ended_and_another_one_is_absent() {
    let cluster = TestCluster::start(1, 1, 2).await;
    let (records, _) = records(&cluster);
    let submitted = cluster.client.submit(&graph(JOB, 2), "t").await;
    submitted.expect("accepted");
    cluster.until_running(JOB, 4).await;
    let stored_jobs = records
        .stored_jobs(&[JOB, OTHER])
        .await
        .expect("it answers");
    assert_eq!(stored_jobs.epoch.get(), 1);
    let expected = [
        (JOB, StoredGenerations::Present(vec![Generation::new(1)])),
        (OTHER, StoredGenerations::Absent),
    ];
    assert_eq!(stored_jobs.jobs, BTreeMap::from(expected));
    cluster.world.finish_tasks(JOB);
    cluster.until_clean(JOB).await;
    let stored_jobs = records.stored_jobs(&[JOB]).await.expect("it answers");
    assert_eq!(
        stored_jobs.jobs,
        BTreeMap::from([(JOB, StoredGenerations::Ended)])
    );
}

#[tokio::test(start_paused = true)]
async fn records_are_read_again_only_after_a_transaction() {
    let mut cluster = TestCluster::start(1, 1, 2).await;
    let (records, reads) = records(&cluster);
    let submitted = cluster.client.submit(&graph(JOB, 2), "t").await;
    submitted.expect("accepted");
    cluster.until_running(JOB, 4).await;
    cluster.kill_job_manager("jm1").await;
    let first = records.stored_jobs(&[JOB]).await.expect("it answers");
    let read = reads.load(Ordering::Relaxed);
    for _ in 0..100 {
        let again = records.stored_jobs(&[JOB]).await.expect("it answers");
        assert_eq!(again, first);
    }
    assert_eq!(reads.load(Ordering::Relaxed), read);
    // Another job is queried: only that one is read.
    records
        .stored_jobs(&[JOB, OTHER])
        .await
        .expect("it answers");
    assert!(reads.load(Ordering::Relaxed) <= read + 2);
    cluster.start_job_manager("jm1");
    cluster.until_running(JOB, 4).await;
    let later = records.stored_jobs(&[JOB]).await.expect("it answers");
    assert_eq!(later.epoch.get(), 2);
    assert!(reads.load(Ordering::Relaxed) > read + 2);
}

#[tokio::test(start_paused = true)]
async fn a_record_of_another_job_says_nothing_about_the_one_whose_name_it_stands_under() {
    let cluster = TestCluster::start(1, 1, 2).await;
    let store = Misplaced(cluster.memory.store());
    let records = StoredJobRecords::opened(RecordStore::new(Arc::new(store), None, 0));
    let submitted = cluster.client.submit(&graph(JOB, 2), "t").await;
    submitted.expect("accepted");
    cluster.until_running(JOB, 4).await;
    let stored_jobs = records.stored_jobs(&[OTHER]).await.expect("it answers");
    let stored_generations = &stored_jobs.jobs[&OTHER];
    let is_told = |reason: &str| reason.contains(&format!("is of job {JOB}"));
    assert!(
        matches!(stored_generations, StoredGenerations::Unreadable(reason) if is_told(reason)),
        "{stored_generations:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_store_that_was_wiped_gives_no_answer() {
    let mut cluster = TestCluster::start(1, 1, 2).await;
    let (records, _) = records(&cluster);
    cluster.leader().await;
    records.stored_jobs(&[JOB]).await.expect("it answers");
    cluster.kill_job_manager("jm1").await;
    cluster.memory.wipe();
    records.stored_jobs(&[JOB]).await.expect_err("it is empty");
}
