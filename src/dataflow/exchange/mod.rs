//! The exchange: transfers records from the tasks that produce them to the tasks that consume them.
//!
//! Consumers pull. A producer registers a *result partition* with one bounded channel per target subtask. Each
//! consumer opens its channel, in memory if producer and consumer share the TaskManager, else over TCP
//! (`frame`, `hello`). A channel takes no more than its consumer has given credit for, so a slow consumer stops
//! its sources over any distance. All channels together take no more than the TaskManager's network memory,
//! plus one batch each (`budget`). The output for a blocking edge goes to a file first (`blocking_output`), and each
//! consumer's channel is filled from there.
//!
//! Invariants: a channel is served to one consumer, once, only of exactly the generation that the consumer asks
//! for, and only in a term that is not over. The end of a channel is sent explicitly, never inferred from a
//! closed connection. A side that finds the connection lost fails its end of the channel, as the other side may
//! not have noticed.

mod blocking_output;
mod budget;
mod channel;
mod client;
mod frame;
mod gate;
mod hello;
mod partition;
mod server;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use tanist_gateway::fencing::EpochGate;
use tanist_ha::election::{ClusterIncarnation, Epoch};
use tanist_net::{Listener, Port};
use tanist_proto::id::{Generation, JobId, JobVertexId};
use tanist_proto::v1::{ExecutionId, TaskManagerLocation};
use tokio::net::ToSocketAddrs;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet};

pub(super) use blocking_output::KeptError;
pub(super) use channel::Closed;
pub(super) use gate::{Input, InputError, InputGate};
pub(super) use partition::{Attempt, PartitionId, PartitionWriter};

use self::blocking_output::{Kept, KeptWriter};
use self::budget::NetworkBudget;
use self::channel::Channel;
use self::hello::Hello;
use self::partition::Partitions;
use self::server::Server;
use crate::time::ChannelTime;

/// A TaskManager's exchange. Cheap to clone; dropping the last clone ends its server and its connections.
#[derive(Debug, Clone)]
pub struct Exchange {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    server: Arc<Server>,
    directories: Vec<PathBuf>,
    kept_files: AtomicUsize,
    address: SocketAddr,
    runtime: Handle,
    accepting: AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// A channel that a task reads.
pub(super) struct ChannelRequest {
    /// The producer, as logs name it.
    pub(super) producer: String,
    pub(super) partition: PartitionId,
    pub(super) attempt: Attempt,
    pub(super) target_subtask: u32,
    pub(super) location: TaskManagerLocation,
    pub(super) schema: SchemaRef,
    /// Whether the output is complete and kept.
    pub(super) is_kept: bool,
}

/// Identity, limits and directories of an exchange.
#[derive(Debug)]
pub struct ExchangeOptions {
    /// Resource id of the TaskManager.
    pub resource_id: String,
    /// Incarnation of the TaskManager.
    pub incarnation: String,
    /// Knows which terms are over.
    pub gate: Arc<dyn EpochGate>,
    /// Directories for kept outputs, used in turn. At least one.
    pub directories: Vec<PathBuf>,
    /// Maximum bytes of all buffered records, besides one batch per channel.
    pub network_memory: u64,
}

impl ExchangeOptions {
    /// Options with the system's temporary directory and unlimited memory.
    pub fn new(
        resource_id: impl Into<String>,
        incarnation: impl Into<String>,
        gate: Arc<dyn EpochGate>,
    ) -> ExchangeOptions {
        ExchangeOptions {
            resource_id: resource_id.into(),
            incarnation: incarnation.into(),
            gate,
            directories: vec![std::env::temp_dir()],
            network_memory: u64::MAX,
        }
    }
}

impl Exchange {
    /// Serves result partitions on an address. Must be called within the runtime whose handle is given.
    pub async fn bind(
        address: impl ToSocketAddrs,
        options: ExchangeOptions,
        runtime: Handle,
    ) -> io::Result<Exchange> {
        let listener = Listener::bind(address, Port::Exchange).await?;
        Exchange::serve(listener, options, runtime)
    }

