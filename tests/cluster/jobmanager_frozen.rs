//! The first leader freezes until it is followed, and then each leader in turn for a moment: the budget of suspicion
//! stops further changes of the leader.
//! All settings are the defaults.

use std::time::Duration;

use anyhow::ensure;
use tanist_chaos::{StoreKind, test_all};

use crate::support::{PROCESS_GONE, cluster_on, on_a_quiet_machine, until_witnesses_are_known};

/// Longer than a leader may be silent plus the time that others need to confirm it; shorter than twice that.
const FROZEN: Duration = Duration::from_millis(1500);
/// Time that a process runs between two freezes: two heartbeat intervals. If the others receive nothing in between, two
/// freezes are one of twice the length, which may cost one epoch more.
const RUNNING: Duration = Duration::from_millis(200);
/// A leader that is proven dead is succeeded this soon after its last heartbeat, regardless of earlier false
/// alarms.
const FOLLOWED: Duration = Duration::from_secs(2);

on_stores! {
    embedded(Embedded) { a_leader_that_is_frozen_again_and_again_is_soon_left_alone_and_a_dead_one_is_followed_at_once }
    etcd(Etcd) { a_leader_that_is_frozen_again_and_again_is_soon_left_alone_and_a_dead_one_is_followed_at_once }
}

async fn a_leader_that_is_frozen_again_and_again_is_soon_left_alone_and_a_dead_one_is_followed_at_once(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let freezes = if test_all() { 18 } else { 8 };
    let builder = cluster_on(kind).await?.with_default_settings();
    let mut cluster = builder.jobmanagers(3).start().await?;
    until_witnesses_are_known(&mut cluster).await?;
    let first = cluster.leader().await?;
    for freeze in 0..freezes {
        let leader = cluster.leader().await?;
        cluster.jobmanager(leader.index).stop()?;
        if freeze == 0 {
            cluster.successor_of(&leader).await?;
        } else {
            tokio::time::sleep(FROZEN).await;
        }
        let frozen = cluster.jobmanager(leader.index);
        if frozen.runs() {
            frozen.cont()?;
        } else {
            // Its successor ended it: it was stopped inside a commit of the embedded store.
            frozen.start()?;
        }
        tokio::time::sleep(RUNNING).await;
    }
    let last = cluster.leader().await?;
    let epochs = last.epoch - first.epoch + 1;
    ensure!(epochs <= 4, "{freezes} freezes cost {epochs} epochs");

    let killed = cluster.kill_leader().await?;
    let next = cluster.successor_of(&killed).await?;
    let record = cluster.term_record(next.epoch).await?;
    let takeover = &record["takeover"];
    let is_proven = PROCESS_GONE
        .iter()
        .any(|gone| takeover["detection"] == *gone);
    ensure!(is_proven, "{record}");
    // Not known if the store's lock became free before the stream of its heartbeats broke.
    let of = |name: &str| takeover[name].as_f64().unwrap_or_default();
    let took = of("noticed_after_ms") + of("deposed_after_ms");
    let bound = on_a_quiet_machine(FOLLOWED);
    ensure!(took < bound.as_secs_f64() * 1000.0, "{record}");
    cluster.check_nothing_left(&[]).await
}
