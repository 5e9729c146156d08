//! A cluster for one job, with a standby: a second process that was started for safety ends with the result of the job,
//! even if the leader dies at its end, when the result is stored but no client has received it. The job runs once.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tanist_chaos::{RestClient, Store, StoreKind, test_all, wait_for};
use tokio::process::{Child, Command};

use crate::support::{PROGRAM, job_file, need_failpoints, spawn_logged};

const BOUND: Duration = Duration::from_secs(60);
/// Exit code of a process that does not belong to the cluster.
const REFUSED: i32 = 21;
/// Where the leader dies, the exit code of the job's program, and the resulting exit code of the whole cluster.
const DEATHS: [(&str, u8, i32); 6] = [
    ("job.result-written", 1, 4),
    ("application.closed", 0, 0),
    ("application.decided", 1, 4),
    ("job.cleaned-up", 0, 0),
    ("application.jobs-ended", 0, 0),
    ("application.emptied", 1, 4),
];
/// Number of cases that usually run.
const FEW: usize = 3;

on_stores! {
    usually on embedded(Embedded) {
        the_standby_of_a_job_with_a_cluster_of_its_own_ends_as_the_job_did_when_its_leader_dies_at_the_end,
        taskmanagers_of_one_process_keep_their_files_apart_and_leave_none,
        a_signal_that_comes_after_the_end_changes_nothing_about_it,
        who_stands_by_for_a_job_whose_cluster_has_an_id_that_nobody_chose_ends_as_it_did,
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

/// One subtask ends at once, which is the last use of the file on its TaskManager; the other one fails
/// and is restarted.
async fn taskmanagers_of_one_process_keep_their_files_apart_and_leave_none(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let cluster = PerJob::new(kind, 0).await?;
    let [seen, temp, working] = ["seen", "temp", "working"].map(|name| cluster.path(name));
    for directory in [&seen, &temp] {
        std::fs::create_dir(directory)?;
    }
    std::fs::copy(job_file("tool.yaml"), cluster.path("tool.yaml"))?;
    std::fs::copy(job_file("tool.sh"), cluster.path("tool.sh"))?;
    let mut command = cluster.command(&cluster.path("tool.yaml"))?;
    let directory = working.to_string_lossy();
    command.args(["--taskmanagers", "2", "--parallelism", "2"]);
    command.args(["-D", &format!("process.working-dir={directory}")]);
    command.args(["--param", &format!("seen={}", seen.to_string_lossy())]);
    command.env("TMPDIR", &temp);
    let mut running = spawn_logged(&mut command, &cluster.path("leader"), "")?;
    let found = wait_for("both subtasks to find their file", BOUND, async || {
        let of = |subtask: &str| std::fs::read_to_string(seen.join(subtask));
        let found = [of("0")?, of("1")?];
        anyhow::Ok(found.map(|path| PathBuf::from(path.trim())))
    });
    let found = found.await.with_context(|| cluster.logs())?;
    ensure!(found[0] != found[1], "they share {found:?}");
    let are_there = found.iter().all(|path| path.starts_with(&working));
    ensure!(
        are_there,
        "not in the directory that is configured: {found:?}"
    );
    wait_for("the unused file to be removed", BOUND, async || {
        ensure!(!found[0].exists(), "it is there");
        anyhow::Ok(())
    })
    .await?;
    std::fs::write(seen.join("go"), "")?;
    let code = cluster.code_of(&mut running).await?;
    ensure!(code == Some(0), "{code:?}: {}", cluster.logs());
    ensure!(seen.join("failed").exists(), "nothing was restarted");
    for directory in [temp, working] {
        let left: Vec<_> = std::fs::read_dir(directory)?.flatten().collect();
        ensure!(left.is_empty(), "{left:?}");
    }
    Ok(())
}

async fn a_signal_that_comes_after_the_end_changes_nothing_about_it(
    kind: StoreKind,
) -> anyhow::Result<()> {
    need_failpoints()?;
    let cluster = PerJob::new(kind, 1).await?;
    let held = cluster.path("held");
    std::fs::write(&held, "")?;
    std::fs::write(cluster.path("go"), "")?;
    let place = "hosted.jobmanager-ended";
    let armed = format!("{place}=hold-while:{}", held.to_string_lossy());
    let mut running = cluster.start_of("leader", &armed, None, 1)?;
    cluster.until_logged("leader", place).await?;
    let pid = running.id().context("it runs")?;
    let pid = rustix::process::Pid::from_raw(pid.try_into()?).context("a process id")?;
    rustix::process::kill_process(pid, rustix::process::Signal::INT)?;
    cluster
        .until_logged("leader", "shutdown was requested")
        .await?;
    std::fs::remove_file(&held)?;
    let code = cluster.code_of(&mut running).await?;
    ensure!(code == Some(4), "{code:?}: {}", cluster.logs());
    let said = cluster.log("leader");
    ensure!(!said.contains("has not ended"), "{said}");
    cluster.check_that_the_store_is_empty(kind)
}

async fn who_stands_by_for_a_job_whose_cluster_has_an_id_that_nobody_chose_ends_as_it_did(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let cluster = PerJob::new(kind, 1).await?;
    let mut leader = cluster.start_of("leader", "", None, 1)?;
    cluster
        .until("leader", |own| own["role"] == "leading")
        .await?;
    cluster.until_it_runs().await?;
    let said = cluster.log("leader");
    let id = said.split("has the cluster ").nth(1);
    let id = id.and_then(|text| text.split_whitespace().next());
    let id = id.context("it names its cluster")?;
    let names = ["standby", "late"];
    let mut standbys = Vec::new();
    for name in names {
        standbys.push(cluster.start_of(name, "", Some(id), 1)?);
        let is_current = |own: &Value| own["role"] == "standby" && own["cache"]["behind"] == 0;
        cluster.until(name, is_current).await?;
    }
    std::fs::write(cluster.path("go"), "")?;
    for (name, process) in names.iter().zip(&mut standbys) {
        let code = cluster.code_of(process).await?;
        ensure!(code == Some(4), "{name}: {code:?}: {}", cluster.logs());
    }
    let code = cluster.code_of(&mut leader).await?;
    ensure!(code == Some(4), "{code:?}: {}", cluster.logs());
    cluster.check_that_the_store_is_empty(kind)
}

/// The processes of a job, in a directory.
struct PerJob {
    directory: tempfile::TempDir,
    store: Store,
    /// Exit code of its program.
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
        // A later process gets the same result.
        let mut late = self.start("late", "")?;
        let ended = self.code_of(&mut late).await?;
        ensure!(ended == Some(code), "another one ended with {ended:?}");
        let runs = std::fs::read_to_string(self.path("runs"))?;
        ensure!(runs.lines().count() == 1, "it ran again: {runs:?}");
        // But not a process with another job under this id: that one never ran.
        let mut other = self.start_with("other", "", self.code + 1)?;
        let ended = self.code_of(&mut other).await?;
        ensure!(ended == Some(REFUSED), "another job ended with {ended:?}");
        Ok(())
    }

    fn id(&self) -> anyhow::Result<String> {
        let id = self.directory.path().file_name();
        let id = id.context("a directory has a name")?;
        Ok(id.to_string_lossy().into_owned())
    }

    /// The command, with detailed logging; `-D` and `--param` may follow.
    fn command(&self, job: &Path) -> anyhow::Result<Command> {
        let id = self.id()?;
        Ok(self.command_in(job, Some(&id)))
    }

    /// The same in the cluster with this id; `None`: a generated id.
    fn command_in(&self, job: &Path, id: Option<&str>) -> Command {
        let mut settings = self.store.settings(&self.path("store"), false);
        let id_of = |id: &str| ("high-availability.cluster-id".to_owned(), id.to_owned());
        settings.extend(id.map(id_of));
        let directory = self.directory.path().to_string_lossy();
        settings.push(("io.tmp.dirs".to_owned(), directory.into_owned()));
        settings.push(("log.level".to_owned(), "info".to_owned()));
        let mut command = Command::new(PROGRAM);
        command.args(["run", "--target", "per-job", "-v"]).arg(job);
        for (key, value) in settings {
            command.args(["-D", &format!("{key}={value}")]);
        }
        command.env_remove("TANIST_TEST_ALL").env("NO_COLOR", "1");
        command
    }

    fn path(&self, name: &str) -> PathBuf {
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

    /// The process is killed when it is dropped.
    fn start(&self, name: &str, failpoints: &str) -> anyhow::Result<Child> {
        self.start_with(name, failpoints, self.code)
    }

    fn start_with(&self, name: &str, failpoints: &str, code: u8) -> anyhow::Result<Child> {
        let id = self.id()?;
        self.start_of(name, failpoints, Some(&id), code)
    }

    fn start_of(
        &self,
        name: &str,
        failpoints: &str,
        id: Option<&str>,
        code: u8,
    ) -> anyhow::Result<Child> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mut command = self.command_in(&job_file("once.yaml"), id);
        let parameters = [
            ("runs", text(&self.path("runs"))),
            ("go", text(&self.path("go"))),
            ("code", code.to_string()),
        ];
        for (name, value) in parameters {
            command.args(["--param", &format!("{name}={value}")]);
        }
        spawn_logged(&mut command, &self.path(name), failpoints)
    }

    async fn until_it_runs(&self) -> anyhow::Result<()> {
        wait_for("the program to run", BOUND, async || {
            ensure!(self.path("runs").exists(), "it does not yet");
            anyhow::Ok(())
        })
        .await
    }

    async fn until_logged(&self, name: &str, text: &str) -> anyhow::Result<()> {
        wait_for(text, BOUND, async || {
            ensure!(self.log(name).contains(text), "{}", self.log(name));
            anyhow::Ok(())
        })
        .await
    }

    /// Checks that nothing is left of a cluster with a generated id.
    fn check_that_the_store_is_empty(&self, kind: StoreKind) -> anyhow::Result<()> {
        if kind == StoreKind::Embedded {
            let left = std::fs::read_dir(self.path("store"))?.flatten();
            // Besides the clusters there are the blobs of all of them.
            let left: Vec<_> = left.filter(|it| it.file_name() != "blobs").collect();
            ensure!(left.is_empty(), "{left:?}: {}", self.logs());
        }
        Ok(())
    }

    /// Waits until a process reports this state.
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
