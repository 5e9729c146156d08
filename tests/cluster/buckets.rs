//! Blobs in an S3 bucket, and files from `s3://` and `https://` addresses, on a server with a certificate
//! of a private authority, which only clients trust that are configured to: large graphs, uploads and
//! descriptions survive leaders, and nothing is left of them.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tanist_chaos::wordcount::visible_files;
use tanist_chaos::{Cluster, ClusterBuilder, StoreKind, Submission, wait_for};
use tanist_ha::testing::certificates::TestAuthority;
use tanist_ha::testing::s3::{BUCKET, Conduct, PUBLIC, S3Server};
use tanist_proto::id::JobId;

use crate::large_graphs::make_large;
use crate::support::{WordsAndTicks, cluster_on, job_file};

const BOUND: Duration = Duration::from_secs(60);
/// The cluster's prefix in the bucket.
const PREFIX: &str = "ha/";
/// Prefix of the name of the marker that identifies the owner of the storage.
const MARKER: &str = "ha/storage-";
/// More than a graph may contain, so that the file is uploaded.
const FILE_BYTES: usize = 1024 * 1024;

on_stores! {
    usually on embedded(Embedded) {
        what_a_bucket_keeps_outlives_leaders_and_nothing_is_left_of_it,
        a_bucket_that_denies_access_delays_a_submission_until_it_allows_it,
    }
}

/// A server, and the configuration of its clients.
struct Bucket {
    server: S3Server,
    /// Contains the file with the authority's certificate.
    directory: tempfile::TempDir,
}

impl Bucket {
    async fn start() -> anyhow::Result<Bucket> {
        ensure!(
            cfg!(all(feature = "s3", feature = "https")),
            "this test needs `--features s3,https`: run `cargo xtask test`"
        );
        let authority = TestAuthority::new();
        let bucket = Bucket {
            server: S3Server::start_secure(&authority).await?,
            directory: tempfile::tempdir()?,
        };
        authority.write_to(&bucket.certificate())?;
        Ok(bucket)
    }

    fn certificate(&self) -> PathBuf {
        self.directory.path().join("authority.pem")
    }

    async fn cluster(&self, kind: StoreKind) -> anyhow::Result<ClusterBuilder> {
        let certificate = self.certificate();
        let mut builder = cluster_on(kind)
            .await?
            .set(
                "high-availability.storageDir",
                &format!("s3://{BUCKET}/{PREFIX}"),
            )
            // All records but the smallest become blobs.
            .set("high-availability.inline-threshold", "1 kb")
            .set("client.timeout", "1 s")
            .set("jobstore.expiration-time", "15 s")
            .set("blob.orphan-grace", "10 s")
            .environment("SSL_CERT_FILE", &certificate.to_string_lossy());
        for (name, value) in self.server.environment() {
            builder = builder.environment(name, &value);
        }
        Ok(builder)
    }

    /// The cluster's objects with `part` in their names, without the marker, which exists as long as the cluster.
    fn objects(&self, part: &str) -> Vec<String> {
        let keys = self.server.keys().into_iter();
        keys.filter(|key| key.starts_with(PREFIX) && !key.starts_with(MARKER))
            .filter(|key| key.contains(part))
            .collect()
    }
}

/// A job that prints the size of a file that it gets from an address.
fn job_with_a_file(cluster: &Cluster, name: &str, address: &str) -> anyhow::Result<Submission> {
    let text = std::fs::read_to_string(job_file("size-of-a-file.yaml"))?;
    let text = text.replace("./model.bin", address);
    ensure!(text.contains(address), "{text}");
    let file = cluster.directory().join(format!("{name}.yaml"));
    std::fs::write(&file, text)?;
    Ok(Submission::new(file).path("output", &cluster.directory().join(name)))
}

async fn submit(cluster: &mut Cluster, submission: &Submission) -> anyhow::Result<JobId> {
    let leader = cluster.leader().await?;
    let answered = cluster.submit_through(&leader.rest, submission).await?;
    answered.success()?;
    Ok(submission.job)
}

