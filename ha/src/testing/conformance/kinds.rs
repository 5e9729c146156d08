//! The kinds of items are those that the store was opened with, and no others.

use bytes::Bytes;

use super::{CaseResult, Process, Subject, key, put, raw, until_definite};
use crate::election::ProcessId;
use crate::error::{Error, Outcome};
use crate::keys::{Key, Kind, Name};
use crate::records::CHUNKS;
use crate::store::Write;
use crate::testing::kinds::KINDS;

/// A kind that no store here is opened with.
const UNDECLARED: Kind = Kind::new("undeclared");

/// One name stands for another item in each kind, also in those of this crate.
pub async fn items_of_each_declared_kind_are_kept_apart(subject: &dyn Subject) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let term = a.leads().await;
    let pipeline = a.pipeline(subject, &term).await?;
    let name = Name::new("same")?;
    let put = |kind: Kind| Write::Put {
        key: Key::new(kind, name.clone()),
        value: Bytes::from(kind.directory()),
    };
    pipeline.commit(KINDS.iter().map(put).collect()).await?;
    let store = subject.store(&ProcessId::new("reader")).await?;
    let kinds: Vec<Kind> = KINDS.iter().collect();
    assert!(kinds.contains(&CHUNKS));
    for kind in &kinds {
        let page = until_definite(async || store.list(*kind, None, 10).await).await?;
        let expected = (name.clone(), Bytes::from(kind.directory()));
        assert_eq!(page.items, [expected]);
    }
    let keys = until_definite(async || store.keys(&kinds).await).await?;
    let expected = kinds.iter().map(|kind| Key::new(*kind, name.clone()));
    assert_eq!(keys, expected.collect::<Vec<_>>());
    Ok(())
}

/// Items of another kind are neither written nor read, and the term goes on.
pub async fn a_kind_that_was_not_declared_is_refused(subject: &dyn Subject) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let term = a.leads().await;
    let pipeline = a.pipeline(subject, &term).await?;
    let first = pipeline.commit(vec![put("item", "1")]).await?;
    let store = subject.store(&ProcessId::new("stranger")).await?;
    let unknown = Key::new(UNDECLARED, Name::new("item")?);
    let write = Write::Put {
        key: unknown.clone(),
        value: Bytes::from_static(b"x"),
    };
    let request = raw(&term, first, vec![put("item", "2"), write]);
    let kinds = [UNDECLARED];
    let refused = [
        store.commit(&request).await.map(drop),
        store.get(&[unknown]).await.map(drop),
        store.list(UNDECLARED, None, 10).await.map(drop),
        store.keys(&kinds).await.map(drop),
    ];
    for result in refused {
        let error = result.expect_err("not declared");
        assert!(matches!(error, Error::Misconfigured(_)), "{error}");
        assert_eq!(error.outcome(), Outcome::Fatal);
        assert!(error.to_string().contains("\"undeclared\""), "{error}");
    }
    let item = [key("item")];
    let values = until_definite(async || store.get(&item).await).await?;
    assert_eq!(values, [Some(Bytes::from_static(b"1"))]);
    pipeline.commit(vec![put("item", "3")]).await?;
    Ok(())
}
