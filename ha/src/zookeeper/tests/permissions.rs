//! Missing permissions are reported before a user leads, and the check changes nothing.

use zookeeper_client as zk;

use super::*;

#[tokio::test]
async fn missing_permissions_are_reported_and_nothing_is_changed() -> TestResult {
    let server = server().await?;
    let own = ("tanist", "secret");
    let options = ZooKeeperOptions {
        digest: Some((own.0.to_owned(), own.1.to_owned())),
        ..options(server.endpoints())
    };
    let election = open_election(options.clone(), Clock::Boottime, true).await?;
    let term = take(&election, "a").await?;
    let store = open_store(options, KINDS).await?;
    let first = request(&term, Change::default(), vec![put("x", "1")]);
    assert_eq!(store.commit(&first).await?, CommitReply::Applied);
    assert_eq!(store.missing_permissions().await?, Vec::<String>::new());

    let admin = zk::Client::connector()
        .with_auth("digest", format!("{}:{}", own.0, own.1).as_bytes())
        .connect(&server.endpoints().join(","))
        .await?;
    let allow = async |path: &str, rights: zk::Permission| {
        let path = format!("/tanist/test/{path}");
        let rights = [zk::Acl::new(rights, zk::AuthId::authed())];
        admin.set_acl(&path, &rights, None).await
    };
    let (read, write) = (zk::Permission::READ, zk::Permission::WRITE);
    let (create, delete) = (zk::Permission::CREATE, zk::Permission::DELETE);
    let keep = zk::Permission::ADMIN;
    allow("documents", read | write | delete | keep).await?;
    allow("items", read | write | create | keep).await?;
    allow("epoch", read | create | delete | keep).await?;
    let missing = store.missing_permissions().await?;
    assert_eq!(missing.len(), 3, "{missing:?}");
    assert!(
        missing[0].contains("create nodes in /tanist/test/documents"),
        "{missing:?}"
    );
    assert!(
        missing[1].contains("delete nodes in /tanist/test/items"),
        "{missing:?}"
    );
    assert!(missing[2].contains("set /tanist/test/epoch"), "{missing:?}");
    assert_eq!(store.guard().await?.change, first.change());
    let (children, _) = admin.get_children("/tanist/test/reports").await?;
    assert_eq!(children, Vec::<String>::new());
    Ok(())
}
