//! The edges out of a task: records are distributed to the targets, buffered briefly, and go to pipelined
//! consumers or into a kept output. An event-time signal follows all records that were sent before it.
//!
//! A failed task keeps no output: the leader releases the outputs of finished tasks, and knows no others.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use futures::future::try_join_all;
use tanist_proto::v1::CheckpointBarrier;
use tokio::time::Instant;

use super::error::TaskError;
use super::plan::{Plan, PlannedOutput};
use super::status::Counters;
use crate::exchange::{
    Closed, CompleteOutput, Exchange, KeepingWriter, KeptError, PartitionWriter,
};
use crate::operator::Output;
use crate::partitioner::Partitioner;
use crate::record::size_of;
use crate::time::{Element, TimeSignal};

/// How long a record is buffered while the task is busy. It does not apply to kept outputs, which have no
/// reader until they are complete.
const LONGEST_LINGER: Duration = Duration::from_millis(10);

/// Maximum bytes of memory that are buffered for a kept output, over all its targets: few targets fill their
/// batches, but very many would fill the memory.
const MOST_WAITING: usize = 8 << 20;

/// An edge out of the task.
struct OutputEdge {
    partitioner: Partitioner,
    writer: Writer,
}

/// Destination of an edge's records.
enum Writer {
    /// Consumers that read while the task runs.
    Pipelined(PartitionWriter),
    /// Consumers that start when the output is complete.
    Blocking(Box<KeepingWriter>),
}

impl Writer {
    async fn push(&mut self, place: usize, batch: RecordBatch) -> Result<(), TaskError> {
        match self {
            Writer::Pipelined(writer) => {
                let pushed = writer.push(place, batch).await;
                pushed.map_err(|closed| TaskError::Output(closed.to_string()))
            }
            Writer::Blocking(writer) => writer.push(place, &batch).await.map_err(keep_error),
        }
    }

    /// Sends event time on. A complete output needs none: its end follows all records.
    fn signal(&self, signal: TimeSignal) {
        match self {
            Writer::Pipelined(writer) => writer.signal(signal),
            Writer::Blocking(_) => {}
        }
    }

    /// Sends a barrier. A complete output gets none: its consumers are of another region.
    fn barrier(&self, barrier: CheckpointBarrier) {
        match self {
            Writer::Pipelined(writer) => writer.barrier(barrier),
            Writer::Blocking(_) => {}
        }
    }
}

fn keep_error(error: KeptError) -> TaskError {
    TaskError::Keep(error.to_string())
}

/// All edges out of the task.
pub(super) struct Outputs {
    edges: Vec<OutputEdge>,
    counters: Arc<Counters>,
    flushed_at: Instant,
    /// Event-time signals to send once all records before them are sent.
    signals: Vec<TimeSignal>,
}

impl Outputs {
    /// Registers the partitions that the task is about to produce, so that consumers find them.
    pub(super) fn register(
        exchange: &Exchange,
        plan: &mut Plan,
        counters: &Arc<Counters>,
    ) -> Result<Outputs, TaskError> {
        let attempt = plan.attempt;
        let edges = plan.outputs.drain(..).map(|output| {
            let PlannedOutput {
                partition,
                targets,
                partitioner,
                is_blocking,
            } = output;
            let writer = if is_blocking {
                let writer = exchange.keep(partition, attempt, targets);
                Writer::Blocking(Box::new(writer.map_err(keep_error)?))
            } else {
                let writer = exchange.register(partition, attempt, targets);
                let closed = |closed: Closed| TaskError::Output(closed.to_string());
                Writer::Pipelined(writer.map_err(closed)?)
            };
            Ok(OutputEdge {
                partitioner,
                writer,
            })
        });
        let edges = edges.collect::<Result<_, TaskError>>()?;
        Ok(Outputs {
            edges,
            counters: Arc::clone(counters),
            flushed_at: Instant::now(),
            signals: Vec::new(),
        })
    }

    /// Passes batches to the partitioners and full batches to the consumers. Event time waits for the next
    /// flush: sending it later is always correct, and it need not split batches.
    pub(super) async fn send(&mut self, mut emitted: Output) -> Result<(), TaskError> {
        let (late, skipped) = emitted.dropped();
        self.counters.count_dropped(late, skipped);
        for element in emitted.take() {
            match element {
                Element::Batch(batch) => {
                    for edge in &mut self.edges {
                        edge.partitioner.add(batch.clone())?;
                        match edge.writer {
                            Writer::Pipelined(_) => {}
                            Writer::Blocking(_) => edge.partitioner.limit(MOST_WAITING)?,
                        }
                    }
                    self.push_ready().await?;
                }
                Element::Time(signal) => signal.add_to(&mut self.signals),
            }
        }
        Ok(())
    }

    /// Whether records were buffered long enough.
    pub(super) fn is_due(&self) -> bool {
        self.flushed_at.elapsed() >= LONGEST_LINGER
    }

    /// Sends all buffered records to pipelined consumers. A kept output is written in larger batches.
    pub(super) async fn flush(&mut self) -> Result<(), TaskError> {
        for edge in &mut self.edges {
            match edge.writer {
                Writer::Pipelined(_) => edge.partitioner.flush()?,
                Writer::Blocking(_) => {}
            }
        }
        self.push_ready().await?;
        for signal in self.signals.drain(..) {
            self.edges
                .iter()
                .for_each(|edge| edge.writer.signal(signal));
        }
        self.flushed_at = Instant::now();
        Ok(())
    }

    /// Sends a barrier behind all that was flushed. The caller has flushed.
    pub(super) fn barrier(&self, barrier: CheckpointBarrier) {
        self.edges
            .iter()
            .for_each(|edge| edge.writer.barrier(barrier));
    }

