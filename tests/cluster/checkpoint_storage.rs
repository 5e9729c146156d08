//! The directory of checkpoints is not as it should be: a host can't write to it, it is full, an object in it is lost,
//! two clusters share it, or a savepoint has no place. Each is named, and costs only what depends on it.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use tanist_chaos::{
    Cluster, ClusterBuilder, Store, StoreKind, files_called, small_file_system, wait_for,
};
use tanist_proto::id::JobId;

use crate::support::{BOUND, PROGRAM, cluster_on};
use crate::verified::{TwoRegions, Verified};

/// It lasts until it is finished. With 1,500 keys its state is large enough for objects.
const JOB: TwoRegions = TwoRegions {
    count: 200_000,
    rate: 1_000,
    keys: 1_500,
    interval_ms: 100,
};
/// The size of a disk that is filled.
const DISK: u64 = 16 * 1024 * 1024;

on_stores! {
    usually on anywhere(Embedded) {
        a_taskmanager_that_cannot_write_objects_is_named_until_it_can,
        a_taskmanager_that_cannot_read_objects_is_named_until_it_can,
        a_job_whose_object_is_lost_is_quarantined_alone,
        a_job_whose_object_is_damaged_is_quarantined_alone,
        a_job_goes_back_to_an_older_checkpoint_if_a_person_accepts_duplicates,
        one_sink_that_cannot_commit_is_named_until_it_can,
        two_clusters_in_one_directory_keep_each_their_own,
        checkpoints_with_a_directory_of_their_own_are_restored_from_it,
        taskmanagers_with_another_storage_than_the_jobmanager_are_told_so,
        a_job_runs_on_whose_savepoint_has_no_place,
    }
}
on_networks! {
    etcd(Etcd) {
        a_full_disk_delays_checkpoints_until_there_is_room,
    }
}

async fn a_taskmanager_that_cannot_write_objects_is_named_until_it_can(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let [shared, own, file] = ["shared", "own", "file"].map(|name| directory.path().join(name));
    std::fs::create_dir(&shared)?;
    std::fs::write(&file, "")?;
    // Where the one TaskManager expects the directory is a file.
    symlink(&file, &own)?;
    let builder = with_storage(cluster_on(kind).await?, &shared);
    let builder = builder.set_of_taskmanager(1, "high-availability.storageDir", &text(&own));
    let mut cluster = builder.start().await?;
    let job = Verified::submit(&mut cluster, JOB).await?;
    until_info_says(
        &mut cluster,
        &job,
        &["can't be written by tm-1", &text(&own)],
    )
    .await?;
    // Only one of the two regions has tasks there.
    let number = job.until_completed_above(&mut cluster, 0).await?;
    std::fs::remove_file(&own)?;
    symlink(&shared, &own)?;
    let number = job.until_completed_above(&mut cluster, number + 2).await?;
    cluster.taskmanager(1).kill();
    cluster.taskmanager(1).start()?;
    job.until_restored_after(&mut cluster, 0).await?;
    job.until_completed_above(&mut cluster, number).await?;
    job.finish(&mut cluster, JOB).await
}

