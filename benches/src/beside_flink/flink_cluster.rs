//! The Flink part: JobManagers and a TaskManager from its jars, started as its own scripts do, and asked
//! over its REST API.

use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tanist_chaos::guard::Guard;
use tanist_chaos::wait::wait_for_every;
use tanist_ha::clock::wall_clock_ms;
use tanist_ha::testing::servers::ports::free_port;

use super::{SOON, System, Timeouts, until_slots};
use crate::BenchOptions;
use crate::http::Http;
use crate::watch::{BOUND, all_subtasks_run};

/// The name of the jar in the upload directory: the part before `_` identifies an upload.
const JAR: &str = "bench_jobs.jar";
/// Timeout of a REST answer: while there is no leader, some requests get no answer.
const ANSWER_BOUND: Duration = Duration::from_secs(1);

/// Options that Flink's `BashJavaUtils` computes for a JobManager of 1600 MiB.
const JOBMANAGER_JAVA: [&str; 3] = [
    "-Xmx1073741824",
    "-Xms1073741824",
    "-XX:MaxMetaspaceSize=268435456",
];
const JOBMANAGER_SIZES: [&str; 5] = [
    "jobmanager.memory.off-heap.size=134217728b",
    "jobmanager.memory.jvm-overhead.min=201326592b",
    "jobmanager.memory.jvm-metaspace.size=268435456b",
    "jobmanager.memory.heap.size=1073741824b",
    "jobmanager.memory.jvm-overhead.max=201326592b",
];
/// The same for a TaskManager of 1728 MiB with 2 slots.
const TASKMANAGER_JAVA: [&str; 4] = [
    "-Xmx536870902",
    "-Xms536870902",
    "-XX:MaxDirectMemorySize=268435458",
    "-XX:MaxMetaspaceSize=268435456",
];
const TASKMANAGER_SIZES: [&str; 12] = [
    "taskmanager.memory.network.min=134217730b",
    "taskmanager.memory.network.max=134217730b",
    "taskmanager.cpu.cores=2.0",
    "taskmanager.memory.task.off-heap.size=0b",
    "taskmanager.memory.jvm-metaspace.size=268435456b",
    "external-resources=none",
    "taskmanager.memory.jvm-overhead.min=201326592b",
    "taskmanager.memory.jvm-overhead.max=201326592b",
    "taskmanager.memory.framework.off-heap.size=134217728b",
    "taskmanager.memory.framework.heap.size=134217728b",
    "taskmanager.memory.managed.size=536870920b",
    "taskmanager.memory.task.heap.size=402653174b",
];
/// Packages of the JDK that Flink accesses by reflection, as its stock configuration opens them.
const OPENED: [&str; 12] = [
    "java.lang",
    "java.net",
    "java.io",
    "java.nio",
    "sun.nio.ch",
    "java.lang.reflect",
    "java.text",
    "java.time",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "java.util.concurrent.locks",
];
/// The shortest timeouts that work on a loaded machine.
const SHORT_TIMEOUTS: &str = "\
high-availability.zookeeper.client.session-timeout: 2 s
high-availability.zookeeper.client.connection-timeout: 1 s
high-availability.zookeeper.client.retry-wait: 200 ms
high-availability.zookeeper.client.max-retry-attempts: 50
heartbeat.interval: 500 ms
heartbeat.timeout: 2 s
cluster.registration.error-delay: 500 ms
cluster.registration.refused-registration-delay: 500 ms
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: 1000000
restart-strategy.fixed-delay.delay: 100 ms
";

pub(super) struct FlinkCluster {
    directory: PathBuf,
    jars: PathBuf,
    rest_ports: [u16; 2],
    /// The JobManagers, then the TaskManagers, in the order of their start.
    processes: Vec<Child>,
    http: Http,
    /// The job that was submitted last.
    job: String,
    /// In milliseconds since 1970, by the wall clock.
    killed_at_ms: u64,
    /// Kills the processes and removes the directory when this process has ended.
    guard: Guard,
}

