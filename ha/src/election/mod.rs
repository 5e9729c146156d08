//! Leader election with fencing: who leads, in which epoch, and how another process ends that.
pub mod driver;
pub use driver::*;