async fn a_taskmanager_that_cannot_read_objects_is_named_until_it_can(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let [shared, none] = ["shared", "none"].map(|name| directory.path().join(name));
    // Where each TaskManager expects the directory. The region with much state may be at any of them.
    let own = ["own-0", "own-1"].map(|name| directory.path().join(name));
    let point_to = |target: &Path| point(&own, target);
    std::fs::create_dir(&shared)?;
    point_to(&shared)?;
    let mut builder = with_storage(cluster_on(kind).await?, &shared);
    for (number, link) in own.iter().enumerate() {
        builder = builder.set_of_taskmanager(number, "high-availability.storageDir", &text(link));
    }
    let mut cluster = builder.start().await?;
    let job = Verified::submit(&mut cluster, JOB).await?;
    cluster.wait_until_running(job.job).await?;
    let number = job.until_completed_above(&mut cluster, 20).await?;
    for taskmanager in 0..2 {
        cluster.taskmanager(taskmanager).kill();
    }
    // What they had mounted is gone.
    point_to(&none)?;
    for taskmanager in 0..2 {
        cluster.taskmanager(taskmanager).start()?;
    }
    let words = ["can't be read by tm-", "object", "Waits", "Not saved"];
    let said = until_info_says(&mut cluster, &job, &words).await?;
    let is_named = |host: &usize| said.contains(&format!("can't be read by tm-{host} at"));
    let host = (0..2).find(is_named).context("no host is named")?;
    let place = text(&own[host]);
    ensure!(said.contains(&place), "no {place} in {said}");
    let (address, id) = (cluster.leader().await?.rest, job.job.to_string());
    let subtasks = ["job", "subtasks", &id, "--address", &address];
    let subtasks = cluster.cli().run(&subtasks).await?.success()?;
    for told in [&*format!("can't be read by tm-{host} at"), &place] {
        ensure!(subtasks.contains(told), "no {told} in {subtasks}");
    }
    let described = cluster.get(&format!("/v1/jobs/{id}")).await?;
    let reasons = described["blocked-by"].as_array();
    let mut reasons = reasons.into_iter().flatten();
    ensure!(
        reasons.any(|reason| reason["kind"] == "restoring"),
        "{described}"
    );
    // A new leader says so, too.
    let former = cluster.kill_leader().await?;
    cluster.successor_of(&former).await?;
    until_info_says(&mut cluster, &job, &words).await?;
    point_to(&shared)?;
    cluster.wait_until_running(job.job).await?;
    let number = job.until_completed_above(&mut cluster, number).await?;
    job.until_completed_above(&mut cluster, number + 2).await?;
    job.finish(&mut cluster, JOB).await
}

async fn a_full_disk_delays_checkpoints_until_there_is_room(kind: StoreKind) -> anyhow::Result<()> {
    let disk = small_file_system("disk", DISK)?;
    let store = Store::own(kind).await?;
    let builder = ClusterBuilder::new(PROGRAM, store).on_hosts_of_their_own();
    let mut cluster = with_storage(builder, &disk).start().await?;
    let job = Verified::submit(&mut cluster, JOB).await?;
    job.until_completed_above(&mut cluster, 1).await?;
    let fill = disk.join("fill");
    fill_up(&fill)?;
    until_info_says(&mut cluster, &job, &["can't be written", "No space left"]).await?;
    let former = cluster.kill_leader().await?;
    cluster.successor_of(&former).await?;
    until_info_says(&mut cluster, &job, &["can't be written", "No space left"]).await?;
    std::fs::remove_file(&fill)?;
    let number = job.until_completed_above(&mut cluster, 0).await?;
    job.until_completed_above(&mut cluster, number + 1).await?;
    job.finish(&mut cluster, JOB).await
}

async fn a_job_whose_object_is_lost_is_quarantined_alone(kind: StoreKind) -> anyhow::Result<()> {
    let lose = |object: &Path| std::fs::remove_file(object);
    only_its_job_is_quarantined(kind, lose, "object").await
}

async fn a_job_whose_object_is_damaged_is_quarantined_alone(kind: StoreKind) -> anyhow::Result<()> {
    let flip = |object: &Path| {
        let bytes = std::fs::read(object)?;
        let middle = bytes.len() / 2;
        let flipped = [bytes[middle] ^ 1];
        let object = std::fs::File::options().write(true).open(object)?;
        object.write_all_at(&flipped, middle as u64)
    };
    only_its_job_is_quarantined(kind, flip, "checksum").await
}

