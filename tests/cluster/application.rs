//! Applications as real processes: the leading JobManager is killed while the application runs, or asked
//! to end, and the application ends once, with the same code in every process.
//!
//! The application's binary is this test's own, started once more for [`the_program`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tanist::application::{Application, job_id_of};
use tanist::client::{ClientError, ClusterClient, ExecuteError};
use tanist::config::{Configuration, LoadOptions};
use tanist::job::{JobBuilder, StreamGraph};
use tanist_chaos::{Store, StoreKind, wait_for};
use tanist_ha::keys::Name;
use tanist_proto::v1::JobStatus;
use tokio::process::{Child, Command};

use crate::support::{PROGRAM, need_failpoints, spawn_logged};

const PROGRAM_TEST: &str = "application::the_program";
const ARGUMENTS: &str = "TANIST_TEST_APPLICATION";
const BOUND: Duration = Duration::from_secs(60);
/// Number of records of the first job, and their rate per second.
const TICKS: u64 = 900;
const RATE: u64 = 300;
/// The file without which the program does not end.
const MAY_END: &str = "may-end";

/// A process with this name uses the default store, as if none were configured.
const OWN_STORE: &str = "own-store";

on_stores! {
    usually on embedded(Embedded) {
        an_application_outlives_its_leader_and_ends_once_in_every_process,
        a_leader_that_is_killed_between_any_two_steps_changes_nothing_about_the_end,
        a_jobmanager_that_is_asked_to_end_keeps_the_application,
        a_signal_to_local_ends_the_application_if_its_store_goes_with_it,
        a_cluster_for_one_job_ends_as_the_job_does_and_finds_it_ended,
    }
}

/// Exit code of a waiting command that was ended by SIGTERM.
const TERMINATED: i32 = 143;

/// Not a test: the application that the tests start.
#[test]
#[ignore = "it is started by other tests of this file"]
fn the_program() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else {
        return;
    };
    let code = Application::new("ticks")
        .program(|context| async move {
            let directory = context.parameter("directory").ok_or("no directory")?;
            let directory = PathBuf::from(directory);
            // One file per run counts how often the program was started.
            std::fs::write(directory.join(format!("run-{}", std::process::id())), "")?;
            let count = context
                .parameter("ticks")
                .and_then(|text| text.parse().ok());
            let first = context
                .execute_async(ticks(&directory, count.unwrap_or(TICKS)))
                .await?;
            first.finished().await?;
            while !directory.join(MAY_END).exists() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let last = numbers("last", Some(10), None, &directory.join("last"));
            context.execute(last).await?;
            Ok(())
        })
        .run(
            std::iter::once("ticks")
                .chain(arguments.lines())
                .map(Into::into),
        );
    std::process::exit(code.code().into());
}

fn ticks(directory: &Path, count: u64) -> StreamGraph {
    numbers("ticks", Some(count), Some(RATE), &directory.join("ticks"))
}

fn numbers(name: &str, count: Option<u64>, rate: Option<u64>, output: &Path) -> StreamGraph {
    JobBuilder::new(name)
        .datagen("numbers", rate, count, 0, 10)
        .file_sink("out", output.to_string_lossy())
        .build()
}

/// The processes of one application, in a directory.
struct Processes {
    directory: tempfile::TempDir,
    store: Store,
    cluster: String,
    /// Number of records of the first job.
    ticks: u64,
}

