//! A cluster for one job, with a standby: whoever was started twice to be sure ends as the job did, also if the leader dies at the end
//! of it, when the result is stored and nobody was told. The job runs once.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tanist_chaos::{RestClient, Store, StoreKind, test_all, wait_for};
use tokio::process::{Child, Command};

use crate::support::{PROGRAM, job_file, need_failpoints, spawn_logged};

const BOUND: Duration = Duration::from_secs(60);
/// The exit code of whoever has no business in a cluster.
const REFUSED: i32 = 21;
/// Where the leader dies, and the code with which the job's program ends and the whole cluster then.
const DEATHS: [(&str, u8, i32); 6] = [
    ("job.result-written", 1, 4),
    ("application.closed", 0, 0),
    ("application.decided", 1, 4),
    ("job.cleaned-up", 0, 0),
    ("application.jobs-ended", 0, 0),
    ("application.emptied", 1, 4),
];
/// So many of them usually.
const FEW: usize = 3;

on_stores! {
    usually on embedded(Embedded) {
        the_standby_of_a_job_with_a_cluster_of_its_own_ends_as_the_job_did_when_its_leader_dies_at_the_end,
    }
}

async fn the_standby_of_a_job_with_a_cluster_of_its_own_ends_as_the_job_did_when_its_leader_dies_at_the_end(
    kind: StoreKind,
) -> anyhow::Result<()> {
    need_failpoints()?;
    let count = if test_all() { DEATHS.len() } else { FEW };
    for (failpoint, of_program, of_cluster) in &DEATHS[..count] {
        let cluster = PerJob::new(kind, *of_program).await?;
        let died = cluster.the_leader_dies_at(failpoint, *of_cluster).await;
        died.with_context(|| format!("{failpoint}: {}", cluster.logs()))?;
    }
    Ok(())
}

/// The processes of a job, in a directory.
struct PerJob {
    directory: tempfile::TempDir,
    store: Store,
    /// With which code its program ends.
    code: u8,
}

impl PerJob {
    async fn new(kind: StoreKind, code: u8) -> anyhow::Result<PerJob> {
        Ok(PerJob {
            directory: tempfile::Builder::new()
                .prefix("tanist-per-job-")
                .tempdir()?,
            store: Store::shared(kind).await?,
            code,
        })
    }

    async fn the_leader_dies_at(&self, failpoint: &str, code: i32) -> anyhow::Result<()> {
        let mut leader = self.start("leader", &format!("{failpoint}=kill"))?;
        self.until("leader", |own| own["role"] == "leading").await?;
        self.until_it_runs().await?;
        let mut standby = self.start("standby", "")?;
        let is_current = |own: &Value| own["role"] == "standby" && own["cache"]["behind"] == 0;
        self.until("standby", is_current).await?;
        std::fs::write(self.path("go"), "")?;
        let ended = self.code_of(&mut leader).await?;
        ensure!(ended.is_none(), "the leader ended with {ended:?}");
        let said = format!("failpoint {failpoint} reached");
        ensure!(self.log("leader").contains(&said), "it died elsewhere");
        let ended = self.code_of(&mut standby).await?;
        ensure!(ended == Some(code), "the standby ended with {ended:?}");
        // And so does whoever comes later.
        let mut late = self.start("late", "")?;
        let ended = self.code_of(&mut late).await?;
        ensure!(ended == Some(code), "another one ended with {ended:?}");
        let runs = std::fs::read_to_string(self.path("runs"))?;
        ensure!(runs.lines().count() == 1, "it ran again: {runs:?}");
        // But not whoever brings another job of its name: that one never ran.
        let mut other = self.start_with("other", "", self.code + 1)?;
        let ended = self.code_of(&mut other).await?;
        ensure!(ended == Some(REFUSED), "another job ended with {ended:?}");
        Ok(())
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn logs(&self) -> String {
        let names = ["leader", "standby", "late", "other"];
        let logs = names.map(|name| format!("--- {name}:\n{}", self.log(name)));
        logs.join("\n")
    }

    /// It is killed when it is dropped.
    fn start(&self, name: &str, failpoints: &str) -> anyhow::Result<Child> {
        self.start_with(name, failpoints, self.code)
    }

    fn start_with(&self, name: &str, failpoints: &str, code: u8) -> anyhow::Result<Child> {
        let id = self.directory.path().file_name();
        let id = id.context("a directory has a name")?.to_string_lossy();
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut settings = self.store.settings(&self.path("store"), false);
        settings.extend([
            ("high-availability.cluster-id".to_owned(), id.into_owned()),
            ("io.tmp.dirs".to_owned(), text(self.directory.path())),
        ]);
        let mut command = Command::new(PROGRAM);
        command.args(["run", "--target", "per-job", "-v"]);
        command.arg(job_file("once.yaml"));
        let parameters = [
            ("runs", text(&self.path("runs"))),
            ("go", text(&self.path("go"))),
            ("code", code.to_string()),
        ];
        for (name, value) in parameters {
            command.args(["--param", &format!("{name}={value}")]);
        }
        for (key, value) in settings {
            command.args(["-D", &format!("{key}={value}")]);
        }
        command.env_remove("TANIST_TEST_ALL").env("NO_COLOR", "1");
        spawn_logged(&mut command, &self.path(name), failpoints)
    }

    async fn until_it_runs(&self) -> anyhow::Result<()> {
        wait_for("the program to run", BOUND, async || {
            ensure!(self.path("runs").exists(), "it does not yet");
            anyhow::Ok(())
        })
        .await
    }

    /// Waits until a process says this of itself.
    async fn until(&self, name: &str, is: impl Fn(&Value) -> bool) -> anyhow::Result<()> {
        let rest = RestClient::default();
        wait_for(&format!("the {name} to be one"), BOUND, async || {
            let log = self.log(name);
            let address = log.split("of its own, at ").nth(1);
            let address = address.and_then(|text| text.split_whitespace().next());
            let address = address.context("it has not said where it is")?;
            let own = rest.get(address, "/v1/ha/self").await?;
            ensure!(is(&own), "{own}");
            anyhow::Ok(())
        })
        .await
    }

    async fn code_of(&self, child: &mut Child) -> anyhow::Result<Option<i32>> {
        let ended = tokio::time::timeout(BOUND, child.wait()).await;
        Ok(ended.context("it does not end")??.code())
    }
}