impl FlinkCluster {
    fn start(
        &mut self,
        name: &str,
        class: &str,
        java: &[&str],
        settings: &[String],
    ) -> anyhow::Result<()> {
        let log = File::create(self.directory.join(format!("{name}.log")))?;
        let opened = OPENED.map(|package| format!("--add-opens=java.base/{package}=ALL-UNNAMED"));
        let settings = settings.iter().flat_map(|setting| ["-D", setting.as_str()]);
        let child = Command::new("java")
            .args(java)
            .args(opened)
            .arg("-cp")
            .arg(self.jars.join("*"))
            .arg(class)
            .arg("--configDir")
            .arg(self.directory.join("conf"))
            .args(settings)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start java")?;
        self.guard.watch(child.id());
        self.processes.push(child);
        Ok(())
    }

    fn start_jobmanager(&mut self, index: usize) -> anyhow::Result<()> {
        let sizes = JOBMANAGER_SIZES.map(str::to_owned).into_iter();
        let settings: Vec<String> = sizes
            .chain([
                format!("rest.port={}", self.rest_ports[index]),
                "high-availability.jobmanager.port=0".to_owned(),
            ])
            .collect();
        let class = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint";
        self.start(&format!("jm-{index}"), class, &JOBMANAGER_JAVA, &settings)
    }

    fn address(&self, jobmanager: usize) -> String {
        format!("127.0.0.1:{}", self.rest_ports[jobmanager])
    }

    async fn run(
        &mut self,
        class: &str,
        arguments: &[String],
        savepoint: Option<&str>,
    ) -> anyhow::Result<()> {
        let body = json!({
            "entryClass": class,
            "programArgsList": arguments,
            "parallelism": 2,
            "savepointPath": savepoint,
        });
        let path = format!("/jars/{JAR}/run");
        let answer = self.http.post(&self.address(0), &path, &body).await?;
        let job = answer["jobid"].as_str().context("no jobid in the answer")?;
        self.job = job.to_owned();
        Ok(())
    }

    fn start_taskmanager(&mut self, index: usize) -> anyhow::Result<()> {
        let sizes = TASKMANAGER_SIZES.map(str::to_owned);
        let class = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner";
        self.start(&format!("tm-{index}"), class, &TASKMANAGER_JAVA, &sizes)
    }
}

impl System for FlinkCluster {
    const NAME: &'static str = "Flink";

    async fn prepare(
        options: &BenchOptions,
        timeouts: Timeouts,
        zookeeper: &str,
    ) -> anyhow::Result<FlinkCluster> {
        let home = options
            .flink
            .as_ref()
            .context("no folder has Flink in it")?;
        let home = home
            .canonicalize()
            .with_context(|| home.display().to_string())?;
        let directory = tempfile::Builder::new()
            .prefix("tanist-bench-flink-")
            .tempdir()?
            .keep();
        let guard = Guard::start(&directory)?;
        std::fs::create_dir_all(directory.join("conf"))?;
        std::fs::write(
            directory.join("conf/config.yaml"),
            configuration(&directory, timeouts, zookeeper)?,
        )?;
        // A jar in the upload directory counts as uploaded, for every JobManager.
        let uploads = directory.join("uploads/flink-web-upload");
        std::fs::create_dir_all(&uploads)?;
        std::fs::copy(home.join("jobs.jar"), uploads.join(JAR))?;
        Ok(FlinkCluster {
            directory,
            jars: home.join("pyflink/lib"),
            rest_ports: [free_port(), free_port()],
            processes: Vec::new(),
            http: Http::default(),
            job: String::new(),
            killed_at_ms: 0,
            guard,
        })
    }

    async fn start_leader(&mut self) -> anyhow::Result<()> {
        self.start_jobmanager(0)?;
        // There is no other JobManager: when its Dispatcher answers, it leads.
        wait_for_every(SOON, "Flink's leader", BOUND, async || {
            self.get(0, "/jobs/overview").await.map(drop)
        })
        .await
    }

    async fn start_the_rest(&mut self) -> anyhow::Result<()> {
        self.start_jobmanager(1)?;
        self.start_taskmanager(0)?;
        until_slots(self, 2).await
    }

    async fn start_spare_worker(&mut self) -> anyhow::Result<()> {
        self.start_taskmanager(1)?;
        until_slots(self, 4).await
    }

    fn pids(&mut self) -> anyhow::Result<[u32; 3]> {
        let pids: Vec<u32> = self.processes.iter().map(Child::id).collect();
        <[u32; 3]>::try_from(pids)
            .ok()
            .context("not all are started")
    }