impl Processes {
    async fn new(kind: StoreKind, ticks: u64) -> anyhow::Result<Processes> {
        let directory = tempfile::Builder::new()
            .prefix("tanist-application-")
            .tempdir()?;
        let name = directory.path().file_name();
        let cluster = name.context("a directory has a name")?.to_string_lossy();
        Ok(Processes {
            cluster: cluster.into_owned(),
            directory,
            store: Store::shared(kind).await?,
            ticks,
        })
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Lets the program end.
    fn let_end(&self) -> anyhow::Result<()> {
        Ok(std::fs::write(self.path().join(MAY_END), "")?)
    }

    fn settings(&self) -> Vec<(String, String)> {
        let path = |name: &str| self.path().join(name).to_string_lossy().into_owned();
        let mut settings = self.store.settings(&self.path().join("store"), false);
        let own = [
            ("high-availability.cluster-id", self.cluster.clone()),
            ("process.working-dir", path("working")),
            ("rest.port", "0".to_owned()),
            ("jobmanager.rpc.port", "0".to_owned()),
            ("taskmanager.numberOfTaskSlots", "2".to_owned()),
        ];
        settings.extend(own.map(|(key, value)| (key.to_owned(), value)));
        settings
    }

    /// Starts a process of the application; it is killed when it is dropped.
    fn start(&self, command: &str, id: &str) -> anyhow::Result<Child> {
        self.start_with(command, id, "")
    }

    fn start_with(&self, command: &str, id: &str, failpoints: &str) -> anyhow::Result<Child> {
        let mut arguments = vec![command.to_owned()];
        if command != "taskmanager" {
            let directory = self.path().to_string_lossy();
            arguments.extend(["--param".to_owned(), format!("directory={directory}")]);
            arguments.extend(["--param".to_owned(), format!("ticks={}", self.ticks)]);
        }
        if command == "jobmanager" {
            arguments.extend(["-D".to_owned(), format!("jobmanager.id={id}")]);
        }
        let is_left_out = |key: &str| id == OWN_STORE && key.starts_with("high-availability.");
        for (key, value) in self.settings() {
            if is_left_out(&key) {
                continue;
            }
            arguments.extend(["-D".to_owned(), format!("{key}={value}")]);
        }
        let mut program = Command::new(std::env::current_exe()?);
        program
            .args(["--ignored", "--exact", PROGRAM_TEST, "--nocapture"])
            .env(ARGUMENTS, arguments.join("\n"));
        let log = self.path().join(format!("{id}.log"));
        spawn_logged(&mut program, &log, failpoints)
    }

    async fn client(&self) -> anyhow::Result<ClusterClient> {
        let mut load = LoadOptions::default();
        for (key, value) in self.settings() {
            load = load.with(&key, &value);
        }
        Ok(ClusterClient::connect(&Configuration::load(load)?).await?)
    }

    /// Number of runs of the program.
    fn runs(&self) -> anyhow::Result<usize> {
        let mut runs = 0;
        for entry in std::fs::read_dir(self.path())? {
            runs += usize::from(entry?.file_name().to_string_lossy().starts_with("run-"));
        }
        Ok(runs)
    }

    /// Number of visible records in a job's output.
    fn records(&self, output: &str) -> anyhow::Result<usize> {
        let mut records = 0;
        for part in tanist_chaos::wordcount::visible_files(&self.path().join(output))? {
            records += std::fs::read_to_string(part)?.lines().count();
        }
        Ok(records)
    }

    fn log(&self, id: &str) -> String {
        std::fs::read_to_string(self.path().join(format!("{id}.log"))).unwrap_or_default()
    }

    /// Waits for the end of a process, and returns its code.
    async fn code_of(&self, child: &mut Child, id: &str) -> anyhow::Result<Option<i32>> {
        let ended = tokio::time::timeout(BOUND, child.wait()).await;
        match ended {
            Ok(status) => Ok(status?.code()),
            Err(_) => bail!("{id} does not end:\n{}", self.log(id)),
        }
    }

    /// Waits until the first job runs, or has finished.
    async fn wait_until_ticking(&self, client: &ClusterClient) -> anyhow::Result<()> {
        let first = client.job(job_id_of(&Name::new(self.cluster.as_str())?, 0));
        let ticking = async {
            loop {
                let info = first.info().await;
                let is_running = |info: &tanist::client::JobInfo| {
                    let runs = info.running() == info.parallelism();
                    info.state == JobStatus::Finished || (info.state == JobStatus::Running && runs)
                };
                if info.is_ok_and(|info| is_running(&info)) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let ticking = tokio::time::timeout(BOUND, ticking).await;
        ticking.with_context(|| format!("it does not tick:\n{}", self.log("jm-1")))
    }

    async fn check_succeeded(&self) -> anyhow::Result<()> {
        ensure!(
            self.records("ticks")? == usize::try_from(self.ticks)?,
            "ticks are lost or there twice"
        );
        ensure!(self.records("last")? == 10, "the last job ran not once");
        let runs = self.runs()?;
        let mut again = self.start("jobmanager", "jm-again")?;
        let code = self.code_of(&mut again, "jm-again").await?;
        ensure!(
            code == Some(0),
            "it finds another end:\n{}",
            self.log("jm-again")
        );
        ensure!(
            self.runs()? == runs,
            "the program of an application that has ended was started"
        );
        // There is no leader that could tell it that nothing is left to do.
        let mut late = self.start("taskmanager", "tm-late")?;
        let code = self.code_of(&mut late, "tm-late").await?;
        ensure!(
            code == Some(0),
            "a TaskManager waits although the application has ended:\n{}",
            self.log("tm-late")
        );
        Ok(())
    }
}

async fn an_application_outlives_its_leader_and_ends_once_in_every_process(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let processes = Processes::new(kind, TICKS).await?;
    let mut leader = processes.start("jobmanager", "jm-1")?;
    let mut worker = processes.start("taskmanager", "tm-1")?;
    let client = processes.client().await?;
    processes.wait_until_ticking(&client).await?;
    let mut standbys = [
        ("jm-2", processes.start("jobmanager", "jm-2")?),
        ("jm-3", processes.start("jobmanager", "jm-3")?),
    ];
    let other = client
        .execute_async(numbers("x", Some(1), None, Path::new("/x")))
        .await;
    let Err(ExecuteError::Client(ClientError::Refused {
        status: 403,
        errors,
    })) = other
    else {
        bail!("a submission over REST is not refused: {other:?}");
    };
    ensure!(errors[0].contains("\"ticks\""), "{errors:?}");
    wait_for_members(&client, 3).await?;

    leader.kill().await?;
    processes.let_end()?;
    for (id, standby) in &mut standbys {
        let code = processes.code_of(standby, id).await?;
        ensure!(
            code == Some(0),
            "{id} ended with {code:?}:\n{}",
            processes.log(id)
        );
    }
    let code = processes.code_of(&mut worker, "tm-1").await?;
    ensure!(
        code == Some(0),
        "the TaskManager ended with {code:?}:\n{}",
        processes.log("tm-1")
    );
    ensure!(
        processes.runs()? == 2,
        "the program was not started once a term"
    );
    processes.check_succeeded().await
}

async fn wait_for_members(client: &ClusterClient, wanted: usize) -> anyhow::Result<()> {
    let waiting = async {
        loop {
            let status = client.jobs().ha_status().await;
            if status.is_ok_and(|status| status.members.len() == wanted) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let waited = tokio::time::timeout(BOUND, waiting).await;
    waited.context("not all JobManagers are there")
}

/// The steps between which the leader dies in an application's life, and how often the program is started
/// for each of them.
const STEPS: [(&str, usize); 6] = [
    ("application.recorded", 1),
    ("application.submitted", 2),
    ("application.decided", 1),
    ("application.jobs-ended", 1),
    ("application.emptied", 1),
    ("application.closed", 1),
];

async fn a_leader_that_is_killed_between_any_two_steps_changes_nothing_about_the_end(
    kind: StoreKind,
) -> anyhow::Result<()> {
    need_failpoints()?;
    for (step, runs) in STEPS {
        let processes = Processes::new(kind, 10).await?;
        processes.let_end()?;
        let killed = format!("{step}=kill");
        let mut leader = processes.start_with("jobmanager", "jm-1", &killed)?;
        let mut worker = processes.start("taskmanager", "tm-1")?;
        let code = processes.code_of(&mut leader, "jm-1").await?;
        ensure!(
            code.is_none(),
            "{step}: ended with {code:?}:\n{}",
            processes.log("jm-1")
        );
        let mut next = processes.start("jobmanager", "jm-2")?;
        let code = processes.code_of(&mut next, "jm-2").await?;
        ensure!(
            code == Some(0),
            "{step}: {code:?}:\n{}",
            processes.log("jm-2")
        );
        processes.code_of(&mut worker, "tm-1").await?;
        let started = processes.runs()?;
        ensure!(
            started == runs,
            "{step}: the program was started {started} times"
        );
        processes.check_succeeded().await.context(step)?;
    }
    Ok(())
}

async fn a_jobmanager_that_is_asked_to_end_keeps_the_application(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let processes = Processes::new(kind, TICKS).await?;
    let mut first = processes.start("jobmanager", "jm-1")?;
    let mut worker = processes.start("taskmanager", "tm-1")?;
    let client = processes.client().await?;
    processes.wait_until_ticking(&client).await?;
    send_sigterm(&first)?;
    let code = processes.code_of(&mut first, "jm-1").await?;
    ensure!(code == Some(0), "{code:?}:\n{}", processes.log("jm-1"));
    ensure!(
        worker.try_wait()?.is_none(),
        "the TaskManager was sent away"
    );

    processes.let_end()?;
    let mut next = processes.start("jobmanager", "jm-2")?;
    let code = processes.code_of(&mut next, "jm-2").await?;
    ensure!(code == Some(0), "{code:?}:\n{}", processes.log("jm-2"));
    processes.code_of(&mut worker, "tm-1").await?;
    processes.check_succeeded().await
}

fn send_sigterm(process: &Child) -> anyhow::Result<()> {
    let pid = process.id().context("it runs")?;
    let pid = rustix::process::Pid::from_raw(pid.try_into()?).context("a process id")?;
    Ok(rustix::process::kill_process(
        pid,
        rustix::process::Signal::TERM,
    )?)
}

async fn a_signal_to_local_ends_the_application_if_its_store_goes_with_it(
    kind: StoreKind,
) -> anyhow::Result<()> {
    for (id, goes_on, told) in [
        (OWN_STORE, false, "ends with its cluster"),
        ("configured", true, "goes on with the same"),
    ] {
        let processes = Processes::new(kind, TICKS).await?;
        let mut local = processes.start("local", id)?;
        let has_started = async || {
            ensure!(processes.runs()? > 0, "{}", processes.log(id));
            anyhow::Ok(())
        };
        wait_for("the program to start", BOUND, has_started).await?;
        send_sigterm(&local)?;
        let code = processes.code_of(&mut local, id).await?;
        let said = processes.log(id);
        ensure!(code == Some(TERMINATED), "{id}: {code:?}:\n{said}");
        ensure!(said.contains(told), "{id}:\n{said}");
        if goes_on {
            processes.let_end()?;
            let mut again = processes.start("local", id)?;
            let code = processes.code_of(&mut again, id).await?;
            ensure!(code == Some(0), "{code:?}:\n{}", processes.log(id));
            processes.check_succeeded().await?;
        }
    }
    Ok(())
}

const JOB: &str = "\
version: 1
name: numbers
restart-strategy: none
parameters:
  input:
    description: Where from.
  output:
    description: Where to.
steps:
  - name: lines
    file-source:
      paths: ${input}
  - name: out
    file-sink:
      path: ${output}
";

async fn a_cluster_for_one_job_ends_as_the_job_does_and_finds_it_ended(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let processes = Processes::new(kind, TICKS).await?;
    let job = processes.path().join("job.yaml");
    std::fs::write(&job, JOB)?;
    std::fs::write(processes.path().join("input"), "a\nb\nc\n")?;
    let run = async |cluster: &str, input: &str| {
        let parameter = |name: &str, value: &str| {
            let path = processes.path().join(value);
            format!("{name}={}", path.to_string_lossy())
        };
        let mut command = Command::new(PROGRAM);
        command.args(["run", "--target", "per-job", "-v"]).arg(&job);
        command.args(["--param", &parameter("input", input)]);
        command.args(["--param", &parameter("output", "output")]);
        for (key, value) in processes.settings() {
            command.args(["-D", &format!("{key}={value}")]);
        }
        let cluster = format!("{}-{cluster}", processes.cluster);
        command.args(["-D", &format!("high-availability.cluster-id={cluster}")]);
        let output = tokio::time::timeout(BOUND, command.kill_on_drop(true).output()).await??;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        anyhow::Ok((output.status.code(), said))
    };
    let (code, said) = run("one", "input").await?;
    ensure!(code == Some(0), "{code:?}: {said}");
    ensure!(said.contains("--target says so"), "{said}");
    ensure!(processes.records("output")? == 3, "{said}");
    std::fs::remove_dir_all(processes.path().join("output"))?;
    let (code, said) = run("one", "input").await?;
    ensure!(code == Some(0), "{code:?}: {said}");
    ensure!(
        !processes.path().join("output").exists(),
        "it ran once more: {said}"
    );

    let (code, said) = run("two", "nothing-is-here").await?;
    ensure!(code == Some(4), "{code:?}: {said}");
    let (code, said) = run("two", "nothing-is-here").await?;
    ensure!(code == Some(4), "it finds another end: {code:?}: {said}");
    Ok(())
}