    async fn push_ready(&mut self) -> Result<(), TaskError> {
        for OutputEdge {
            partitioner,
            writer,
        } in &mut self.edges
        {
            while let Some((place, batch)) = partitioner.next_ready() {
                let (rows, bytes) = (batch.num_rows(), size_of(&batch));
                writer.push(place, batch).await?;
                self.counters.count_out(rows, bytes);
            }
        }
        Ok(())
    }

    async fn push_all(&mut self) -> Result<(), TaskError> {
        for edge in &mut self.edges {
            edge.partitioner.flush()?;
        }
        self.push_ready().await
    }

    /// Completes the outputs. Kept outputs become readable, all of them or, after an error, none.
    pub(super) async fn finish(mut self) -> Result<(), TaskError> {
        if let Err(error) = self.push_all().await {
            self.fail(&error.to_string());
            return Err(error);
        }
        let (mut pipelined, mut blocking) = (Vec::new(), Vec::new());
        for edge in self.edges {
            match edge.writer {
                Writer::Pipelined(writer) => pipelined.push(writer),
                Writer::Blocking(writer) => blocking.push(writer.finish()),
            }
        }
        match try_join_all(blocking).await.map_err(keep_error) {
            // Nothing can fail from here on.
            Ok(complete) => {
                complete.into_iter().for_each(CompleteOutput::publish);
                pipelined.into_iter().for_each(PartitionWriter::finish);
                Ok(())
            }
            Err(error) => {
                let cause = error.to_string();
                pipelined.into_iter().for_each(|it| it.fail(&cause));
                Err(error)
            }
        }
    }

    /// Fails the outputs for this reason.
    pub(super) fn fail(self, cause: &str) {
        for edge in self.edges {
            match edge.writer {
                Writer::Pipelined(writer) => writer.fail(cause),
                // No consumer reads it yet.
                Writer::Blocking(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tanist_proto::id::{Generation, JobId, JobVertexId};
    use tanist_proto::v1::Partitioning;

    use super::*;
    use crate::exchange::{Attempt, PartitionId};
    use crate::testing::{TaskManager, texts};

    fn outputs_of(edges: Vec<OutputEdge>) -> Outputs {
        Outputs {
            edges,
            counters: Arc::default(),
            flushed_at: Instant::now(),
            signals: Vec::new(),
        }
    }

    #[tokio::test]
    async fn what_is_kept_is_written_in_batches_however_often_the_task_flushes() {
        const TARGETS: u32 = 64;
        const RECORDS: usize = 10_000;
        let manager = TaskManager::start("tm").await;
        let exchange = manager.runtime.exchange();
        let partition = PartitionId {
            job: JobId::from_bits(1),
            vertex: JobVertexId::from_bits(2),
            subtask: 0,
            edge: 0,
        };
        let attempt = Attempt {
            job_incarnation: 1,
            generation: Generation::new(1),
        };
        let writer = exchange.keep(partition, attempt, (0..TARGETS).collect());
        let schema = texts("w", &[]).schema();
        let partitioner = Partitioner::new(
            Partitioning::Hash,
            &["w".to_owned()],
            &schema,
            TARGETS as usize,
            128,
        );
        let mut outputs = outputs_of(vec![OutputEdge {
            partitioner: partitioner.expect("the key is there"),
            writer: Writer::Blocking(Box::new(writer.expect("a file"))),
        }]);
        for record in 0..RECORDS {
            let mut emitted = Output::default();
            emitted.emit(texts("w", &[&record.to_string()]));
            outputs.send(emitted).await.expect("written");
            outputs.flush().await.expect("written");
        }
        outputs.finish().await.expect("written");
        let (mut batches, mut rows) = (0, 0);
        for target in 0..TARGETS {
            let kept = exchange
                .read_kept(partition, attempt.generation, target)
                .await;
            batches += kept.len();
            rows += kept.iter().map(RecordBatch::num_rows).sum::<usize>();
        }
        assert_eq!(rows, RECORDS);
        assert!(batches <= 2 * TARGETS as usize, "{batches} batches");
    }

    #[tokio::test]
    async fn a_task_that_can_not_keep_one_of_its_outputs_keeps_none() {
        let manager = TaskManager::start("tm").await;
        let exchange = manager.runtime.exchange();
        let batch = texts("w", &["a"]);
        let attempt = Attempt {
            job_incarnation: 1,
            generation: Generation::new(1),
        };
        let edge = |edge: u32| {
            let partition = PartitionId {
                job: JobId::from_bits(1),
                vertex: JobVertexId::from_bits(2),
                subtask: 0,
                edge,
            };
            let writer = exchange.keep(partition, attempt, vec![0]);
            let schema = batch.schema();
            OutputEdge {
                partitioner: Partitioner::new(Partitioning::Forward, &[], &schema, 1, 128)
                    .expect("it has no key"),
                writer: Writer::Blocking(Box::new(writer.expect("a file"))),
            }
        };
        for is_full in [false, true] {
            let mut outputs = outputs_of(vec![edge(0), edge(1)]);
            if let (true, Writer::Blocking(second)) = (is_full, &mut outputs.edges[1].writer) {
                second.fill_disk();
            }
            let mut emitted = Output::default();
            emitted.emit(batch.clone());
            outputs.send(emitted).await.expect("it waits for more");
            outputs.flush().await.expect("it waits for more");
            let finished = outputs.finish().await;
            assert_eq!(finished.is_err(), is_full, "{finished:?}");
            assert_eq!(exchange.partition_count(), if is_full { 0 } else { 2 });
            exchange.release(JobId::from_bits(1), Generation::new(1));
        }
    }
}
