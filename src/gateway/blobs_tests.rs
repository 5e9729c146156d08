//! Holding, serving and fetching content within one process, and the content that is refused.

use std::sync::atomic::{AtomicUsize, Ordering};

use tanist_ha::blob::BlobOptions;
use tanist_ha::election::Epoch;

use super::*;
use crate::LocalConnector;
use crate::local::Fault;

const TIMEOUT: Duration = Duration::from_secs(5);

fn noise(size: usize) -> Bytes {
    let words = (0..size as u64 / 8).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    Bytes::from(words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>())
}

/// Sends its content, ignoring the request.
#[derive(Debug)]
struct Liar(Bytes);

#[async_trait]
impl BlobGateway for Liar {
    async fn fetch(&self, _: pb::FetchBlobRequest) -> GatewayResult<BlobStream> {
        Ok(stream::iter(vec![Ok(self.0.clone())]).boxed())
    }
}

fn world() -> (LocalConnector, ServedBlobs, BlobFetcher) {
    let connector = LocalConnector::default();
    let served = ServedBlobs::new("jm:1");
    connector.put_blobs("jm:1", Arc::new(served.clone()));
    let fetcher = BlobFetcher::new(Arc::new(connector.clone()), TIMEOUT);
    (connector, served, fetcher)
}

#[tokio::test]
async fn held_content_is_served_until_its_last_holder_is_dropped() {
    let (_, served, fetcher) = world();
    let content = noise(1_000_000);
    let first = served.hold(content.clone()).await.expect("held");
    let second = served.hold(content.clone()).await.expect("held");
    let reference = first.reference();
    assert_eq!(reference.size, 1_000_000);
    assert_eq!(fetcher.fetch(&reference).await, Ok(content.clone()));
    drop(first);
    assert_eq!(fetcher.fetch(&reference).await, Ok(content));
    drop(second);
    assert_eq!(served.held(), 0);
    let gone = fetcher.fetch(&reference).await;
    assert!(matches!(gone, Err(GatewayError::NotFound(_))), "{gone:?}");
}

#[tokio::test]
async fn an_object_of_the_blob_store_is_fetched_by_its_name() {
    let (_, served, fetcher) = world();
    let directory = tempfile::tempdir().expect("a directory");
    let url = directory.path().to_string_lossy().into_owned();
    let shared = false;
    let store = BlobStore::open(&BlobOptions { url, shared }).await;
    let store = Arc::new(store.expect("opened"));
    let content = noise(700_000);
    let owner = Name::new("job").expect("a name");
    let stored = store.put(&owner, Epoch::new(1), content.clone());
    let stored = stored.await.expect("stored");
    let mut reference = pb::BlobReference {
        sha256: stored.sha256.as_bytes().to_vec(),
        size: stored.size,
        endpoints: vec!["jm:1".to_owned()],
        object: stored.name.to_string(),
    };
    let early = fetcher.fetch(&reference).await;
    assert!(matches!(early, Err(GatewayError::NotFound(_))), "{early:?}");
    served.serve_store(store);
    assert_eq!(fetcher.fetch(&reference).await, Ok(content));
    reference.object = "never-stored".to_owned();
    let none = fetcher.fetch(&reference).await;
    assert!(matches!(none, Err(GatewayError::NotFound(_))), "{none:?}");
}

#[tokio::test]
async fn content_that_is_not_what_was_asked_for_is_refused() {
    let (connector, served, fetcher) = world();
    let content = noise(800);
    let held = served.hold(content.clone()).await.expect("held");
    let mut changed = content.to_vec();
    changed[400] ^= 1;
    let longer = [&content[..], b"!"].concat();
    for (sent, complaint) in [
        (changed, "SHA-256"),
        (content[..799].to_vec(), "799 bytes"),
        (longer, "more than the 800 requested bytes"),
    ] {
        connector.put_blobs("jm:1", Arc::new(Liar(Bytes::from(sent))));
        let refused = fetcher.fetch(&held.reference()).await.expect_err("a lie");
        let text = refused.to_string();
        assert!(text.contains(complaint) && text.contains("jm:1"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn another_server_is_asked_when_one_is_gone_or_silent() {
    let (connector, served, fetcher) = world();
    let content = noise(800);
    let held = served.hold(content.clone()).await.expect("held");
    connector.put_blobs("silent:1", Arc::new(served.clone()));
    connector.set_fault("silent:1", Fault::Silent);
    let mut reference = held.reference();
    for other in ["gone:1", "silent:1"] {
        reference.endpoints.insert(0, other.to_owned());
    }
    assert_eq!(fetcher.fetch(&reference).await, Ok(content));
    reference.endpoints.truncate(1);
    let silent = fetcher.fetch(&reference).await;
    let is_retryable = silent.as_ref().is_err_and(GatewayError::is_retryable);
    assert!(is_retryable, "{silent:?}");
}

/// Refuses its first requests as if it had no free connection.
#[derive(Debug)]
struct Full {
    served: ServedBlobs,
    refuses: AtomicUsize,
}

#[async_trait]
impl BlobGateway for Full {
    async fn fetch(&self, request: pb::FetchBlobRequest) -> GatewayResult<BlobStream> {
        let one_less = |left: usize| left.checked_sub(1);
        let (before, after) = (Ordering::SeqCst, Ordering::SeqCst);
        match self.refuses.fetch_update(before, after, one_less) {
            Ok(_) => Err(GatewayError::NotYet("it is full".to_owned())),
            Err(_) => self.served.fetch(request).await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_without_room_is_asked_again_until_the_timeout() {
    let (connector, served, fetcher) = world();
    let content = noise(800);
    let held = served.hold(content.clone()).await.expect("held");
    let reference = held.reference();
    let full = Arc::new(Full {
        served,
        refuses: AtomicUsize::new(5),
    });
    connector.put_blobs("jm:1", full.clone());
    let fetched = fetcher.fetch_with_retries(&reference, TIMEOUT).await;
    assert_eq!(fetched, Ok(content));
    full.refuses.store(usize::MAX, Ordering::SeqCst);
    let begun = Instant::now();
    let refused = fetcher.fetch_with_retries(&reference, TIMEOUT).await;
    assert_eq!(refused, Err(GatewayError::NotYet("it is full".to_owned())));
    assert!(begun.elapsed() <= TIMEOUT, "{:?}", begun.elapsed());
    // A fetch of missing content is not retried.
    full.refuses.store(0, Ordering::SeqCst);
    drop(held);
    let begun = Instant::now();
    let gone = fetcher.fetch_with_retries(&reference, TIMEOUT).await;
    assert!(matches!(gone, Err(GatewayError::NotFound(_))), "{gone:?}");
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test]
async fn content_larger_than_any_record_is_not_requested() {
    let (_, _, fetcher) = world();
    let reference = pb::BlobReference {
        sha256: vec![0; 32],
        size: u64::MAX,
        endpoints: vec!["jm:1".to_owned()],
        object: String::new(),
    };
    let refused = fetcher.fetch(&reference).await;
    assert!(
        matches!(refused, Err(GatewayError::Invalid(_))),
        "{refused:?}"
    );
}