    async fn submit_count(&mut self, records: u64, with_checkpoints: bool) -> anyhow::Result<()> {
        let interval = if with_checkpoints { 1000 } else { 0 };
        let arguments = [records.to_string(), interval.to_string()];
        self.run("KeyedCount", &arguments, None).await
    }

    async fn submit_endless(&mut self, rate: u64, savepoint: Option<&str>) -> anyhow::Result<()> {
        self.run("Endless", &[rate.to_string()], savepoint).await
    }

    async fn get(&self, jobmanager: usize, path: &str) -> anyhow::Result<Value> {
        let address = self.address(jobmanager);
        let asked = tokio::time::timeout(ANSWER_BOUND, self.http.get(&address, path)).await;
        asked.with_context(|| format!("GET {address}{path} takes longer than {ANSWER_BOUND:?}"))?
    }

    async fn get_of_job(&self, path: &str) -> anyhow::Result<Value> {
        self.get(0, &format!("/jobs/{}{path}", self.job)).await
    }

    async fn post_of_job(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        let path = format!("/jobs/{}{path}", self.job);
        self.http.post(&self.address(0), &path, body).await
    }

    fn savepoints(&self) -> String {
        format!("file://{}/savepoints", self.directory.display())
    }

    fn kill_worker(&mut self) -> anyhow::Result<()> {
        Ok(self.processes[2].kill()?)
    }

    fn kill_leader(&mut self) -> anyhow::Result<()> {
        self.killed_at_ms = wall_clock_ms();
        Ok(self.processes[0].kill()?)
    }

    async fn until_running_again(&mut self) -> anyhow::Result<()> {
        let path = format!("/jobs/{}", self.job);
        wait_for_every(SOON, "Flink's job to run again", BOUND, async || {
            let body = self.get(1, &path).await?;
            // The standby may still have the former leader's answer in its cache.
            let is_of_the_next = body["start-time"].as_u64() > Some(self.killed_at_ms);
            ensure!(is_of_the_next && all_subtasks_run(&body), "{body}");
            Ok(())
        })
        .await
    }

    fn end(self) {}
}

impl Drop for FlinkCluster {
    fn drop(&mut self) {
        for process in &mut self.processes {
            self.guard.release(process.id());
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn configuration(directory: &Path, timeouts: Timeouts, zookeeper: &str) -> anyhow::Result<String> {
    let shown = directory.display();
    let cluster = directory.file_name().context("a directory has a name")?;
    let mut text = format!(
        "high-availability.type: zookeeper\n\
         high-availability.zookeeper.quorum: {zookeeper}\n\
         high-availability.cluster-id: {}\n\
         high-availability.storageDir: file://{shown}/ha\n\
         execution.checkpointing.dir: file://{shown}/checkpoints\n\
         jobmanager.memory.process.size: 1600m\n\
         taskmanager.memory.process.size: 1728m\n\
         taskmanager.numberOfTaskSlots: 2\n\
         io.tmp.dirs: {shown}\n\
         web.upload.dir: {shown}/uploads\n\
         web.refresh-interval: 50\n",
        cluster.to_string_lossy()
    );
    for key in [
        "jobmanager.rpc.address",
        "jobmanager.bind-host",
        "taskmanager.host",
        "taskmanager.bind-host",
        "rest.address",
        "rest.bind-address",
    ] {
        writeln!(text, "{key}: 127.0.0.1")?;
    }
    if timeouts == Timeouts::Short {
        text.push_str(SHORT_TIMEOUTS);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flink_is_told_of_short_timeouts_only_where_they_are_measured() -> anyhow::Result<()> {
        let of = |timeouts| configuration(Path::new("/tmp/x"), timeouts, "127.0.0.1:2181");
        let (short, default) = (of(Timeouts::Short)?, of(Timeouts::Default)?);
        assert!(short.contains("session-timeout: 2 s"), "{short}");
        assert!(!default.contains("timeout"), "{default}");
        // A YAML file may contain a key only once.
        for text in [short, default] {
            let mut keys: Vec<&str> = text
                .lines()
                .filter_map(|it| it.split(": ").next())
                .collect();
            let count = keys.len();
            keys.sort_unstable();
            keys.dedup();
            assert_eq!(keys.len(), count, "{text}");
        }
        Ok(())
    }
}
