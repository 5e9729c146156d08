//! Reads the options of etcd into a [`Store`]: servers are required, a lease has whole seconds and must outlast one
//! request.

use std::sync::Arc;
use std::time::Duration;

use tanist_ha::etcd::EtcdOptions;

use super::super::super::options::StorePlace;
use super::super::super::table::{
    ETCD_ENDPOINTS, ETCD_LEASE_TTL, ETCD_PASSWORD, ETCD_QUOTA, ETCD_REQUEST_TIMEOUT, ETCD_ROOT,
    ETCD_USER, HA_TYPE,
};
use super::super::super::value::{MemorySize, show_duration};
use super::super::Builder;
use super::Store;

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
