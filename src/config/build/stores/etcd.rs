//! Reads the options of etcd into a [`Store`]: servers are required, a lease has whole seconds and must outlast one
//! request.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tanist_ha::etcd::EtcdOptions;

use super::super::super::address::{EtcdEndpoints, RootPath};
use super::super::super::options::StorePlace;
use super::super::super::secrets::Form;
use super::super::super::table::{HA_TYPE, option_table};
use super::super::super::value::{MemorySize, Secret, show_duration};
use super::super::Builder;
use super::Store;

option_table! { OPTIONS:
    "High availability" {
        ETCD_ENDPOINTS: EtcdEndpoints = "high-availability.etcd.endpoints", Unset,
            "The etcd servers. Required with `etcd`; the default port is 2379.";
        ETCD_ROOT: RootPath = "high-availability.etcd.path.root", Value("/tanist"),
            "The prefix below which each cluster has its keys.";
        ETCD_USER: String = "high-availability.etcd.user", Unset,
            "The etcd user, if authentication is on.";
        ETCD_PASSWORD: Secret = "high-availability.etcd.password", Unset,
            "The password of that user. Refused after `-D`, which every user of the host can read.";
        ETCD_PASSWORD_FILE: PathBuf = "high-availability.etcd.password-file", Derived("the systemd credential `tanist.etcd-password`, if the process has one"),
            "A file that contains the password of that user and that other users can't read. A line break at its end is ignored.";
        ETCD_LEASE_TTL: Duration = "high-availability.etcd.lease-ttl", Value("5 s"),
            "etcd drops the lease of a process after this much silence. Whole seconds; by default etcd grants at least 2 s.";
        ETCD_REQUEST_TIMEOUT: Duration = "high-availability.etcd.request-timeout", Derived("half of the lease's time to live"),
            "How long one request to etcd may take before it is sent again.";
        ETCD_QUOTA: MemorySize = "high-availability.etcd.quota-backend-bytes", Derived("the quota that etcd reports, from 3.6 on; otherwise its default, `2 gb`"),
            "The value of etcd's `--quota-backend-bytes`, so that Tanist warns before the store is full. Set it where etcd does not report its quota and does not use its default.";
    }
}

/// The password, and what else may hold it.
pub(super) const PASSWORD_FORM: Form = Form {
    secret: &ETCD_PASSWORD,
    file: &ETCD_PASSWORD_FILE,
    credential: "tanist.etcd-password",
};

pub(super) fn read(builder: &mut Builder<'_>) -> Store {
    let endpoints = builder.values.find(&ETCD_ENDPOINTS);
    let endpoints = endpoints.map(|found| found.0).unwrap_or_default();
    builder.require(
        !endpoints.is_empty(),
        &[ETCD_ENDPOINTS.name, HA_TYPE.name],
        || {
            let key = ETCD_ENDPOINTS.name;
            format!("write etcd's addresses, as in `{key}: etcd-1:2379,etcd-2:2379`")
        },
    );
    let lease_ttl = builder.values.get(&ETCD_LEASE_TTL);
    let whole = lease_ttl.subsec_nanos() == 0 && lease_ttl >= Duration::from_secs(2);
    builder.require(
        whole && lease_ttl <= Duration::from_secs(3600),
        &[ETCD_LEASE_TTL.name],
        || "write whole seconds, `2 s` to `1 h`: etcd grants nothing else".to_owned(),
    );
    let request_timeout = builder.values.find(&ETCD_REQUEST_TIMEOUT);
    let request_timeout = request_timeout.unwrap_or(lease_ttl / 2);
    let keys = [ETCD_REQUEST_TIMEOUT.name, ETCD_LEASE_TTL.name];
    let fits = !request_timeout.is_zero() && request_timeout < lease_ttl;
    builder.require(fits, &keys, || {
        let half = show_duration(lease_ttl / 2);
        format!(
            "a lease must outlast one lost request: write `{}: {half}` or less",
            keys[0]
        )
    });
    let options = EtcdOptions {
        endpoints: endpoints.iter().map(ToString::to_string).collect(),
        namespace: builder.namespace(&builder.values.get(&ETCD_ROOT).0),
        user: builder.user_password(&ETCD_USER, &ETCD_PASSWORD),
        lease_ttl,
        request_timeout,
        quota_bytes: builder.values.find(&ETCD_QUOTA).map(MemorySize::bytes),
    };
    Store {
        backend: Arc::new(options),
        place: StorePlace {
            option: ETCD_ENDPOINTS.name,
            also: None,
        },
        lease_option: Some(&ETCD_LEASE_TTL),
        // No directory can be assumed that all hosts see.
        blobs: None,
    }
}