/// `damage` is done to each object of a job, and its quarantine tells `why`.
async fn only_its_job_is_quarantined(
    kind: StoreKind,
    damage: impl Fn(&Path) -> std::io::Result<()>,
    why: &str,
) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let builder = with_storage(cluster_on(kind).await?, directory.path());
    let mut cluster = builder.taskmanagers(2).slots(4).start().await?;
    let job = Verified::submit(&mut cluster, JOB).await?;
    let other = Verified::submit(&mut cluster, JOB).await?;
    for job in [&job, &other] {
        cluster.wait_until_running(job.job).await?;
        job.until_completed_above(&mut cluster, 12).await?;
    }
    // Every TaskManager dies first, so that no checkpoint puts an object in place of the damaged ones.
    for taskmanager in 0..2 {
        cluster.taskmanager(taskmanager).kill();
    }
    let damaged = objects_of(directory.path(), job.job)?;
    ensure!(!damaged.is_empty(), "it has no object");
    for object in &damaged {
        match damage(object) {
            // The leader has removed it meanwhile: no checkpoint needs it.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            outcome => outcome?,
        }
    }
    for taskmanager in 0..2 {
        cluster.taskmanager(taskmanager).start()?;
    }
    cluster.wait_for_state(job.job, "SUSPENDED").await?;
    let address = cluster.leader().await?.rest;
    let list = ["--address", &address, "job", "quarantine", "list"];
    let listed = cluster.cli().run(&list).await?.success()?;
    for told in [&job.job.to_string(), "checkpoint", "object", why] {
        ensure!(listed.contains(told), "no {told} in {listed}");
    }
    ensure!(!listed.contains(&other.job.to_string()), "{listed}");
    let cancel = ["cancel", &job.job.to_string(), "--address", &address];
    cluster.cli().run(&cancel).await?.success()?;
    cluster.wait_for_state(job.job, "CANCELED").await?;
    other.finish(&mut cluster, JOB).await?;
    cluster.check_nothing_left(&job.directories()).await
}

/// Each of its checkpoints has objects of its own, and no part file is open at one: each is older than 100 ms.
const GOES_BACK: TwoRegions = TwoRegions {
    count: 400_000,
    rate: 10_000,
    keys: 20_000,
    interval_ms: 300,
};

async fn a_job_goes_back_to_an_older_checkpoint_if_a_person_accepts_duplicates(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let builder = with_storage(cluster_on(kind).await?, directory.path());
    let builder = builder.set("execution.checkpointing.num-retained", "4");
    let mut cluster = builder.taskmanagers(2).slots(4).start().await?;
    let job = Verified::submit(&mut cluster, GOES_BACK).await?;
    cluster.wait_until_running(job.job).await?;
    job.until_visible().await?;
    job.until_completed_above(&mut cluster, 8).await?;
    for taskmanager in 0..2 {
        cluster.taskmanager(taskmanager).kill();
    }
    let shown = job.checkpoints(&mut cluster).await?;
    let history = shown["history"].as_array().context("it has some")?;
    let completed = history.iter().filter(|it| it["status"] == "COMPLETED");
    let completed: Vec<u64> = completed.filter_map(|it| it["id"].as_u64()).collect();
    let [newest, older, ..] = completed[..] else {
        anyhow::bail!("{shown}");
    };
    let mut damaged = 0;
    for object in objects_of(directory.path(), job.job)? {
        let name = object.file_name().unwrap_or_default().to_string_lossy();
        let number = name.split('-').next().and_then(|it| it.parse::<u64>().ok());
        if number.is_some_and(|number| number > older) {
            std::fs::write(&object, "damaged")?;
            damaged += 1;
        }
    }
    ensure!(damaged > 0, "checkpoint {newest} has no object of its own");
    for taskmanager in 0..2 {
        cluster.taskmanager(taskmanager).start()?;
    }
    cluster.wait_for_state(job.job, "SUSPENDED").await?;
    let (id, number) = (job.job.to_string(), older.to_string());
    let address = cluster.leader().await?.rest;
    let retry = ["--address", &address, "job", "quarantine", "retry", &id];
    let back = [&retry[..], &["--from-checkpoint", &number]].concat();
    let refused = cluster.cli().run(&back).await?.success();
    let refusal = refused.err().map(|error| format!("{error:#}"));
    ensure!(
        refusal
            .as_ref()
            .is_some_and(|it| it.contains("would appear twice")),
        "{refusal:?}"
    );
    let accepted = [&back[..], &["--accept-duplicates"]].concat();
    cluster.cli().run(&accepted).await?.success()?;
    // The next leader finds the same records.
    let former = cluster.kill_leader().await?;
    cluster.successor_of(&former).await?;
    cluster.wait_until_running(job.job).await?;
    let later = job.until_completed_above(&mut cluster, newest).await?;
    job.until_completed_above(&mut cluster, later + 1).await?;
    job.finish_with_duplicates(&mut cluster, GOES_BACK).await
}

