//! A slot in the view of the ResourceManager, and what a TaskExecutor reports of its slots. Pure.

use tanist_proto::id::{AllocationId, JobId, ResourceId};
use tanist_proto::resources::ResourceProfile;

/// The holder of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotHolder {
    /// The job.
    pub job: JobId,
    /// The allocation.
    pub allocation: AllocationId,
}

/// Counts the changes of the view. Shows whether a report is older than a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Turn(u64);

impl Turn {
    /// Counts a change of the view.
    pub fn advance(&mut self) {
        self.0 += 1;
    }

    /// The turn with this number.
    #[cfg(test)]
    pub fn of(number: u64) -> Turn {
        Turn(number)
    }
}

/// Number of changes to the slots of a TaskExecutor, counted by the TaskExecutor. 0: not reported.
///
/// Messages may arrive late: after a younger copy, or after the answer to a request that it handled later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct SlotsVersion(pub u64);

impl SlotsVersion {
    /// Whether a message with this version is older than the known version.
    pub fn is_before(self, known: SlotsVersion) -> bool {
        self.0 != 0 && self < known
    }
}

/// State of a slot in the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// Held by no job.
    Free,
    /// Held by no job, but the TaskExecutor refused it or was not reached: not requested until the retry delay
    /// has passed.
    Resting,
    /// Requested; whether the TaskExecutor has allocated it is unknown.
    Pending {
        /// The job and allocation it was requested for.
        holder: SlotHolder,
        /// Whether an answer may still come; otherwise the request must be repeated.
        is_in_flight: bool,
    },
    /// Allocated by its TaskExecutor.
    Allocated(SlotHolder),
}

impl SlotState {
    /// The job and allocation that have it or may have it.
    pub(crate) fn holder(&self) -> Option<SlotHolder> {
        match self {
            SlotState::Free | SlotState::Resting => None,
            SlotState::Pending { holder, .. } | SlotState::Allocated(holder) => Some(*holder),
        }
    }
}

/// A slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Slot {
    /// Its state in the view.
    pub state: SlotState,
    /// When the state last changed.
    pub changed: Turn,
    /// Highest version of a message about it in this registration.
    pub version: SlotsVersion,
    /// The resources it has or must have. `Unknown`: those of a default slot.
    pub profile: ResourceProfile,
}

/// A slot as its TaskExecutor reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportedSlot {
    /// Its number at the TaskExecutor.
    pub number: u32,
    /// Its holder.
    pub holder: Option<SlotHolder>,
    /// The resources reserved for the holder. `Unknown`: those of a default slot.
    pub profile: ResourceProfile,
}

/// A slot report of a TaskExecutor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotsReport {
    /// The reported slots.
    pub slots: Vec<ReportedSlot>,
    /// Version of the slots.
    pub version: SlotsVersion,
    /// Whether these are all slots.
    pub are_all: bool,
}

impl SlotsReport {
    /// A report of default slots only.
    pub fn of_default_slots(
        slots: &[(u32, Option<SlotHolder>)],
        version: SlotsVersion,
    ) -> SlotsReport {
        let reported = slots.iter().map(|&(number, holder)| ReportedSlot {
            number,
            holder,
            profile: ResourceProfile::Unknown,
        });
        SlotsReport {
            slots: reported.collect(),
            version,
            are_all: true,
        }
    }
}

/// A slot to ask a TaskExecutor for. Sent again unchanged until the answer is definite.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotRequest {
    /// The TaskExecutor that has the slot.
    pub worker: ResourceId,
    /// Its number at the TaskExecutor.
    pub slot: u32,
    /// The job and allocation it is for.
    pub holder: SlotHolder,
    /// The resources it must have. `Unknown`: it is a default slot.
    pub profile: ResourceProfile,
    /// Address of the job's JobMaster.
    pub job_master_address: String,
}

/// The outcome of a [`SlotRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The slot was allocated to the job.
    Allocated,
    /// Another allocation holds it.
    Occupied(SlotHolder),
    /// It was not allocated and will not be by this request.
    Refused,
    /// It may have been allocated.
    Unknown,
}