async fn what_a_bucket_keeps_outlives_leaders_and_nothing_is_left_of_it(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let bucket = Bucket::start().await?;
    let builder = bucket.cluster(kind).await?;
    let mut cluster = builder.taskmanagers(2).slots(2).start().await?;
    let content = vec![b'x'; FILE_BYTES];
    bucket.server.put("files/model.bin", content.clone());
    let public = format!("{PUBLIC}model.bin");
    bucket.server.put(&public, content);

    let mut workload = WordsAndTicks::prepare_endless(&cluster)?;
    make_large(&cluster, &mut workload, 100_000)?;
    let large = submit(&mut cluster, &workload.submission).await?;
    workload.wait_until_ticking(&mut cluster).await?;
    let graph = bucket.objects(&large.to_string());
    ensure!(!graph.is_empty(), "its graph is in no blob");

    // Files of users, one addressed by its place in the bucket and one by its plain address.
    let addresses = [
        format!("s3://{BUCKET}/files/model.bin"),
        bucket.server.address_of(&public),
    ];
    let mut outputs = workload.outputs().to_vec();
    for (index, address) in addresses.iter().enumerate() {
        let submission = job_with_a_file(&cluster, &format!("sizes-{index}"), address)?;
        let job = submit(&mut cluster, &submission).await?;
        // It may have ended by now, and then its upload is removed.
        let mut uploads = bucket.server.requests();
        uploads.retain(|it| it.starts_with("PUT ") && it.contains(&format!("{job}-upload-")));
        uploads.sort();
        uploads.dedup();
        ensure!(uploads.len() == 1, "{address}: {uploads:?}");
        cluster.wait_for_state(job, "FINISHED").await?;
        let output = cluster.directory().join(format!("sizes-{index}"));
        let part = visible_files(&output)?.into_iter().next();
        let text = std::fs::read_to_string(part.context("there is output")?)?;
        ensure!(text.trim() == FILE_BYTES.to_string(), "{address}: {text:?}");
        outputs.push(output);
    }

    // The next leader reads the graph from the bucket.
    let former = cluster.kill_leader().await?;
    cluster.successor_of(&former).await?;
    let reads = format!("GET {}", graph[0]);
    ensure!(
        bucket.server.requests().contains(&reads),
        "the graph was not read: {:?}",
        bucket.server.requests()
    );
    workload.stop(&mut cluster).await?;
    workload.check_result()?;

    // A leader that has never seen the job run reads its description from there.
    let second = cluster.leader().await?;
    cluster.jobmanager(former.index).start()?;
    cluster.jobmanager(second.index).kill();
    cluster.successor_of(&second).await?;
    let plan = cluster.get(&format!("/v1/jobs/{large}/plan")).await?;
    let nodes = plan["plan"]["nodes"].as_array().map_or(0, Vec::len);
    ensure!(nodes > 1, "not all is described: {plan}");

    // Leftovers of an upload that no job refers to are old enough to be removed; an object of another owner stays.
    let job = JobId::random();
    let tag = graph[0].rsplit('-').nth(1).context("a name has a tag")?;
    let orphan = format!("{PREFIX}{job}-upload-{tag}-0123456789abcdef.00000");
    bucket.server.put(&orphan, "left over");
    bucket.server.put(&format!("{PREFIX}notes.txt"), "not ours");
    bucket.server.let_pass(Duration::from_secs(60));
    wait_for("everything to be forgotten", BOUND, async || {
        let left = bucket.objects("");
        ensure!(left == [format!("{PREFIX}notes.txt")], "{left:?}");
        anyhow::Ok(())
    })
    .await?;
    ensure!(
        bucket.server.object("files/model.bin").is_some(),
        "a file of a user is gone"
    );
    cluster.check_nothing_left(&outputs).await
}

async fn a_bucket_that_denies_access_delays_a_submission_until_it_allows_it(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let bucket = Bucket::start().await?;
    let builder = bucket.cluster(kind).await?;
    let builder = builder.set("client.timeout", "30 s");
    let builder = builder.set("jobstore.expiration-time", "400 s");
    let builder = builder.set("blob.orphan-grace", "400 s");
    let mut cluster = builder.start().await?;

    // A client without the authority's certificate fetches nothing, and reports the reason.
    bucket.server.put(&format!("{PUBLIC}model.bin"), "content");
    let address = bucket.server.address_of(&format!("{PUBLIC}model.bin"));
    let submission = job_with_a_file(&cluster, "untrusted", &address)?;
    let leader = cluster.leader().await?;
    let stranger = cluster.cli().with_environment(&[]);
    let refused = submission.submit(&stranger, &leader.rest).await?;
    ensure!(refused.code != Some(0), "{refused:?}");
    ensure!(
        refused.stderr.contains("certificate") && refused.stderr.contains("SSL_CERT_FILE"),
        "{refused:?}"
    );

    let mut workload = WordsAndTicks::prepare(&cluster, 1)?;
    make_large(&cluster, &mut workload, 100_000)?;
    bucket.server.conduct(Conduct::Denies);
    let before = bucket.server.requests().len();
    let (cli, submission) = (cluster.cli().clone(), workload.submission.clone());
    let submitting = tokio::spawn(async move { submission.submit(&cli, &leader.rest).await });
    wait_for("the denied request", BOUND, async || {
        // The leader itself reads one object from time to time.
        let requests = bucket.server.requests().split_off(before);
        ensure!(requests.len() > 1, "{requests:?}");
        anyhow::Ok(())
    })
    .await?;
    ensure!(bucket.objects("").is_empty(), "it was written");
    bucket.server.conduct(Conduct::Answers);
    submitting.await??.success()?;
    cluster.wait_for_state(workload.job(), "FINISHED").await?;
    workload.check_result()
}
