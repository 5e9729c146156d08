//! The jobs that benchmarks submit.

use std::fmt::Write as _;

use bytes::Bytes;
use prost::Message as _;
use tanist_compile::{CompileOptions, JobFile, compile};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use crate::http::{Http, PROTOBUF, YAML};

/// `examples/wordcount.yaml`.
pub const WORDCOUNT: &str = include_str!("../../examples/wordcount.yaml");
/// `examples/stream.yaml`: two vertices at parallelism 2.
pub const STREAM: &str = include_str!("../../examples/stream.yaml");
/// One vertex at parallelism 1 that does almost nothing.
pub const TINY: &str = "version: 1
name: tiny
steps:
  - name: numbers
    datagen: { rate: 1 }
  - name: out
    discard: {}
";
/// The same, but it ends at once.
pub const ONE_RECORD: &str = "version: 1
name: one-record
steps:
  - name: numbers
    datagen: { count: 1 }
  - name: out
    discard: {}
";
/// Two vertices at parallelism 1: two tasks, which share a slot.
pub const PAIR: &str = "version: 1
name: pair
steps:
  - name: numbers
    datagen: { rate: 1 }
  - name: by-key
    key-by: { columns: [key] }
  - name: counts
    count: { emit: updates }
  - name: out
    discard: {}
";
/// Counts records by key as fast as it can; two vertices.
pub const KEYED_COUNT: &str = "version: 1
name: keyed-count
parameters:
  count:
    description: How many records.
steps:
  - name: numbers
    datagen: { count: \"${count}\", keys: 1000 }
  - name: by-key
    key-by: { columns: [key] }
  - name: counts
    count: { emit: updates }
  - name: out
    discard: {}
";

/// A rate that no source reaches.
pub const UNTHROTTLED: &str = "1000000000";
/// The same with checkpoints and a rate.
pub const CHECKPOINTED_COUNT: &str = "version: 1
name: checkpointed-count
checkpoints:
  interval: ${interval}
parameters:
  count:
    description: How many records.
  keys:
    description: How many keys.
  rate:
    description: Records a second.
  interval:
    description: Time between two checkpoints.
steps:
  - name: numbers
    datagen: { count: \"${count}\", keys: \"${keys}\", rate: \"${rate}\" }
  - name: by-key
    key-by: { columns: [key] }
  - name: counts
    count: { emit: updates }
  - name: out
    discard: {}
";

/// Submits a job file with parameters.
pub async fn submit(
    http: &Http,
    address: &str,
    file: &'static str,
    parallelism: u32,
    parameters: &[(&str, &str)],
) -> anyhow::Result<JobId> {
    submit_from(http, address, file, parallelism, parameters, None).await
}

/// The same for a job that may begin from a savepoint.
pub async fn submit_from(
    http: &Http,
    address: &str,
    file: &'static str,
    parallelism: u32,
    parameters: &[(&str, &str)],
    savepoint: Option<&str>,
) -> anyhow::Result<JobId> {
    let mut query = format!("?parallelism={parallelism}");
    for (name, value) in parameters {
        let _ = write!(query, "&param.{name}={value}");
    }
    if let Some(path) = savepoint {
        let _ = write!(query, "&savepoint-path={path}");
    }
    let body = Bytes::from_static(file.as_bytes());
    http.submit(address, &query, YAML, body).await
}

/// A compiled graph that is submitted repeatedly, each time under another id.
#[derive(Debug, Clone)]
pub struct Template(pb::JobGraph);

impl Template {
    /// Compiles a job file, at parallelism 1.
    pub fn of(file: &'static str) -> anyhow::Result<Template> {
        let file = JobFile::new("a job of the benchmarks", file);
        Ok(Template(compile(&file, &CompileOptions::default())?))
    }

    /// The body of a submission under a new id.
    pub fn fresh(&self) -> Bytes {
        let graph = pb::JobGraph {
            job_id: JobId::random().to_string(),
            ..self.0.clone()
        };
        graph.encode_to_vec().into()
    }

    /// Submits it under a new id.
    pub async fn submit(&self, http: &Http, address: &str) -> anyhow::Result<JobId> {
        http.submit(address, "", PROTOBUF, self.fresh()).await
    }

    /// Submits it `count` times over `clients` connections.
    pub async fn submit_many(
        &self,
        address: &str,
        count: usize,
        clients: usize,
    ) -> anyhow::Result<()> {
        let mut submitting = tokio::task::JoinSet::new();
        for client in 0..clients {
            let (template, address) = (self.clone(), address.to_owned());
            let share = count / clients + usize::from(client < count % clients);
            submitting.spawn(async move {
                let http = Http::default();
                for _ in 0..share {
                    template.submit(&http, &address).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(done) = submitting.join_next().await {
            done??;
        }
        Ok(())
    }
}