    /// Serves result partitions on a listener that is already bound.
    pub fn serve(
        listener: Listener,
        options: ExchangeOptions,
        runtime: Handle,
    ) -> io::Result<Exchange> {
        let address = listener.local_addr()?;
        let budget = NetworkBudget::new(options.network_memory);
        let server = Arc::new(Server {
            resource_id: options.resource_id,
            incarnation: options.incarnation,
            gate: options.gate,
            partitions: Arc::new(Partitions::within(budget)),
        });
        let accepting = runtime
            .spawn(server::serve(Arc::clone(&server), listener))
            .abort_handle();
        Ok(Exchange {
            inner: Arc::new(Inner {
                server,
                directories: options.directories,
                kept_files: AtomicUsize::default(),
                address,
                runtime,
                accepting,
            }),
        })
    }

    /// The address that was actually bound.
    pub fn address(&self) -> SocketAddr {
        self.inner.address
    }

    /// Closes and removes all result partitions of a job up to a generation, including those that are still
    /// written to.
    pub fn release(&self, job: JobId, up_to: Generation) {
        self.partitions()
            .release(|id, generation| id.job == job && generation <= up_to);
    }

    /// Closes and removes the result partitions of one task up to a generation.
    pub fn release_task(&self, job: JobId, vertex: JobVertexId, subtask: u32, up_to: Generation) {
        self.partitions().release(|id, generation| {
            (id.job, id.vertex, id.subtask) == (job, vertex, subtask) && generation <= up_to
        });
    }

    /// Number of result partitions that are held.
    pub fn partition_count(&self) -> usize {
        self.partitions().count()
    }

    /// Follows the number of result partitions that are neither released nor read to the end by all consumers. Excludes
    /// those of blocking edges, which are kept.
    pub fn unread_partitions(&self) -> watch::Receiver<usize> {
        self.partitions().registered_count()
    }

    fn partitions(&self) -> &Arc<Partitions> {
        &self.inner.server.partitions
    }

    pub(super) fn register(
        &self,
        partition: PartitionId,
        attempt: Attempt,
        targets: impl IntoIterator<Item = u32>,
    ) -> Result<PartitionWriter, Closed> {
        self.partitions().register(partition, attempt, targets)
    }

    /// Starts an output that is complete before it is read.
    pub(super) fn keep(
        &self,
        partition: PartitionId,
        attempt: Attempt,
        targets: Vec<u32>,
    ) -> Result<KeepingWriter, KeptError> {
        let directories = &self.inner.directories;
        let turn = self.inner.kept_files.fetch_add(1, Ordering::Relaxed);
        let directory = directories.get(turn % directories.len().max(1));
        let directory = directory.map_or_else(std::env::temp_dir, PathBuf::clone);
        Ok(KeepingWriter {
            partitions: Arc::clone(self.partitions()),
            partition,
            generation: attempt.generation,
            writer: KeptWriter::create(&directory, targets)?,
        })
    }

    /// Reads a target's part of a complete output.
    #[cfg(test)]
    pub(super) async fn read_kept(
        &self,
        partition: PartitionId,
        generation: Generation,
        target: u32,
    ) -> Vec<RecordBatch> {
        let kept = self.partitions().find_kept(partition, generation, target);
        blocking_output::tests::read(&kept.expect("it is complete"), target).await
    }

