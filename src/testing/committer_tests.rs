//! Custom sinks whose output a committer of the application makes visible: exactly once, though the leader dies in the
//! middle of a commit, and tasks are restarted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;
use std::sync::Arc;
use tanist_compile::{Checkpoints, JobBuilder, StreamGraph};
use tanist_model::CustomSpec;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Int64Array, RecordBatch};

use super::*;
use crate::application::{
    Application, CommitRequest, Operator, OperatorContext, OperatorError, Output, PrepareCommit,
    SinkOutput, Snapshot,
};

const RATE: u64 = 2_000;

/// A database with two-phase commit, which outlives all processes.
#[derive(Debug, Default)]
struct Database {
    prepared: BTreeMap<String, Vec<i64>>,
    committed: BTreeSet<String>,
    visible: Vec<i64>,
    /// The last row of each subtask.
    ends: [i64; 2],
    /// How often each transaction was to be committed.
    commits: BTreeMap<String, u32>,
    /// The first commit ends in its middle, and never answers.
    has_hung: bool,
}

impl Database {
    /// Idempotent, as the committer has to be.
    fn commit(&mut self, transaction: &str) -> Result<(), String> {
        *self.commits.entry(transaction.to_owned()).or_default() += 1;
        if !self.committed.insert(transaction.to_owned()) {
            return Ok(());
        }
        let rows = self.prepared.remove(transaction);
        let rows = rows.ok_or_else(|| format!("there is no transaction {transaction}"))?;
        self.visible.extend(rows);
        Ok(())
    }
}

/// Prepares a transaction for each checkpoint.
struct Transactions {
    kind: &'static str,
    database: Arc<Mutex<Database>>,
    /// No two attempts have the same.
    attempt: String,
    rows: Vec<i64>,
    last: i64,
    subtask: usize,
    /// Those that are not known to be in a durable checkpoint, with the first one that names them.
    prepared: Vec<(u64, String)>,
}

impl Transactions {
    fn new(kind: &'static str, database: &Arc<Mutex<Database>>, context: &OperatorContext) -> Self {
        Transactions {
            kind,
            database: database.clone(),
            attempt: format!(
                "{}-{}-{}-{}",
                context.job, context.vertex, context.subtask, context.generation
            ),
            rows: Vec::new(),
            last: -1,
            subtask: usize::try_from(context.subtask).expect("one of two"),
            prepared: Vec::new(),
        }
    }

    fn prepare(&mut self, number: u64, name: &str) {
        let rows = std::mem::take(&mut self.rows);
        if !rows.is_empty() {
            let transaction = format!("{}-{name}", self.attempt);
            let mut database = self.database.lock();
            database.prepared.insert(transaction.clone(), rows);
            self.prepared.push((number, transaction));
        }
    }
}

impl Operator for Transactions {
    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        let newest = snapshot.newest();
        self.prepared.retain(|(since, _)| *since > newest);
        self.prepare(snapshot.number(), &snapshot.number().to_string());
        for (_, transaction) in &self.prepared {
            snapshot.add_committable(self.kind, transaction.clone().into_bytes());
        }
        Ok(())
    }

    fn process(&mut self, batch: RecordBatch, _: &mut Output) -> Result<(), OperatorError> {
        let numbers: &Int64Array = batch.column(0).as_primitive::<Int64Type>();
        self.rows.extend(numbers.values());
        self.last = self.rows.last().copied().unwrap_or(self.last);
        Ok(())
    }

    fn prepare_commit(&mut self) -> Option<PrepareCommit> {
        self.database.lock().ends[self.subtask] = self.last;
        self.prepare(u64::MAX, "end");
        let mut output = SinkOutput::default();
        for (_, transaction) in &self.prepared {
            output.add_committable(self.kind, transaction.clone().into_bytes());
        }
        Some(Box::new(move || Ok(output)))
    }
}

/// Registers the sink `name`, which has its output committed as this kind.
fn register(name: &str, kind: &'static str, database: &Arc<Mutex<Database>>) -> Application {
    let of_sinks = database.clone();
    Application::new("transactions").operator(name, move |_, context| {
        Ok(Box::new(Transactions::new(kind, &of_sinks, context)))
    })
}

fn job(sink: CustomSpec, checkpoints: Checkpoints) -> StreamGraph {
    JobBuilder::new("transactions")
        .checkpoints(checkpoints)
        .parallelism(2)
        .datagen("numbers", Some(RATE), None, 0, 10)
        .custom("rows", sink)
        .build()
}

