//! A JobManager that finds a record of a newer version hands over to one that can read it; if there is
//! none, the job is quarantined, its tasks continue, and its record is not changed.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use prost::Message as _;
use tanist_chaos::dump::damage;
use tanist_chaos::{Cluster, StoreKind, wait_for};
use tanist_gateway::kinds;
use tanist_ha::keys::Key;
use tanist_ha::records::record::{self, Encoded, Payload};
use tanist_proto::v1 as pb;

use crate::support::{WordsAndTicks, cluster_on, need_failpoints};

/// A JobManager that reads one more format.
const NEWER: &str = "records.newer=note";
/// The newest format that this version reads.
const READS: u16 = 1;
const BOUND: Duration = Duration::from_secs(60);

on_stores! {
    usually on embedded(Embedded) {
        a_record_of_a_newer_version_is_left_to_a_jobmanager_that_reads_it,
    }
}

/// Writes the state of a job as a newer version would, as if the leader had done it.
async fn make_newer(cluster: &Cluster, key: &Key) -> anyhow::Result<Vec<u8>> {
    let records = cluster.records().await?;
    // Once the words are counted and it only ticks, the leader no longer writes it.
    let bytes = wait_for("the words to be counted", BOUND, async || {
        let value = records.get(std::slice::from_ref(key)).await?;
        let value = value[0].clone().context("its state is there")?;
        let Payload::Inline { bytes, .. } = record::decode(key, READS, &value)? else {
            anyhow::bail!("{key} is not inline");
        };
        let state = pb::JobState::decode(bytes.clone())?;
        let ends = state.terminal.len();
        ensure!(
            ends > 0 && state.coordinators.is_empty(),
            "{ends} tasks have ended"
        );
        Ok(bytes)
    })
    .await?;
    let Encoded::Inline(newer) = record::encode(READS + 1, &bytes, usize::MAX)? else {
        anyhow::bail!("it stays inline");
    };
    damage(&*records, key, &newer).await?;
    Ok(newer.to_vec())
}

async fn a_record_of_a_newer_version_is_left_to_a_jobmanager_that_reads_it(
    kind: StoreKind,
) -> anyhow::Result<()> {
    need_failpoints()?;
    let mut cluster = cluster_on(kind).await?.jobmanagers(2).start().await?;
    let workload = WordsAndTicks::prepare_endless(&cluster)?;
    cluster.submit(&workload.submission).await?;
    workload.wait_until_ticking(&mut cluster).await?;
    let attempts = cluster.attempts(workload.job()).await?;
    let former = cluster.leader().await?;
    // There is no other JobManager, and a newer version has written the job's state.
    let other = 1 - former.index;
    cluster.jobmanager(other).kill();
    let key = Key::new(kinds::STATES, workload.job().to_string().parse()?);
    let newer = make_newer(&cluster, &key).await?;
    cluster.jobmanager(former.index).kill();
    cluster.jobmanager(former.index).start()?;
    cluster.successor_of(&former).await?;
    let view = cluster.wait_for_state(workload.job(), "SUSPENDED").await?;
    let alone = cluster.leader().await?;
    ensure!(
        view.0["quarantined"]["kind"] == "too-new",
        "set aside as another thing: {}",
        view.0
    );
    let id = workload.job().to_string();
    let address = cluster.rest_address(alone.index).to_owned();
    let refused = cluster
        .cli()
        .run(&["--address", &address, "cancel", &id])
        .await?;
    ensure!(refused.success().is_err(), "an older version cancels it");
    let records = cluster.records().await?;
    let left = records.get(std::slice::from_ref(&key)).await?;
    ensure!(
        left[0].as_deref() == Some(newer.as_slice()),
        "the record was touched"
    );

    cluster.jobmanager(other).arm(NEWER);
    cluster.jobmanager(other).start()?;
    let able = cluster.successor_of(&alone).await?;
    ensure!(able.index == other, "not the newer version leads: {able:?}");
    workload.check_adopted(&mut cluster, &attempts).await?;
    cluster
        .wait_for_rest("the takeover to be told", BOUND, "/v1/ha/history", |body| {
            body["terms"][0]["detected-by"] == "invited"
        })
        .await?;
    workload.stop_and_check(&mut cluster).await
}
