//! Time from the start of a process until it is ready.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use tanist_chaos::cluster::Cluster;
use tanist_chaos::store::{Store, StoreKind};
use tokio::time::Instant;

use crate::BenchOptions;
use crate::host::milliseconds;
use crate::http::Http;
use crate::proc;
use crate::report::Figure;
use crate::samples::Unit;
use crate::watch::{until, until_known, until_led};

pub(super) const METHOD: &str = "A new cluster with an empty store. *Leads*: from starting the process until its \
`/v1/ha/leader` reports that it leads, confirmed; also the CPU time until then. *Stands by*: a second \
JobManager's `/v1/ha/status` names the leader. *TaskManager*: the leader's `/v1/taskmanagers` lists it with its \
2 slots.";

const REPETITIONS: (usize, usize) = (10, 2);

pub(super) async fn measure(
    store: StoreKind,
    options: &BenchOptions,
) -> anyhow::Result<Vec<Figure>> {
    let mut leads = Figure::new("process start -> leads", Unit::Milliseconds);
    let mut cpu = Figure::new("processor time to lead", Unit::Milliseconds);
    let mut stands_by = Figure::new("process start -> stands by", Unit::Milliseconds);
    let mut registers = Figure::new(
        "process start -> TaskManager registered",
        Unit::Milliseconds,
    );
    for _ in 0..options.pick(REPETITIONS.0, REPETITIONS.1) {
        let builder = options.cluster(Store::shared(store).await?);
        let mut cluster = builder.jobmanagers(2).taskmanagers(1).prepare().await?;
        let http = Http::default();
        let addresses = [0, 1].map(|index| cluster.rest_address(index).to_owned());

        let start = Instant::now();
        cluster.jobmanager(0).start()?;
        until_led(&http, &[&addresses[0]], 0).await?;
        leads.push(milliseconds(start.elapsed()));
        cpu.push(milliseconds(used(&mut cluster)?));

        let start = Instant::now();
        cluster.jobmanager(1).start()?;
        until_known(&http, &addresses[1], 1).await?;
        stands_by.push(milliseconds(start.elapsed()));

        let start = Instant::now();
        cluster.taskmanager(0).start()?;
        until("the TaskManager to be registered", async || {
            let body = http.get(&addresses[0], "/v1/taskmanagers").await?;
            ensure!(body["taskmanagers"][0]["slotsNumber"] == 2, "{body}");
            Ok(())
        })
        .await?;
        registers.push(milliseconds(start.elapsed()));
        cluster.discard();
    }
    Ok(vec![leads, cpu, stands_by, registers])
}

fn used(cluster: &mut Cluster) -> anyhow::Result<Duration> {
    proc::cpu(cluster.jobmanager(0).pid().context("it runs")?)
}
