//! What tests of this crate and of operators share: batches, the context of an operator without a task, and
//! TaskManagers that have an exchange and no operators.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_schema::{Field, Schema};
use futures::FutureExt as _;
use tanist_gateway::fencing::EpochGate;
use tanist_ha::election::ClusterIncarnation;
use tanist_proto::id::{Generation, JobId, JobVertexId};
use tanist_proto::v1::{JobGraph, TaskManagerLocation};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::coordination::{CoordinatorLine, CoordinatorRequest, Requester};
use crate::end_guard::EndGuard;
use crate::exchange::{Exchange, ExchangeOptions};
use crate::operator::{Notices, OperatorContext, Peers};

#[cfg(test)]
mod task_manager;

#[cfg(test)]
pub(crate) use task_manager::{HighestEpochSeen, TaskManager};

/// The cluster incarnation of all tests.
pub fn cluster() -> ClusterIncarnation {
    ClusterIncarnation::new("test")
}

/// The exchange of the TaskManager `name` on a free port, and its location.
pub async fn bind_exchange(
    name: &str,
    gate: Arc<dyn EpochGate>,
) -> (Exchange, TaskManagerLocation) {
    let options = ExchangeOptions::new(name, "first", gate);
    let exchange = Exchange::bind("127.0.0.1:0", options, Handle::current());
    let exchange = exchange.await.expect("a free port");
    let location = TaskManagerLocation {
        resource_id: name.to_owned(),
        incarnation: "first".to_owned(),
        rpc_address: String::new(),
        data_address: exchange.address().to_string(),
    };
    (exchange, location)
}

/// Starts `N` TaskManagers: `tm0`, `tm1` and so on.
pub async fn start_many<T, const N: usize>(start: impl AsyncFn(String) -> T) -> [T; N] {
    let mut started = Vec::new();
    for index in 0..N {
        started.push(start(format!("tm{index}")).await);
    }
    started
        .try_into()
        .unwrap_or_else(|_| panic!("{N} were started"))
}

/// Yields to all other tasks until a condition holds.
pub async fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    };
    let bound = std::time::Duration::from_secs(60);
    assert!(
        tokio::time::timeout(bound, waiting).await.is_ok(),
        "{what} did not happen"
    );
}

/// A batch of one text column.
pub fn texts(name: &str, values: &[&str]) -> RecordBatch {
    batch([(
        name,
        Arc::new(StringArray::from(values.to_vec())) as ArrayRef,
    )])
}

/// A column of integers.
pub fn ints(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

/// A batch without nullable columns.
pub fn batch<'a>(columns: impl IntoIterator<Item = (&'a str, ArrayRef)>) -> RecordBatch {
    let (fields, arrays): (Vec<_>, Vec<_>) = columns
        .into_iter()
        .map(|(name, array)| (Field::new(name, array.data_type().clone(), false), array))
        .unzip();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).expect("columns of one length")
}

/// A context of one subtask, without a graph.
pub fn context(subtask: u32, parallelism: u32) -> OperatorContext {
    OperatorContext {
        graph: Arc::new(JobGraph::default()),
        job: JobId::from_bits(1),
        vertex: JobVertexId::from_bits(2),
        subtask,
        parallelism,
        generation: Generation::new(1),
        input: None,
        keys: Arc::default(),
        output: None,
        takes_checkpoints: false,
        restored_from: 0,
        end_guard: EndGuard::new().0,
        peers: Peers::default(),
        notices: Notices::default(),
        external_resources: Arc::default(),
        coordinator: None,
    }
}

/// The guard of a task whose future is gone.
pub fn guard_of_ended() -> EndGuard {
    let (guard, waiter) = EndGuard::new();
    assert!(
        waiter.wait().now_or_never().is_none(),
        "it waits for the guard"
    );
    guard
}

/// An operator's connection to its coordinator. The test receives the requests at the channel's other end.
pub fn coordinator_line(
    requester: Requester,
    coordinator_requests: mpsc::Sender<CoordinatorRequest>,
) -> CoordinatorLine {
    CoordinatorLine {
        requester,
        coordinator_requests,
    }
}