async fn one_sink_that_cannot_commit_is_named_until_it_can(kind: StoreKind) -> anyhow::Result<()> {
    let mut cluster = cluster_on(kind).await?.start().await?;
    let job = Verified::submit(&mut cluster, JOB).await?;
    cluster.wait_until_running(job.job).await?;
    let number = job.until_completed_above(&mut cluster, 1).await?;
    job.until_visible().await?;
    let [_, numbers] = job.outputs.last().context("it has output")?.clone();
    let pending = only_directory_in(&numbers.join(".tanist"))?;
    // A process of the superuser can write everywhere: what a commit writes first, its mark, is in the way.
    let in_the_way =
        (number + 1..number + 5_000).map(|it| pending.join(format!("committing-{it}")));
    let mut made = Vec::new();
    for mark in in_the_way {
        match std::fs::create_dir(&mark) {
            Ok(()) => made.push(mark),
            // It has been committed meanwhile.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
    }
    let (directory, leader) = (text(&pending), cluster.leader().await?.index);
    let place = format!("sinks numbers-out, on JobManager jm-{leader}");
    let said = ["no checkpoint completes", &place, &directory];
    until_info_says(&mut cluster, &job, &said).await?;
    until_all_are_older_than(&mut cluster, &job, 3.0).await?;
    // The next leader repeats the commit, and a region that is restored meanwhile begins with what is durable.
    let former = cluster.kill_leader().await?;
    let next = cluster.successor_of(&former).await?;
    cluster.taskmanager(1).kill();
    cluster.taskmanager(1).start()?;
    let place = format!("sinks numbers-out, on JobManager jm-{}", next.index);
    let said = ["no checkpoint completes", &place, &directory];
    until_info_says(&mut cluster, &job, &said).await?;
    for mark in &made {
        std::fs::remove_dir(mark)?;
    }
    let number = job.until_completed_above(&mut cluster, number).await?;
    job.until_completed_above(&mut cluster, number + 2).await?;
    job.finish(&mut cluster, JOB).await
}

async fn two_clusters_in_one_directory_keep_each_their_own(kind: StoreKind) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let mut one = with_storage(cluster_on(kind).await?, directory.path())
        .start()
        .await?;
    let mut other = with_storage(cluster_on(kind).await?, directory.path())
        .start()
        .await?;
    let of_one = Verified::submit(
        &mut one,
        TwoRegions {
            count: 16_000,
            rate: 4_000,
            ..JOB
        },
    )
    .await?;
    let of_other = Verified::submit(&mut other, JOB).await?;
    of_other.until_completed_above(&mut other, 12).await?;
    ensure!(
        !objects_of(directory.path(), of_other.job)?.is_empty(),
        "it has no object"
    );
    // Its job ends, and everything of it is removed.
    one.wait_for_state(of_one.job, "FINISHED").await?;
    until_no_object(directory.path(), of_one.job).await?;
    of_one.check_result(&mut one).await?;
    for taskmanager in 0..2 {
        other.taskmanager(taskmanager).kill();
        other.taskmanager(taskmanager).start()?;
    }
    of_other.until_restored_after(&mut other, 0).await?;
    let id = of_other.job;
    of_other.finish(&mut other, JOB).await?;
    until_no_object(directory.path(), id).await
}