    /// Starts to open channels. A channel that can't be opened fails when it is read.
    pub(super) fn open(
        &self,
        requests: Vec<ChannelRequest>,
        term: &(ClusterIncarnation, Epoch),
    ) -> InputGate {
        let readable = Arc::new(Notify::new());
        let mut openers = JoinSet::new();
        let sources = requests.into_iter().enumerate().map(|(number, request)| {
            let producer = request.producer.clone();
            // Set when the channel is found, which for a local producer may be later.
            let channel = Arc::new(OnceLock::new());
            let here = (
                &*self.inner.server.resource_id,
                &*self.inner.server.incarnation,
            );
            let there = (
                &*request.location.resource_id,
                &*request.location.incarnation,
            );
            let local = (here == there).then(|| gate::Local {
                partitions: Arc::clone(self.partitions()),
                partition: request.partition,
                target: request.target_subtask,
            });
            let readable = Arc::clone(&readable);
            let kept = request.is_kept.then(|| request.execution());
            match local.clone() {
                Some(wanted) if request.is_kept => {
                    let generation = request.attempt.generation;
                    let found =
                        wanted
                            .partitions
                            .find_kept(wanted.partition, generation, wanted.target);
                    let filled = Channel::read_by(&readable, self.partitions().budget());
                    channel.get_or_init(|| Arc::clone(&filled));
                    match found {
                        Ok(kept) => {
                            openers.spawn_on(kept.fill(wanted.target, filled), &self.inner.runtime);
                        }
                        Err(reason) => filled.fail(format!("refused: {reason}")),
                    }
                }
                Some(wanted) => {
                    let found = Arc::clone(&channel);
                    let opening = open_local(wanted, request.attempt, found, readable);
                    openers.spawn_on(opening, &self.inner.runtime);
                }
                None => {
                    let filled = Channel::read_by(&readable, self.partitions().budget());
                    channel.get_or_init(|| Arc::clone(&filled));
                    let request = self.client(request, term);
                    openers.spawn_on(client::consume(request, filled), &self.inner.runtime);
                }
            }
            gate::Source {
                number,
                producer,
                channel,
                local,
                kept,
                time: ChannelTime::default(),
            }
        });
        InputGate::new(sources.collect(), readable, openers)
    }

    fn client(
        &self,
        request: ChannelRequest,
        term: &(ClusterIncarnation, Epoch),
    ) -> client::Request {
        let ChannelRequest {
            partition,
            attempt,
            target_subtask,
            location,
            schema,
            is_kept,
            ..
        } = request;
        let there = (&*location.resource_id, &*location.incarnation);
        let mut hello = Hello::new(partition, attempt, target_subtask, there);
        hello.is_kept = is_kept;
        client::Request {
            hello,
            address: location.data_address,
            term: term.clone(),
            gate: Arc::clone(&self.inner.server.gate),
            schema,
        }
    }
}

impl ChannelRequest {
    fn execution(&self) -> ExecutionId {
        ExecutionId {
            vertex_id: self.partition.vertex.to_string(),
            subtask: self.partition.subtask,
            generation: self.attempt.generation.get(),
        }
    }
}

/// The producing end of an output that is complete before it is read. If it is dropped before its end, nothing
/// is kept.
pub(super) struct KeepingWriter {
    partitions: Arc<Partitions>,
    partition: PartitionId,
    generation: Generation,
    writer: KeptWriter,
}

impl KeepingWriter {
    /// Adds a batch for the target with this index.
    pub(super) async fn push(
        &mut self,
        place: usize,
        batch: &RecordBatch,
    ) -> Result<(), KeptError> {
        self.writer.push(place, batch).await
    }

    /// Completes the output; all of it is on disk.
    pub(super) async fn finish(self) -> Result<CompleteOutput, KeptError> {
        Ok(CompleteOutput {
            kept: self.writer.finish().await?,
            partitions: self.partitions,
            partition: self.partition,
            generation: self.generation,
        })
    }

    /// Makes all later writes fail as on a full disk.
    #[cfg(test)]
    pub(super) fn fill_disk(&mut self) {
        self.writer.fill_disk();
    }
}

/// An output that is complete but can't be read yet. If it is dropped, nothing is kept.
pub(super) struct CompleteOutput {
    partitions: Arc<Partitions>,
    partition: PartitionId,
    generation: Generation,
    kept: Kept,
}

impl CompleteOutput {
    /// Makes the output readable until it is released.
    pub(super) fn publish(self) {
        self.partitions
            .keep(self.partition, self.generation, self.kept);
    }
}

/// Waits for a producer in this TaskManager.
async fn open_local(
    wanted: gate::Local,
    attempt: Attempt,
    channel: Arc<OnceLock<Arc<Channel>>>,
    readable: Arc<Notify>,
) {
    let gate::Local {
        partitions,
        partition,
        target,
    } = wanted;
    let found = partitions.wait_for(partition, attempt, target).await;
    let found = found.and_then(|found| match found.attach(&readable) {
        true => Ok(found),
        false => Err("it already has a consumer".to_owned()),
    });
    let found = found.unwrap_or_else(|reason| {
        let refused = Channel::default();
        refused.fail(format!("refused: {reason}"));
        Arc::new(refused)
    });
    channel.get_or_init(|| found);
    readable.notify_one();
}
