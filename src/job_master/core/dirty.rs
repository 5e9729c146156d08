//! The tasks, ends and outputs to examine in the present step of the core, besides
//! [`super::execution_graph::indexes::Changes`] of the ExecutionGraph. Data only.
//!
//! Decisions that depend on the durable record alone are examined when a write became durable; everything
//! else only for what the event touched. So an event costs in proportion to what it touches. A write costs in
//! proportion to the job, as it contains the whole job anyway.

use tanist_compact::SmallSet;
use tanist_proto::id::ResourceId;

/// What to examine in this step; see the module. Empty when a step ends.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    has_written: bool,
    to_cancel: SmallSet<usize>,
    reported_ends: SmallSet<(ResourceId, usize, u64)>,
    outputs_of: SmallSet<ResourceId>,
}

impl Dirty {
    /// Notes that a write has become durable.
    pub(super) fn set_written(&mut self) {
        self.has_written = true;
    }

    /// Whether a write has become durable in this step.
    pub(super) fn has_written(&self) -> bool {
        self.has_written
    }

    /// Notes that a task's cancellation may have to be sent without a write: the last attempt failed, or its
    /// TaskManager registered.
    pub(super) fn recheck_cancellation(&mut self, task: usize) {
        self.to_cancel.insert(task);
    }

    /// The tasks whose cancellation may have to be sent.
    pub(super) fn to_cancel(&self) -> impl Iterator<Item = usize> {
        self.to_cancel.iter().copied()
    }

    /// Notes that a TaskManager reported the end of a task in a generation.
    pub(super) fn report_end(&mut self, task_manager: ResourceId, task: usize, generation: u64) {
        self.reported_ends.insert((task_manager, task, generation));
    }

    /// Removes the reported ends. None: all ends are to be examined, as a write has become durable.
    pub(super) fn take_reported_ends(&mut self) -> Option<SmallSet<(ResourceId, usize, u64)>> {
        let reported = std::mem::take(&mut self.reported_ends);
        (!self.has_written).then_some(reported)
    }

    /// Notes that a TaskManager reported which outputs it keeps, or that it keeps one more.
    pub(super) fn recheck_outputs(&mut self, task_manager: &ResourceId) {
        self.outputs_of.insert(task_manager.clone());
    }

    /// The TaskManagers whose outputs are to be examined. None: all, as a write has become durable.
    pub(super) fn outputs_of(&self) -> Option<&SmallSet<ResourceId>> {
        (!self.has_written).then_some(&self.outputs_of)
    }
}