async fn checkpoints_with_a_directory_of_their_own_are_restored_from_it(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let [objects, checkpoints] = ["objects", "checkpoints"].map(|it| directory.path().join(it));
    let builder = with_storage(cluster_on(kind).await?, &objects);
    let builder = builder.set("execution.checkpointing.dir", &text(&checkpoints));
    let mut cluster = builder.start().await?;
    let job = Verified::submit(&mut cluster, JOB).await?;
    let number = job.until_completed_above(&mut cluster, 12).await?;
    let former = cluster.kill_leader().await?;
    cluster.successor_of(&former).await?;
    ensure!(
        !objects_of(&checkpoints, job.job)?.is_empty(),
        "no object is there"
    );
    ensure!(
        objects_of(&objects, job.job)?.is_empty(),
        "objects are elsewhere"
    );
    for taskmanager in 0..2 {
        cluster.taskmanager(taskmanager).kill();
        cluster.taskmanager(taskmanager).start()?;
    }
    job.until_restored_after(&mut cluster, 0).await?;
    job.until_completed_above(&mut cluster, number).await?;
    let id = job.job;
    job.finish(&mut cluster, JOB).await?;
    until_no_object(&checkpoints, id).await
}

async fn taskmanagers_with_another_storage_than_the_jobmanager_are_told_so(
    kind: StoreKind,
) -> anyhow::Result<()> {
    const DIR: &str = "execution.checkpointing.dir";
    let directory = tempfile::tempdir()?;
    let [objects, checkpoints] = ["objects", "checkpoints"].map(|it| directory.path().join(it));
    let own = ["own-0", "own-1"].map(|name| directory.path().join(name));
    // A storage that this cluster has begun, too.
    point(&own, &objects)?;
    let mut builder = with_storage(cluster_on(kind).await?, &objects);
    builder = builder.set(DIR, &text(&checkpoints));
    for (number, link) in own.iter().enumerate() {
        builder = builder.set_of_taskmanager(number, DIR, &text(link));
    }
    let mut cluster = builder.start().await?;
    let job = Verified::submit(&mut cluster, JOB).await?;
    let words = ["declined it", "another storage", DIR];
    until_info_says(&mut cluster, &job, &words).await?;
    // It looks like a place with checkpoints, as it was one before they had a directory of their own.
    std::fs::create_dir_all(objects.join("checkpoints"))?;
    point(&own, &checkpoints)?;
    let number = job.until_completed_above(&mut cluster, 12).await?;
    let number = job.until_completed_above(&mut cluster, number + 2).await?;
    for taskmanager in 0..2 {
        cluster.taskmanager(taskmanager).kill();
    }
    point(&own, &objects)?;
    for taskmanager in 0..2 {
        cluster.taskmanager(taskmanager).start()?;
    }
    // Its objects are missing there, which is no reason to give the job up.
    let words = ["can't be read by tm-", "another storage", "Waits"];
    until_info_says(&mut cluster, &job, &words).await?;
    point(&own, &checkpoints)?;
    cluster.wait_until_running(job.job).await?;
    let number = job.until_completed_above(&mut cluster, number).await?;
    job.until_completed_above(&mut cluster, number + 2).await?;
    job.finish(&mut cluster, JOB).await
}

async fn a_job_runs_on_whose_savepoint_has_no_place(kind: StoreKind) -> anyhow::Result<()> {
    let mut cluster = cluster_on(kind).await?.start().await?;
    let job = Verified::submit(&mut cluster, JOB).await?;
    cluster.wait_until_running(job.job).await?;
    let number = job.until_completed_above(&mut cluster, 1).await?;
    let file = cluster.directory().join("file");
    std::fs::write(&file, "")?;
    let target = text(&file.join("savepoints"));
    let (address, id) = (cluster.leader().await?.rest, job.job.to_string());
    let savepoint = format!("--savepoint={target}");
    let requests = [
        vec!["savepoint", &id, &target, "--address", &address],
        vec!["stop", &savepoint, &id, "--address", &address],
    ];
    for request in requests {
        let said = cluster.cli().run(&request).await?;
        ensure!(said.code != Some(0), "{said:#?}");
        ensure!(said.stderr.contains(&target), "{said:#?}");
    }
    // Its sources go on.
    let number = job.until_completed_above(&mut cluster, number).await?;
    job.until_completed_above(&mut cluster, number + 2).await?;
    job.finish(&mut cluster, JOB).await
}

