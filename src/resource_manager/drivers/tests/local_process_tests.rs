//! Places and the processes visible from them, logs, and the command lines of workers of several kinds.

use rustix::process::Pid;
use tanist_config::{Configuration, LoadOptions};
use tanist_proto::resources::{CpuCores, Resources};

use super::*;

#[tokio::test]
async fn workers_are_gone_only_where_all_processes_are_seen_and_not_on_a_namesake_of_this_host()
-> anyhow::Result<()> {
    let driver = LocalProcessDriver::new(options(WorkerGroups::None, PathBuf::new()));
    let own = driver.place();
    let with_part = |number: usize, value: &str| {
        let mut parts: Vec<&str> = own.split(' ').collect();
        parts[number] = value;
        parts.join(" ")
    };
    let of_another_start = with_part(1, "0f1e2d3c-0000-4000-8000-000000000000");
    let places = [
        (own.clone(), Found::Gone),
        (of_another_start, Found::Unseen),
        (with_part(0, "another-host"), Found::Unseen),
        (with_part(2, "pid:[1]"), Found::Unseen),
        (with_part(3, "uid:4294967294"), Found::Unseen),
        (String::new(), Found::Unseen),
    ];
    for (place, expected) in places {
        let worker: ResourceId = "worker-0-of-a-test".parse()?;
        let recorded = vec![RecordedWorker {
            worker: worker.clone(),
            place: place.clone(),
        }];
        let cluster = ClusterIncarnation::generate();
        let found = driver.recover_workers(&cluster, &recorded).await?;
        assert_eq!(found, [(worker, expected)], "{place:?}");
    }
    Ok(())
}