fn each_100_ms() -> Checkpoints {
    Checkpoints::every(Duration::from_millis(100))
}

/// The process knows what the application has from then on.
fn known(application: Application) {
    let _ = application.job(|_| Err("no process of the application is started".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_output_of_a_custom_sink_is_committed_once_though_leaders_die_in_the_middle()
-> anyhow::Result<()> {
    let database: Arc<Mutex<Database>> = Arc::default();
    let (name, kind) = ("committer-tests-rows", "committer-tests-transaction");
    let of_committer = database.clone();
    let commit = move |request: CommitRequest| {
        let database = of_committer.clone();
        async move {
            for (uid, transaction) in request.outputs() {
                assert_eq!(uid, "rows");
                let transaction = String::from_utf8_lossy(transaction);
                let committed = database.lock().commit(&transaction);
                committed.map_err(crate::application::CommitError::Refused)?;
                let hangs = !std::mem::replace(&mut database.lock().has_hung, true);
                if hangs {
                    std::future::pending::<()>().await;
                }
            }
            Ok(())
        }
    };
    known(register(name, kind, &database).committer(kind, commit));
    let builder = TestCluster::builder().jobmanagers(2).slots(2);
    let mut cluster = builder.start().await?;
    let sink = CustomSpec::sink(name).saving_state().committing(kind);
    let execution = cluster.client().execute_async(job(sink, each_100_ms()));
    let execution = execution.await.expect("each kind has a committer");
    let until = async |what: &str, holds: fn(&Database) -> bool| {
        let look = async || {
            let database = database.lock();
            let committed = &database.commits;
            holds(&database)
                .then_some(())
                .ok_or_else(|| format!("{committed:?}"))
        };
        wait_for(what, look).await
    };
    until("a commit has begun", |it| it.has_hung).await?;
    let killed = cluster.kill_leader().await?;
    assert_ne!(cluster.leader().await?, killed);
    let repeats = |it: &Database| it.commits.values().any(|times| *times > 1);
    until("the next leader commits the same", repeats).await?;
    // Tasks that are restarted prepare the same rows in other transactions.
    cluster.kill_taskmanager("tm-1")?;
    cluster.start_taskmanager("tm-2").await?;
    let of_restarted = |it: &Database| it.committed.iter().any(|it| !it.contains("-1-"));
    until("restarted tasks have output", of_restarted).await?;
    execution.stop().await?;
    execution.finished().await?;
    let mut database = database.lock();
    database.visible.sort_unstable();
    // Each of the two sources has generated each second number, up to its end.
    for (first, end) in [0, 1].into_iter().zip(&database.ends) {
        let all = database.visible.iter().filter(|it| *it % 2 == first);
        let expected = (first..=*end).step_by(2);
        assert!(all.copied().eq(expected), "{database:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sink_whose_output_nothing_would_commit_is_refused_or_fails_with_its_kind()
-> anyhow::Result<()> {
    let database: Arc<Mutex<Database>> = Arc::default();
    let (name, kind) = ("committer-tests-lost", "committer-tests-unknown");
    known(register(name, kind, &database));
    let cluster = TestCluster::builder().slots(2).start().await?;
    let declared = CustomSpec::sink(name).saving_state().committing(kind);
    let refused = cluster.client().execute_async(job(declared, each_100_ms()));
    let refused = refused
        .await
        .expect_err("there is no committer")
        .to_string();
    assert!(
        refused.contains("`rows`") && refused.contains(kind),
        "{refused}"
    );
    let undeclared = CustomSpec::sink(name).saving_state();
    let cause = async |sink: CustomSpec, checkpoints: Checkpoints| {
        let execution = cluster.client().execute_async(job(sink, checkpoints));
        let execution = execution.await.expect("nothing is wrong with its graph");
        let result = execution.result().await.expect("it ends");
        assert_eq!(result.status, JobStatus::Failed);
        result.cause.unwrap_or_default()
    };
    let failed = cause(undeclared, each_100_ms()).await;
    assert!(failed.contains("rows") && failed.contains(kind), "{failed}");
    known(register(name, kind, &database).committer(kind, async |_| Ok(())));
    let declared = CustomSpec::sink(name).saving_state().committing(kind);
    let failed = cause(declared, Checkpoints::none()).await;
    assert!(
        failed.contains("becomes visible with checkpoints"),
        "{failed}"
    );
    assert!(database.lock().visible.is_empty());
    Ok(())
}
