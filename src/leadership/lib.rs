//! Leadership: a process contends for it, stands by with a warm cache, recovers the jobs, leads, and hands over.
//!
//! A [`Contender`] owns all of it for one process:
//!
//! ```text
//!            granted            all jobs recovered,
//!  standby ----------> recovering -----------------> leading
//!     ^                    |       leader-info written   |
//!     |                    v                             v
//!     +---- the term is over: deposed, handed over, resigned, or given up
//! ```
//!
//! A term is built on a grant and dropped when it is over (`term/`); all of its writes are fenced. Everything
//! that another process or a restart needs is in the store.
//!
//! Who may call: the process around it, which constructs a contender and brings the connections, the checks of
//! graphs and the work on sinks; REST, which reads a [`JobManagerView`]; clients and TaskManagers, which open the
//! store ([`ha`]) and read what a cluster left there ([`application`], [`history`]).
//!
//! Not here: transports, operators, the compilation of jobs, TaskExecutors.

mod adoptions;
pub mod application;
mod application_term;
mod contender;
mod crash_loop;
#[cfg(test)]
mod crash_loop_tests;
mod dial;
mod ending;
mod forwarding_dispatcher;
pub mod ha;
pub mod history;
mod launcher;
mod orphan_gc;
mod peers;
mod permissions;
mod record_recovery;
mod recovery_phases;
mod settings;
mod sinks;
mod standby;
mod term;
mod version_handover;
mod view;
mod workers;

pub use contender::{Contender, ContenderOptions};
pub use ending::{End, Ending};
#[cfg(feature = "testing")]
pub use forwarding_dispatcher::ForwardingDispatcher;
pub use peers::PeersSetup;
pub use permissions::MissingPermissions;
pub use sinks::Sinks;
pub use view::{HaStatus, JobManagerView, Role, TermState, TermStatus};
pub use workers::WorkersSetup;