/// Lets each of these paths lead to a directory, in one step: a process that writes would make what is not there.
fn point(links: &[PathBuf], target: &Path) -> anyhow::Result<()> {
    for link in links {
        let next = link.with_extension("next");
        symlink(target, &next)?;
        std::fs::rename(&next, link)?;
    }
    Ok(())
}

/// All processes keep their objects in this directory.
fn with_storage(builder: ClusterBuilder, directory: &Path) -> ClusterBuilder {
    builder
        .set("high-availability.storageDir", &text(directory))
        .set("high-availability.storage-shared", "true")
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Waits until `tanist info` has all these words about a job. Returns what it says.
async fn until_info_says(
    cluster: &mut Cluster,
    job: &Verified,
    words: &[&str],
) -> anyhow::Result<String> {
    let what = format!("`info` to say {words:?}");
    let id = job.job.to_string();
    wait_for(&what, BOUND, async || {
        let address = cluster.leader().await?.rest;
        let info = ["info", &id, "--address", &address];
        let said = cluster.cli().run(&info).await?.success()?;
        ensure!(words.iter().all(|word| said.contains(word)), "{said}");
        anyhow::Ok(said)
    })
    .await
}

/// Waits until the last checkpoint of each region of a job is older than this, by the metric.
async fn until_all_are_older_than(
    cluster: &mut Cluster,
    job: &Verified,
    seconds: f64,
) -> anyhow::Result<()> {
    let of_job = format!("job_id=\"{}\"", job.job);
    wait_for("the age of all regions", BOUND, async || {
        let address = cluster.leader().await?.rest;
        let metrics = cluster.rest().get(&address, "/metrics").await?;
        let metrics = metrics.as_str().context("metrics are text")?.lines();
        let ages = metrics.filter(|it| it.starts_with("tanist_checkpoint_age_seconds{"));
        let ages = ages.filter(|it| it.contains(&of_job));
        let ages: Vec<f64> = ages
            .map(|it| it.rsplit(' ').next().unwrap_or_default().parse())
            .collect::<Result<_, _>>()?;
        ensure!(ages.len() == 2, "{ages:?}");
        ensure!(ages.iter().all(|age| *age > seconds), "{ages:?}");
        anyhow::Ok(())
    })
    .await
}

/// The path of the one directory in a directory, which has files, too.
fn only_directory_in(directory: &Path) -> anyhow::Result<PathBuf> {
    let entries: Vec<_> = std::fs::read_dir(directory)?.collect::<Result<_, _>>()?;
    let mut paths = entries.iter().map(std::fs::DirEntry::path);
    let first = paths.find(|path| path.is_dir());
    ensure!(!paths.any(|path| path.is_dir()), "there are others");
    first.context("there is none")
}

fn objects_of(directory: &Path, job: JobId) -> anyhow::Result<BTreeSet<PathBuf>> {
    files_called(directory, &format!("/{job}/"))
}

async fn until_no_object(directory: &Path, job: JobId) -> anyhow::Result<()> {
    wait_for("all objects of the job to be gone", BOUND, async || {
        let left = objects_of(directory, job)?;
        ensure!(left.is_empty(), "{left:?}");
        anyhow::Ok(())
    })
    .await
}

/// Writes a file until there is no room.
fn fill_up(path: &Path) -> anyhow::Result<()> {
    let mut file = std::fs::File::create(path)?;
    let block = [1; 4096];
    loop {
        match std::io::Write::write_all(&mut file, &block) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => return Ok(()),
            Err(error) => return Err(error).context("cannot fill the disk"),
        }
    }
}
