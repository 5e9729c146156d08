//! A program that submits a job to a session and follows it over failures of leaders and of itself.
//!
//! ```text
//! tanist jobmanager & tanist taskmanager &
//! cargo run --example client -- /tmp/numbers
//! ```
//!
//! It finds the cluster as `tanist run` does: by `rest.address`, else by the configured high-availability
//! store. Running it again does not submit the job twice: the job's id is derived from its output directory.

use std::path::Path;
use std::process::ExitCode;

use sha2::{Digest as _, Sha256};
use tanist::client::{ClusterClient, ExecuteError, Job, JobExecutionResult, JobId, JobStatus};
use tanist::config::{Configuration, LoadOptions};
use tanist::job::JobBuilder;

/// The id of the job that writes to this directory: the same in each run of this program.
fn id_of(output: &Path) -> JobId {
    let digest = Sha256::digest(output.to_string_lossy().as_bytes());
    let mut bits = [0; 16];
    bits.copy_from_slice(&digest[..16]);
    JobId::from_bits(u128::from_be_bytes(bits))
}

/// Submits the job, or finds the one of an earlier run, and waits for its end.
pub(crate) async fn run(
    cluster: &ClusterClient,
    output: &Path,
) -> Result<JobExecutionResult, ExecuteError> {
    let graph = JobBuilder::new("numbers")
        .datagen("numbers", Some(1_000), Some(2_000), 0, 10)
        .key_by("by-key", ["key"])
        .sum("total", "value")
        .file_sink("out", output.to_string_lossy())
        .build();
    let job = Job::from(graph).with_id(id_of(output)).with_parallelism(1);

    // When this returns, the job is in the store: it survives the end of any process, including this one.
    let execution = cluster.execute_async(job).await?;
    let how = match execution.was_accepted_before() {
        true => "goes on, or has ended",
        false => "is accepted",
    };
    println!(
        "job {} {how}: {:?}",
        execution.id(),
        execution.status().await?
    );

    // `execution.cancel()` and `execution.stop()` end it; `cluster.job(id)` follows it in another process.
    let result = execution
        .result_with(|info| println!("{} records so far", info.records()))
        .await?;
    println!("{result}");
    Ok(result)
}

#[tokio::main]
async fn main() -> ExitCode {
    let Some(output) = std::env::args_os().nth(1) else {
        eprintln!("usage: client OUTPUT-DIRECTORY");
        return ExitCode::from(2);
    };
    let ended = async {
        let configuration = Configuration::load(LoadOptions::from_environment())?;
        let cluster = ClusterClient::connect(&configuration).await?;
        let result = run(&cluster, Path::new(&output)).await?;
        anyhow::Ok(result)
    };
    match ended.await {
        Ok(result) if result.status == JobStatus::Finished => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
