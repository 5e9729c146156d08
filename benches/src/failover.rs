//! The leader ends: how long nobody leads, and until its job runs again.

use tokio::time::Instant;

use crate::BenchOptions;
use crate::host::milliseconds;
use crate::http::Http;
use crate::jobs::{self, STREAM};
use crate::report::Figure;
use crate::samples::Unit;
use crate::watch::{until_led, until_running};
use tanist_chaos::store::{Store, StoreKind};

pub(super) const METHOD: &str = "Two JobManagers and one TaskManager of 2 slots with `examples/stream.yaml` (2 vertices at parallelism 2, unbounded) running. \
From the signal until the other JobManager's `/v1/ha/status` names a leader of a higher epoch, and until `/v1/jobs/:id` of that \
leader has every subtask RUNNING. A SIGKILL is noticed on the embedded store by a file lock, on etcd and ZooKeeper by the end of \
the lease or session and nothing else: with the defaults 5 s and 10 s. (Flink's numbers: ZooKeeper session of 2 s, and with its \
default of 60 s; parallelism 2, 4 tasks.)";

const REPETITIONS: (usize, usize) = (5, 1);

pub(super) async fn measure(
    store: StoreKind,
    options: &BenchOptions,
) -> anyhow::Result<Vec<Figure>> {
    let mut killed = [
        Figure::new(
            "SIGKILL -> leader confirmed",
            Unit::Milliseconds,
            "session 2 s: 2 350 / 2 650 / 3 010 ms; 60 s: 60 700 / 60 900 / 61 100 ms",
        ),
        Figure::new(
            "SIGKILL -> all subtasks RUNNING",
            Unit::Milliseconds,
            "session 2 s: 3 310 / 3 630 / 3 940 ms; 60 s: 62 200 / 62 300 / 62 500 ms",
        ),
    ];
    let mut ended = [
        Figure::new(
            "SIGTERM -> leader confirmed",
            Unit::Milliseconds,
            "session 2 s: 860 / 1 020 / 1 140 ms; 60 s: 1 130 / 1 330 / 1 530 ms",
        ),
        Figure::new(
            "SIGTERM -> all subtasks RUNNING",
            Unit::Milliseconds,
            "session 2 s: 1 550 / 1 890 / 2 080 ms; 60 s: 2 420 / 2 450 / 2 470 ms",
        ),
    ];
    let builder = options.cluster(Store::shared(store).await?);
    let mut cluster = builder.jobmanagers(2).taskmanagers(1).start().await?;
    let http = Http::default();
    let leader = cluster.leader().await?;
    let job = jobs::submit(&http, &leader.rest, STREAM, 2, &[]).await?;
    let repetitions = options.pick(REPETITIONS.0, REPETITIONS.1);
    for repetition in 0..2 * repetitions {
        let leader = cluster.leader().await?;
        until_running(&http, &leader.rest, job).await?;
        let observer = cluster.rest_address(1 - leader.index).to_owned();
        let in_order = repetition % 2 == 1;
        let start = Instant::now();
        if in_order {
            cluster.jobmanager(leader.index).ask_to_end()?;
        } else {
            cluster.jobmanager(leader.index).kill();
        }
        let successor = until_led(&http, &observer, leader.epoch).await?;
        let led = start.elapsed();
        until_running(&http, &successor, job).await?;
        let figures = if in_order { &mut ended } else { &mut killed };
        figures[0].push(milliseconds(led));
        figures[1].push(milliseconds(start.elapsed()));
        if in_order {
            cluster.jobmanager(leader.index).terminate().await.ok();
        }
        cluster.jobmanager(leader.index).start()?;
        cluster.wait_until_complete().await?;
    }
    cluster.discard();
    Ok(killed.into_iter().chain(ended).collect())
}
