//! The built-in steps: what reads, transforms and writes records, implemented over the interface of
//! `tanist-dataflow`.
//!
//! ```text
//! Operators ──▶ schema                           the columns that an operator emits
//!     │
//!     ├───────▶ file, socket, stdin, datagen     sources
//!     ├───────▶ parse, format, filter, windows   transformations; SQL expressions with the feature `sql`
//!     ├───────▶ file_sink, print, socket_sink    sinks
//!     ├───────▶ exec                             programs as sources, transformations and sinks
//!     └───────▶ custom, committers               operators of a binary, what commits
//! ```
//!
//! `tanist_model::operators` declares the operators; here each says beside its code how it runs (`Runtime`).
//!
//! It owns what steps have on a host and share in a process: the files, directories and leases of programs
//! ([`TaskHost`]), standard input, the registries of [`custom`] operators and [`committers`], and the mask of job
//! output ([`umask`]).
//! Also here: what makes the output of file sinks visible ([`sink`]), which runs in the leader.
//!
//! Callers: the process, which passes [`Operators`] to its task runtime, commits sinks and checks graphs; `main`,
//! which calls [`become_child_if_asked`] first; applications, which register operators. Not here: tasks, the
//! exchange, and how a job is checked before it is submitted.

mod accumulator;
mod aggregate;
mod aggregate_all;
pub mod committers;
#[cfg(feature = "sql")]
mod constants;
mod csv;
pub mod custom;
mod datagen;
mod exec;
#[cfg(feature = "sql")]
mod expression;
mod factory;
mod faults;
mod file_sink;
mod file_source;
mod file_splits;
mod filter;
mod follow_files;
mod format;
mod host;
mod json;
mod lines;
mod parse;
mod print;
mod printer;
#[cfg(feature = "sql")]
mod projection;
mod reading;
mod regex;
mod result_state;
mod sample;
pub mod saved_positions;
mod schema;
pub mod sink;
mod socket_sink;
mod socket_source;
mod split_words;
mod stdin_source;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod umask;
mod values;
mod watermarks;
mod windows;
#[cfg(not(feature = "sql"))]
mod without_sql;

pub use exec::become_child_if_asked;
pub use factory::Operators;
pub use host::{TaskHost, UploadSource};
