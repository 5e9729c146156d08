//! Reads the options of ZooKeeper into a [`Store`]: servers are required, and a session must outlast one attempt to
//! connect.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tanist_ha::zookeeper::ZooKeeperOptions;

use super::super::super::address::{Quorum, RootPath};
use super::super::super::options::StorePlace;
use super::super::super::secrets::Form;
use super::super::super::table::{HA_TYPE, option_table};
use super::super::super::value::{Secret, show_duration};
use super::super::Builder;
use super::Store;

option_table! { OPTIONS:
    "High availability" {
        ZK_QUORUM: Quorum = "high-availability.zookeeper.quorum", Unset,
            "The ZooKeeper servers. Required with `zookeeper`; the default port is 2181.";
        ZK_ROOT: RootPath = "high-availability.zookeeper.path.root", Value("/tanist"),
            "The node below which each cluster has its own node.";
        ZK_SESSION_TIMEOUT: Duration = "high-availability.zookeeper.client.session-timeout", Value("10 s"),
            "ZooKeeper ends a session after this much silence. The servers limit it to 2 to 20 of their ticks.";
        ZK_CONNECTION_TIMEOUT: Duration = "high-availability.zookeeper.client.connection-timeout", Derived("half of the session timeout"),
            "How long one attempt to connect to one server may take.";
        ZK_USER: String = "high-availability.zookeeper.auth.user", Unset,
            "The user for digest authentication. No other user can then read or write the cluster's nodes.";
        ZK_PASSWORD: Secret = "high-availability.zookeeper.auth.password", Unset,
            "The password of that user. Refused after `-D`, which every user of the host can read.";
        ZK_PASSWORD_FILE: PathBuf = "high-availability.zookeeper.auth.password-file", Derived("the systemd credential `tanist.zookeeper-password`, if the process has one"),
            "A file that contains the password of that user and that other users can't read. A line break at its end is ignored.";
    }
}

/// The password, and what else may hold it.
pub(super) const PASSWORD_FORM: Form = Form {
    secret: &ZK_PASSWORD,
    file: &ZK_PASSWORD_FILE,
    credential: "tanist.zookeeper-password",
};

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
