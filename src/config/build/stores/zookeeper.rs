//! Reads the options of ZooKeeper into a [`Store`]: servers are required, and a session must outlast one attempt to
//! connect.

use std::sync::Arc;

use tanist_ha::zookeeper::ZooKeeperOptions;

use super::super::super::options::StorePlace;
use super::super::super::table::{
    HA_TYPE, ZK_CONNECTION_TIMEOUT, ZK_PASSWORD, ZK_QUORUM, ZK_ROOT, ZK_SESSION_TIMEOUT, ZK_USER,
};
use super::super::super::value::show_duration;
use super::super::Builder;
use super::Store;

pub(super) fn read(builder: &mut Builder<'_>) -> Store {
    let quorum = builder.values.find(&ZK_QUORUM);
    let quorum = quorum.map(|found| found.0).unwrap_or_default();
    builder.require(!quorum.is_empty(), &[ZK_QUORUM.name, HA_TYPE.name], || {
        let key = ZK_QUORUM.name;
        format!("write ZooKeeper's addresses, as in `{key}: zk-1:2181,zk-2:2181`")
    });
    let session_timeout = builder.positive(&ZK_SESSION_TIMEOUT);
    let connect_timeout = builder.values.find(&ZK_CONNECTION_TIMEOUT);
    let connect_timeout = connect_timeout.unwrap_or(session_timeout / 2);
    let keys = [ZK_CONNECTION_TIMEOUT.name, ZK_SESSION_TIMEOUT.name];
    let fits = session_timeout.is_zero()
        || (!connect_timeout.is_zero() && connect_timeout < session_timeout);
    builder.require(fits, &keys, || {
        let half = show_duration(session_timeout / 2);
        format!(
            "a session must outlast one server that doesn't answer: write `{}: {half}` or less",
            keys[0]
        )
    });
    let quorum = quorum.iter().map(ToString::to_string).collect();
    let namespace = builder.namespace(&builder.values.get(&ZK_ROOT).0);
    let options = ZooKeeperOptions {
        digest: builder.user_password(&ZK_USER, &ZK_PASSWORD),
        session_timeout,
        connect_timeout,
        ..ZooKeeperOptions::new(quorum, namespace)
    };
    Store {
        backend: Arc::new(options),
        place: StorePlace {
            option: ZK_QUORUM.name,
            also: None,
        },
        lease_option: Some(&ZK_SESSION_TIMEOUT),
        // No directory can be assumed that all hosts see.
        blobs: None,
    }
}
