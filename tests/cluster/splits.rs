//! A file source reads exactly the content at the time when its splits were made, once, under any leader;
//! and a slow subtask reads less.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use prost::Message as _;
use tanist_chaos::wait::wait_for;
use tanist_chaos::{Cluster, StoreKind, Submission, wordcount};
use tanist_gateway::kinds;
use tanist_ha::keys::Key;
use tanist_ha::records::record::{self, Payload};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tanist_proto::v1::coordinator_state::State;

use crate::support::{cluster_on, job_file, need_failpoints};

on_stores! {
    embedded(Embedded) {
        a_growing_input_is_counted_as_it_was_when_it_was_cut_also_by_the_next_leader,
        a_slow_subtask_reads_less,
    }
    etcd(Etcd) { a_growing_input_is_counted_as_it_was_when_it_was_cut_also_by_the_next_leader }
    zookeeper(ZooKeeper) { a_growing_input_is_counted_as_it_was_when_it_was_cut_also_by_the_next_leader }
}

const BOUND: Duration = Duration::from_secs(60);
/// Pause between two writes to the growing files.
const PAUSE: Duration = Duration::from_millis(2);
/// The format of a job's state.
const STATE_FORMAT: u16 = 1;
/// The leader dies after its first write of an assignment, before it has answered.
const DECIDED: &str = "job.coordinator-persisted";

/// The recorded splits of a job; `None` if they are not recorded, or no longer.
async fn splits_of(cluster: &Cluster, job: JobId) -> anyhow::Result<Option<pb::FileSplits>> {
    let key = Key::new(kinds::STATES, job.to_string().parse()?);
    let found = cluster
        .records()
        .await?
        .get(std::slice::from_ref(&key))
        .await?;
    let Some(value) = found.into_iter().next().flatten() else {
        return Ok(None);
    };
    let Payload::Inline { bytes, .. } = record::decode(&key, STATE_FORMAT, &value)? else {
        anyhow::bail!("{key} is not inline");
    };
    let state = pb::JobState::decode(bytes)?;
    let mut coordinators = state.coordinators.into_iter();
    Ok(coordinators.next().and_then(|it| match it.state? {
        State::FileSplits(splits) => Some(splits),
    }))
}

/// Files that grow, and new files, until it is stopped or dropped.
struct Growing {
    end: SyncSender<()>,
    writer: std::thread::JoinHandle<std::io::Result<()>>,
}

impl Growing {
    fn start(directory: &Path) -> Growing {
        let (end, ends) = sync_channel(1);
        let directory = directory.to_owned();
        let writer = std::thread::spawn(move || {
            for number in 0_u64.. {
                if ends.recv_timeout(PAUSE) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
                // Some pieces end in the middle of a line.
                let more = wordcount::text(number, 300);
                let name = format!("text-{:03}.txt", number % 8);
                let mut file = OpenOptions::new().append(true).open(directory.join(name))?;
                file.write_all(&more.as_bytes()[..more.len() - 7])?;
                if number.is_multiple_of(16) {
                    let name = format!("text-new-{number:06}.txt");
                    std::fs::write(directory.join(name), &more)?;
                }
            }
            Ok(())
        });
        Growing { end, writer }
    }

    fn stop(self) -> anyhow::Result<()> {
        drop(self.end);
        self.writer.join().ok().context("the writer broke")??;
        Ok(())
    }
}

/// The words in the bytes that existed when the splits were made, and how many came later.
fn expected(splits: &pb::FileSplits) -> anyhow::Result<(wordcount::Counts, usize)> {
    let mut counts = wordcount::Counts::new();
    let mut later = 0;
    for file in &splits.files {
        let path = PathBuf::from(std::ffi::OsStr::from_bytes(&file.path));
        let content = std::fs::read(&path)?;
        let size = usize::try_from(file.size)?;
        later += content.len() - size;
        wordcount::count_into(&mut counts, std::str::from_utf8(&content[..size])?);
    }
    Ok((counts, later))
}

async fn a_growing_input_is_counted_as_it_was_when_it_was_cut_also_by_the_next_leader(
    kind: StoreKind,
) -> anyhow::Result<()> {
    need_failpoints()?;
    let builder = cluster_on(kind)
        .await?
        .failpoints(0, &format!("{DECIDED}=kill"));
    let mut cluster = builder.start().await?;
    let former = cluster.leader().await?;
    let (input, output) = (
        cluster.directory().join("input"),
        cluster.directory().join("output"),
    );
    wordcount::write_input(&input, 8, 60_000)?;
    let growing = Growing::start(&input);
    let go_on = cluster.directory().join("go-on");
    let submission = Submission::new(job_file("words-slowly.yaml"))
        .path("input", &input.join("*.txt"))
        .path("output", &output)
        .path("go-on", &go_on);
    let job = cluster.submit(&submission).await?;
    cluster
        .jobmanager(former.index)
        .reached(DECIDED, BOUND)
        .await?;
    let cut = splits_of(&cluster, job)
        .await?
        .context("no splits are recorded")?;
    cluster.successor_of(&former).await?;
    wait_for("the input to grow", BOUND, async || {
        let (_, later) = expected(&cut)?;
        ensure!(later > 0, "nothing grew");
        anyhow::Ok(())
    })
    .await?;
    std::fs::write(go_on, "")?;
    let view = cluster.wait_for_state(job, "FINISHED").await?;
    growing.stop()?;
    let attempts = view.0["vertices"].to_string();
    ensure!(
        !attempts.contains("\"attempt\":2"),
        "a task was restarted: {attempts}"
    );
    let (expected, _) = expected(&cut)?;
    wordcount::check_counts(&expected, &wordcount::read_output(&output)?)?;
    cluster.check_nothing_left(&[output]).await
}

async fn a_slow_subtask_reads_less(kind: StoreKind) -> anyhow::Result<()> {
    let mut cluster = cluster_on(kind).await?.jobmanagers(1).start().await?;
    let (input, output) = (
        cluster.directory().join("input"),
        cluster.directory().join("output"),
    );
    let expected = wordcount::write_input(&input, 8, 1_000_000)?;
    let go_on = cluster.directory().join("go-on");
    let submission = Submission::new(job_file("words-slowly.yaml"))
        .path("input", &input.join("*.txt"))
        .path("output", &output)
        .path("go-on", &go_on);
    let job = cluster.submit(&submission).await?;
    let all_given = async || {
        let splits = splits_of(&cluster, job).await?.context("not placed")?;
        let lists = splits.assigned.iter();
        let given: usize = lists.map(|it| it.splits.len()).sum();
        ensure!(given == splits.ends.len(), "{given} splits are given");
        Ok(splits)
    };
    let splits = wait_for("all splits to be given", BOUND, all_given).await?;
    std::fs::write(go_on, "")?;
    let of = |subtask| {
        let mut lists = splits.assigned.iter();
        lists
            .find(|it| it.subtask == subtask)
            .map_or(0, |it| it.splits.len())
    };
    ensure!(
        2 * of(0) < of(1),
        "the slow one has {}, the other {}",
        of(0),
        of(1)
    );
    cluster.wait_for_state(job, "FINISHED").await?;
    wordcount::check_counts(&expected, &wordcount::read_output(&output)?)?;
    cluster.check_nothing_left(&[output]).await
}
