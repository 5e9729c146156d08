//! The composition root: the only place that constructs components and wires them.

pub mod view;

pub use view::{HaStatus, JobManagerView, Role};
