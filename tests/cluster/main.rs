//! Clusters of real processes on real stores, whose processes and stores are killed. Each test ends with
//! the right result of every job, an empty store, and no process or pending file left.
//!
//! Leases are as short as the stores grant; `TANIST_TEST_ALL=1` uses the defaults. `TANIST_TEST_KEEP=1`
//! keeps the directories of clusters whose test failed.

/// Makes a test of each function, on each named store, or on all stores. Tests that are `usually` on one
/// store run on all stores with `TANIST_TEST_ALL=1`.
macro_rules! on_stores {
    ($(usually on $store:ident($kind:ident) { $($name:ident),+ $(,)? })+) => {
        $(mod $store {
            $(
                #[tokio::test]
                async fn $name() -> anyhow::Result<()> {
                    use anyhow::Context as _;
                    for store in crate::support::usually_on(tanist_chaos::StoreKind::$kind) {
                        super::$name(store).await.with_context(|| format!("{store:?}"))?;
                    }
                    Ok(())
                }
            )+
        })+
    };
    (each $names:tt) => {
        on_stores! { embedded(Embedded) $names etcd(Etcd) $names zookeeper(ZooKeeper) $names }
    };
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

/// The same for tests in a network of their own.
macro_rules! on_networks {
    ($($store:ident($kind:ident) { $($name:ident),+ $(,)? })+) => {
        $(mod $store {
            $(
                #[test]
                fn $name() -> anyhow::Result<()> {
                    let path = concat!(module_path!(), "::", stringify!($name));
                    // Test names do not contain the name of the crate.
                    let (_, name) = path.split_once("::").expect("a module is in a crate");
                    let test = || super::$name(tanist_chaos::StoreKind::$kind);
                    tanist_chaos::on_a_network_of_its_own(name, test)
                }
            )+
        })+
    };
}

mod application;
mod browser_access;
mod buckets;
mod checkpoint_faults;
mod checkpoint_growth;
mod checkpoint_records;
mod checkpoint_regions;
mod checkpoint_steps;
mod checkpoint_storage;
mod checkpoints;
mod client;
mod copied_store;
mod drained;
mod fault_run;
mod forged_terms;
mod hangup;
mod invalid_environment;
mod job_descriptions;
mod job_lifecycles;
mod jobmanager_cut_off;
mod jobmanager_frozen;
mod jobmanager_killed;
mod jobmanager_stopped;
mod jobmanager_watched;
mod kill_at_every_step;
mod large_graphs;
mod late_messages;
mod lost_host;
mod lost_mount;
mod many_jobs;
mod network_handover;
mod network_peers;
mod network_store;
mod network_taskmanagers;
mod network_watched;
mod newer_records;
mod per_job;
mod port_access;
mod ports;
mod private_files;
mod programs;
mod quarantine;
mod regions;
mod resources;
mod running_tasks;
mod savepoints;
mod splits;
mod stages;
mod standby_serving;
mod status_views;
mod stopping_jobs;
mod store_ensembles;
mod store_full;
mod store_outage;
mod store_restarted;
mod support;
mod taskmanager_killed;
mod taskmanager_leaves;
mod uploads;
mod verified;
mod waiting_for_slots;
mod workers;