/// A driver that sees the processes in a directory, and none of this host.
fn driver_seeing(directory: &Path) -> LocalProcessDriver {
    let processes = Processes {
        directory: directory.to_owned(),
    };
    LocalProcessDriver {
        processes,
        ..LocalProcessDriver::new(options(WorkerGroups::None, PathBuf::new()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_is_not_gone_as_long_as_some_process_can_t_be_read() -> anyhow::Result<()> {
    let seen = tempfile::tempdir()?;
    let driver = driver_seeing(seen.path());
    let process = seen.path().join(std::process::id().to_string());
    // A directory can't be read as a file, not even by root.
    fs::create_dir_all(process.join("cmdline"))?;
    let worker: ResourceId = "worker-0-of-a-test".parse()?;
    let recorded = [RecordedWorker {
        worker: worker.clone(),
        place: driver.place(),
    }];
    let cluster = ClusterIncarnation::generate();
    let refused = driver.recover_workers(&cluster, &recorded).await;
    let refused = refused.expect_err("one of them can't be read").to_string();
    assert!(refused.contains("can't be read"), "{refused}");
    assert!(driver.stop_worker(&worker).await.is_err());
    let mut ended = Box::pin(driver.worker_ended(&worker));
    let while_unseen = tokio::time::timeout(Duration::from_secs(60), &mut ended).await;
    assert!(while_unseen.is_err(), "{while_unseen:?}");
    fs::remove_dir_all(&process)?;
    let how = ended.await;
    assert!(how.contains("its process has ended"), "{how}");
    let found = driver.recover_workers(&cluster, &recorded).await?;
    assert_eq!(found, [(worker, Found::Gone)]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_worker_has_not_ended_when_only_a_copy_of_it_has() -> anyhow::Result<()> {
    let seen = tempfile::tempdir()?;
    let driver = driver_seeing(seen.path());
    let worker: ResourceId = "worker-0-of-a-test".parse()?;
    let mut both = Vec::new();
    for _ in 0..2 {
        let child = std::process::Command::new("sh")
            .args(["-c", "read line"])
            .stdin(Stdio::piped())
            .spawn()?;
        let process = seen.path().join(child.id().to_string());
        fs::create_dir(&process)?;
        let line = format!("tanist\0{ID_ARGUMENT}{worker}\0{CLUSTER_ARGUMENT}c\0");
        fs::write(process.join("cmdline"), line)?;
        both.push((child, process));
    }
    let first = find(&driver.processes, &worker).await?.expect("both");
    both.sort_by_key(|(child, _)| Pid::from_child(child) == first.pid);
    let mut ended = Box::pin(driver.worker_ended(&worker));
    while let Some((mut child, process)) = both.pop() {
        let while_it_runs = tokio::time::timeout(Duration::from_secs(60), &mut ended).await;
        assert!(while_it_runs.is_err(), "{while_it_runs:?}");
        fs::remove_dir_all(&process)?;
        child.kill()?;
        child.wait()?;
    }
    let how = ended.await;
    assert!(how.contains("its process has ended"), "{how}");
    Ok(())
}

#[test]
fn a_worker_of_another_kind_is_started_with_exactly_what_that_has() {
    let configured = LoadOptions::default()
        .with("taskmanager.memory.process.size", "1 gb")
        .with("external-resources", "gpu:4:GPUS,disk:1");
    let configured = Configuration::load(configured).expect("valid");
    let host = (CpuCores::whole(64), 64 << 30);
    let usual = configured.taskmanager().worker(host.0, host.1);
    let usual = usual.expect("it adds up");
    let options = LocalProcessOptions {
        name: "tanist".to_owned(),
        environment: configured.environment(),
        memory: configured.taskmanager().memory.clone(),
        external_resources: configured.taskmanager().external_resources.clone(),
        log_dir: PathBuf::new(),
        stop_timeout: Duration::ZERO,
        groups: WorkerGroups::None,
        usual: usual.clone(),
    };
    let total = Resources {
        cpu: CpuCores::from_cores(1.5),
        task_memory: 3 << 30,
        network_memory: usual.total().network_memory,
        ..Resources::ZERO
    };
    let kind = WorkerResourceSpec::new(total.with_extended("gpu", 2), 1);
    // The configuration of the process: the environment without contradicting variables, overridden by the
    // arguments.
    let inherited = options.environment.iter();
    let inherited = inherited.filter(|(name, _)| !NOT_OF_A_KIND.contains(&name.as_str()));
    let mut load = LoadOptions {
        environment: inherited.cloned().collect(),
        ..LoadOptions::default()
    };
    for (key, value) in options.settings_of(&kind) {
        load = load.with(key, &value);
    }
    let started = Configuration::load(load).expect("valid");
    assert_eq!(started.taskmanager().external_resources.len(), 1);
    assert_eq!(started.taskmanager().worker(host.0, host.1), Ok(kind));
}

/// Options for workers of one kind, with logs in this directory.
fn options(groups: WorkerGroups, log_dir: PathBuf) -> LocalProcessOptions {
    let configured = Configuration::defaults();
    let usual = configured.taskmanager().worker(CpuCores::whole(1), 4 << 30);
    LocalProcessOptions {
        name: "tanist".to_owned(),
        environment: Vec::new(),
        memory: configured.taskmanager().memory.clone(),
        external_resources: Vec::new(),
        log_dir,
        stop_timeout: Duration::ZERO,
        groups,
        usual: usual.expect("it adds up"),
    }
}

/// The error of starting a worker.
async fn refusal(options: LocalProcessOptions) -> String {
    let request = WorkerRequest {
        worker: "worker-0-of-a-test".parse().expect("an id"),
        spec: options.usual.clone(),
        cluster: ClusterIncarnation::generate(),
    };
    let driver = LocalProcessDriver::new(options);
    let refused = driver.start_worker(&request).await.expect_err("refused");
    refused.to_string()
}

#[tokio::test]
async fn a_worker_that_can_t_be_held_to_its_memory_though_it_has_to_be_is_not_started() {
    let groups = WorkerGroups::Refused("process.control-groups: not here".to_owned());
    let refused = refusal(options(groups, PathBuf::new())).await;
    assert!(refused.contains("not here"), "{refused}");
}

#[test]
fn a_worker_is_told_the_group_that_it_is_to_enter() {
    let driver = LocalProcessDriver::new(options(WorkerGroups::None, PathBuf::new()));
    let request = WorkerRequest {
        worker: "worker-0-of-a-test".parse().expect("an id"),
        spec: driver.options.usual.clone(),
        cluster: ClusterIncarnation::generate(),
    };
    let told = |group: Option<&Path>| {
        let command = driver.command(&request, group);
        let mut arguments = command.get_args().filter_map(|it| it.to_str());
        let told = arguments.find_map(|it| it.strip_prefix(GROUP_ARGUMENT));
        told.map(str::to_owned)
    };
    let group = "/sys/fs/cgroup/of-a-job-manager/tanist-1-worker";
    assert_eq!(told(Some(Path::new(group))).as_deref(), Some(group));
    assert_eq!(told(None), None);
}

#[tokio::test]
async fn a_worker_without_a_place_for_its_log_is_not_started_and_the_place_is_named() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let log_dir = file.path().join("logs");
    let refused = refusal(options(WorkerGroups::None, log_dir.clone())).await;
    assert!(refused.contains(&*log_dir.to_string_lossy()), "{refused}");
}

#[tokio::test]
async fn a_worker_that_can_t_be_started_leaves_no_control_group() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let at = directory.path().join("delegated");
    fs::create_dir(&at)?;
    fs::write(at.join("cgroup.controllers"), "cpu memory pids")?;
    let groups = ControlGroups::claim(Some(&at)).map_err(anyhow::Error::msg)?;
    // No directory can be made below a file.
    let log_dir = at.join("cgroup.controllers").join("logs");
    let refused = refusal(options(WorkerGroups::In(groups), log_dir)).await;
    assert!(refused.contains("can't be started"), "{refused}");
    let mut left = Vec::new();
    for entry in fs::read_dir(&at)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            left.push(entry.file_name());
        }
    }
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}

#[test]
fn old_logs_go_and_the_last_line_of_one_is_told() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    for number in 0..KEPT_LOGS + 3 {
        let path = directory.path().join(format!("worker-gone-{number}.log"));
        fs::write(&path, "first\nlast words\n\n")?;
    }
    fs::write(directory.path().join("other"), "")?;
    prune_logs(directory.path(), &Processes::default());
    let left = fs::read_dir(directory.path())?.count();
    assert_eq!(left, KEPT_LOGS + 1);
    let any = directory
        .path()
        .join(format!("worker-gone-{}.log", KEPT_LOGS));
    let kept = if any.exists() {
        any
    } else {
        directory.path().join("worker-gone-0.log")
    };
    if kept.exists() {
        assert_eq!(last_line(&kept).as_deref(), Some("last words"));
    }
    assert_eq!(last_line(&directory.path().join("none")), None);
    Ok(())
}
