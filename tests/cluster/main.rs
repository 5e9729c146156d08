//! Clusters of real processes on real stores, whose processes and stores are killed. Each test ends with the right result of
//! every job, an empty store, and no process or pending file left.
//!
//! Leases are as short as the stores grant; `TANIST_TEST_ALL=1` takes the defaults. `TANIST_TEST_KEEP=1` keeps the
//! directories of clusters whose test failed.

/// Makes a test of each function, on each store named.
macro_rules! on_stores {
    ($($store:ident($kind:ident) { $($name:ident),+ $(,)? })+) => {
        $(mod $store {
            $(
                #[tokio::test]
                async fn $name() -> anyhow::Result<()> {
                    super::$name(tanist_chaos::StoreKind::$kind).await
                }
            )+
        })+
    };
}

mod bad_days;
mod client;
mod demo;
mod jobmanager_cut_off;
mod jobmanager_killed;
mod jobmanager_stopped;
mod jobmanager_watched;
mod large_graphs;
mod store_restarted;
mod support;
mod taskmanager_killed;
