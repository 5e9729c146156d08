//! Many items, small and large values, and transactions that are too large.

use bytes::Bytes;

use super::{
    CaseResult, Process, Subject, key, names, put, put_bytes, raw, read_item, until_definite,
};
use crate::election::ProcessId;
use crate::error::{Error, Outcome};
use crate::store::Write;
use crate::store::pipeline::CommitError;

const MANY: usize = 10_000;

/// Ten thousand items are listed completely, page by page, in order.
pub async fn ten_thousand_items_are_listed_page_by_page(subject: &dyn Subject) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let term = a.leads().await;
    let pipeline = a.pipeline(subject, &term).await?;
    let all: Vec<String> = (0..MANY)
        .map(|number| format!("item-{number:05}"))
        .collect();
    for batch in all.chunks(pipeline.limits().writes) {
        let writes = batch.iter().map(|name| put(name, name)).collect();
        pipeline.commit(writes).await?;
    }
    let store = subject.store(&ProcessId::new("reader")).await?;
    for limit in [700, 20_000] {
        let listed = names(&*store, limit).await?;
        assert!(
            listed
                .iter()
                .map(|name| name.as_str())
                .eq(all.iter().map(String::as_str)),
            "{} items, from {:?} to {:?}",
            listed.len(),
            listed.first(),
            listed.last()
        );
    }
    let page = store.list(crate::testing::kinds::ITEMS, None, 500).await?;
    assert!(!page.items.is_empty() && page.next.is_some());
    for (name, value) in &page.items {
        assert_eq!(value, name.as_str(), "each has its own value");
    }
    let keys: Vec<_> = all.iter().step_by(97).map(|name| key(name)).collect();
    let values = until_definite(async || store.get(&keys).await).await?;
    assert!(
        keys.iter()
            .zip(&values)
            .all(|(key, value)| { value.as_deref() == Some(key.name.as_str().as_bytes()) })
    );
    Ok(())
}

/// Values from one byte up to the store's limit are read as written.
pub async fn values_of_all_sizes_are_kept(subject: &dyn Subject) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let term = a.leads().await;
    let pipeline = a.pipeline(subject, &term).await?;
    let store = subject.store(&ProcessId::new("reader")).await?;
    let overhead = put("size-0000000", "").size();
    let largest = pipeline.limits().bytes - overhead;
    let sizes = [
        0,
        1,
        1000,
        1 << 16,
        500_000,
        (1 << 20).min(largest),
        largest,
    ];
    let mut written = Vec::new();
    for size in sizes {
        let name = format!("size-{size:07}");
        let bytes: Vec<u8> = (0..size)
            .map(|at| u8::try_from(at % 251).unwrap_or(0))
            .collect();
        let value = Bytes::from(bytes);
        pipeline
            .commit(vec![put_bytes(&name, value.clone())])
            .await?;
        written.push((name, value));
    }
    for (name, value) in &written {
        let read = read_item(&*store, name).await?;
        assert!(
            read.as_ref() == Some(value),
            "{name} is not what was written"
        );
    }
    let keys: Vec<_> = written.iter().map(|(name, _)| key(name)).collect();
    let together = until_definite(async || store.get(&keys).await).await?;
    assert!(
        together
            .iter()
            .zip(&written)
            .all(|(read, (_, value))| read.as_ref() == Some(value))
    );
    // Together they are larger than one answer.
    let listed = names(&*store, 100).await?;
    let mut expected: Vec<&str> = written.iter().map(|(name, _)| name.as_str()).collect();
    expected.sort_unstable();
    expected.dedup();
    assert!(listed.iter().map(|name| name.as_str()).eq(expected));
    Ok(())
}

/// A transaction that is too large is refused with a clear error, and other requests in flight are not
/// affected.
pub async fn a_transaction_too_large_harms_nothing(subject: &dyn Subject) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let term = a.leads().await;
    let pipeline = a.pipeline(subject, &term).await?;
    let store = subject.store(&ProcessId::new("stranger")).await?;
    let limits = pipeline.limits();
    let first = pipeline.commit(vec![put("item", "1")]).await?;
    // More than the store's own limit, which may be higher than the limit used here.
    let value = Bytes::from(vec![7; limits.bytes.max(1 << 20) * 2]);
    let large = || vec![put_bytes("large", value.clone())];
    let many = (0..=limits.writes).map(|number| put(&format!("many-{number}"), "x"));

    // Bypasses the pipeline, so that the store itself refuses.
    let request = raw(&term, first, large());
    let item = [key("item")];
    let (refused, read, guard) =
        tokio::join!(store.commit(&request), store.get(&item), store.guard());
    let error = refused.expect_err("too large");
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    assert_eq!(error.outcome(), Outcome::Fatal);
    assert!(error.to_string().contains("bytes"), "{error}");
    assert_eq!(read?, [Some("1".into())]);
    assert_eq!(guard?.change, first);

    for writes in [large(), many.collect()] {
        let (refused, committed) = tokio::join!(
            pipeline.commit(writes),
            pipeline.commit(vec![put("item", "3")])
        );
        assert!(
            matches!(refused, Err(CommitError::TooLarge(_))),
            "{refused:?}"
        );
        committed?;
    }
    a.leads_in(&term).await;
    assert_eq!(read_item(&*store, "large").await?, None);

    // A transaction at the limits, by number and by bytes, is accepted.
    let names = (0..limits.writes).map(|number| format!("full-{number:05}"));
    let blank = put("full-00000", "").size();
    let value = Bytes::from(vec![
        7;
        (limits.bytes / limits.writes).saturating_sub(blank)
    ]);
    let full: Vec<Write> = names.map(|name| put_bytes(&name, value.clone())).collect();
    pipeline.commit(full).await?;
    Ok(())
}
