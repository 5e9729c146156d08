//! The content of a job file as a tree, and how its fields are read. The declarations of the operators read their
//! fields with it (`crate::operators`), and the compiler the rest of the file. Parsing YAML is the compiler's.
//!
//! Reading never stops at a problem: the [`Reader`] collects all of them, each with its position and step.

mod node;
mod reader;

pub use node::{Key, Node, Value};
pub use reader::{Fields, Reader};
