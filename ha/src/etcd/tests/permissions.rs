//! Missing permissions are reported before a user leads, and the check changes nothing.

use etcd_client::{Client, ConnectOptions, GetOptions, Permission};

use super::*;

#[tokio::test]
async fn missing_permissions_are_reported_and_nothing_is_written() -> TestResult {
    let root = ("root".to_owned(), "secret".to_owned());
    let server = EtcdServer::start(EtcdServerOptions {
        user: Some(root.clone()),
        ..EtcdServerOptions::default()
    })
    .await?;
    let as_root = ConnectOptions::new().with_user(root.0, root.1);
    let mut admin = Client::connect([server.endpoint()], Some(as_root)).await?;
    admin.user_add("reader", "secret", None).await?;
    admin.role_add("readers").await?;
    let everything = Permission::read("\0").with_all_keys();
    admin.role_grant_permission("readers", everything).await?;
    admin.user_grant_role("reader", "readers").await?;

    let namespace = "permissions";
    let store = open_store(
        EtcdOptions {
            user: Some(("reader".to_owned(), "secret".to_owned())),
            ..options(server.endpoints(), namespace)
        },
        KINDS,
    )
    .await?;
    let missing = store.missing_permissions().await?;
    let of = |what: &str| missing.iter().filter(|it| it.contains(what)).count();
    assert_eq!(of("to read"), 0, "{missing:?}");
    // Three keys of the election, the members, the change and its ring, and one key of each kind.
    assert_eq!(missing.len(), 6 + KINDS.iter().count(), "{missing:?}");
    assert_eq!(of("documents/"), 1, "{missing:?}");

    let prefix = format!("/test/{namespace}/");
    let part = Permission::read_write(format!("{prefix}documents/")).with_prefix();
    admin.role_grant_permission("readers", part).await?;
    let missing = store.missing_permissions().await?;
    assert_eq!(missing.len(), 5 + KINDS.iter().count(), "{missing:?}");
    let all = Permission::read_write(prefix.as_str()).with_prefix();
    admin.role_grant_permission("readers", all).await?;
    assert_eq!(store.missing_permissions().await?, Vec::<String>::new());

    let below = GetOptions::new().with_prefix().with_count_only();
    assert_eq!(admin.get(prefix, Some(below)).await?.count(), 0);
    Ok(())
}
